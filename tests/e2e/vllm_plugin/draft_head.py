"""Boots of a Gemma4 target and its assistant, as the bench makes them. As a program it records one for unit tests:

python -m tests.e2e.vllm_plugin.draft_head
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from draftmill.benchmarks import ArmName
from draftmill.receipts import Phase, PhaseRecord, Receipt
from draftmill_worker.bench import boot, vllm_plugin
from draftmill_worker.bench.arm import output_sha256
from draftmill_worker.bench.engine_env import engine_environment
from draftmill_worker.bench.prompts import Prompt
from draftmill_worker.bench.wire import EngineRequest
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.receipts import rules
from draftmill_worker.receipts.archive import ArchiveWriter
from draftmill_worker.receipts.collect import Seen, checkpointed, collect
from draftmill_worker.receipts.expected import Expected, Given
from tests.fixtures.gemma4 import Pair, Sizes, build
from tests.unit.receipts.draft_heads import DRAFTED, RECORDED, assistant
from tests.unit.receipts.good import COMMIT, SHA
from tests.unit.receipts.heads import MemoryHeads

FP8 = {vllm_plugin.VARIABLE: "emulation", vllm_plugin.FP8_DRAFT_HEAD: "fp8_per_tensor"}
TOKENS = 25
_TEXTS = ("def f(x):", "import os", "a = 1")
PROMPTS = tuple(Prompt(id=f"p{number}", turns=(text,)) for number, text in enumerate(_TEXTS))
ROUTE = {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


def measure(
    folder: Path, pair: Pair, environ: Mapping[str, str], *, drafts: bool = True, **overrides: object
) -> Receipt:
    """One boot's receipt, its rules judged. `overrides` are of the speculative configuration. ProblemError from a boot
    that fails."""
    speculative = {
        "method": "mtp",
        "model": str(pair.assistant),
        "num_speculative_tokens": DRAFTED,
        "draft_sample_method": "greedy",
        **overrides,
    }
    request = EngineRequest(
        target=pair.target,
        engine_args={"dtype": "bfloat16", "max_model_len": 256, "max_num_seqs": 1, "enforce_eager": True, "seed": 0},
        speculative_config=speculative if drafts else None,
        prompts=PROMPTS,
        warm_up=PROMPTS[0],
        chat_template=False,
        max_tokens=TOKENS,
        temperature=0.0,
        seed=0,
        concurrency=1,
    )
    opened = ArchiveWriter(folder / "receipts", "t", MemoryHeads()).open(request.model_dump_json().encode())
    home = folder / opened.id
    environment = engine_environment(home, ROUTE | dict(environ), {}, cpu=True)
    launched = boot.launch(opened, environment, home, 600.0, lambda _: None)
    result, target, drafter = launched.result, make_manifest(pair.target), make_manifest(pair.assistant)
    receipt = collect(
        opened,
        Seen(
            arm=ArmName.CONTROL,
            phases=(*result.phases, PhaseRecord(name=Phase.EXITED, at=launched.ended)),
            argv=launched.argv,
            environ=environment,
            speculative_config=speculative,
            engine_config=result.engine_config,
            target=checkpointed(target, repo="org/target", commit=COMMIT, path=pair.target),
            drafter=checkpointed(drafter, repo="org/assistant", commit=COMMIT, path=pair.assistant),
            view=result.view,
            counts=result.counts,
            output_sha256=output_sha256(result.prompts),
            prompts_sha256=SHA,
            roots={"target": pair.target, "drafter": pair.assistant, "boot": home},
            plugins=result.plugins,
        ),
    )
    sizes = Sizes()
    expected = Expected(
        Given(target, COMMIT),
        target_layers=len(sizes.layers),
        target_vocab=sizes.vocab,
        drafter=assistant(sizes),
        drafter_files=Given(drafter, COMMIT),
        num_speculative_tokens=DRAFTED,
    )
    receipt = receipt.model_copy(update={"rules": rules.validate(receipt, expected)})
    opened.seal(receipt)
    return receipt


def record(receipt: Receipt) -> dict[str, object]:
    """What the rules' tests need of it."""
    fields = {"view", "counts", "plugins", "environment", "speculative_config"}
    kept = receipt.model_dump(mode="json", include=fields)
    kept["environment"] = {name: kept["environment"][name] for name in FP8}
    return kept


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        receipt = measure(Path(scratch), build(Path(scratch) / "models"), FP8)
    broken = [rule for rule in receipt.rules if not rule.passed]
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(record(receipt), indent=1) + "\n")
    sys.exit("\n".join(map(str, broken)) or 0)


if __name__ == "__main__":
    main()

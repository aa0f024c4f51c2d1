"""`speculative_config` of a drafter: what each family's method needs, from the drafter's own configuration."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftmill.benchmarks import Benchmark
from draftmill.plans import Family
from draftmill.problems import Offender, ProblemError
from draftmill_worker.bench.vllm_plugin import VARIABLE
from draftmill_worker.checkpoint.checkpoint import CONFIG
from draftmill_worker.checkpoint.config import load_json
from draftmill_worker.checkpoint.drafter import Drafter

NO_QUANTIZATION = "none"
_BLOCKS = frozenset({Family.DFLASH, Family.DSPARK})


def check_length(drafter: Drafter, asked: int) -> None:
    """ProblemError("draft-length-refused") when a block drafter cannot draft `asked` tokens.

    DFlash drafts at most its block less the anchor. DSpark's walk covers its block, no more and no less: all of it
    where the anchor is sampled, which is the default outside speculators' dialect, and one less where it is not. An MTP
    block runs all its layers, and all of them again for further tokens.
    """
    if drafter.family is Family.MTP and asked > drafter.num_layers and asked % drafter.num_layers:
        rule = f"a multiple of its {drafter.num_layers} layers, or fewer"
        offender = Offender(where="benchmark.num_speculative_tokens", message=f"must be {rule}", value=asked)
        raise ProblemError("draft-length-refused", f"this MTP block drafts {rule}", [offender])
    if drafter.family not in _BLOCKS or drafter.block_size is None:
        return
    within = max(drafter.block_size - 1, 1)
    if drafter.family is Family.DFLASH:
        holds, rule = asked <= within, f"at most {within}, its block of {drafter.block_size} less the anchor"
    else:
        sampled = drafter.config.get("sample_from_anchor", "speculators_model_type" not in drafter.config)
        exact = drafter.block_size if sampled is True else within
        holds, rule = asked == exact, f"exactly {exact}, its block"
    if not holds:
        offender = Offender(where="benchmark.num_speculative_tokens", message=f"must be {rule}", value=asked)
        raise ProblemError("draft-length-refused", f"this {drafter.family} drafter drafts {rule}", [offender])


def speculative_config(
    drafter: Drafter, tensors: Collection[str], folder: Path, benchmark: Benchmark
) -> dict[str, Any]:
    """For the drafter in `folder`: the source's reading and tensor names, the folder's own quantization."""
    check_length(drafter, benchmark.num_speculative_tokens)
    config: dict[str, Any] = {
        "method": drafter.family.value,
        "num_speculative_tokens": benchmark.num_speculative_tokens,
        # As the target verifies: a greedy target accepts a draft only where it is the most likely token.
        "draft_sample_method": "greedy" if benchmark.temperature == 0 else "probabilistic",
    }
    if drafter.target is not None:
        # The engine takes the served directory, and its quantization.
        return config | _overridden(benchmark)
    config["model"] = str(folder)
    quantization = _quantization(folder, benchmark)
    if quantization is not None:
        config["quantization"] = quantization
    if drafter.family is Family.EAGLE3 and any("mask_hidden" in name for name in tensors):
        config["parallel_drafting"] = True
    return config


def _overridden(benchmark: Benchmark) -> dict[str, str]:
    asked = benchmark.draft_quantization
    return {} if asked in (None, NO_QUANTIZATION) else {"quantization": str(asked)}


def _quantization(folder: Path, benchmark: Benchmark) -> str | None:
    """Said outright, since older engines put the target's on the drafter. A drafter that is not quantized has none."""
    own = load_json((folder / CONFIG).read_bytes(), CONFIG).get("quantization_config")
    method = own.get("quant_method") if isinstance(own, dict) else None
    if method is None or benchmark.draft_quantization == NO_QUANTIZATION:
        return None
    return benchmark.draft_quantization or str(method)


@dataclass(frozen=True)
class Route:
    """How an engine is made to run a family on this machine."""

    features: tuple[str, ...]
    """Of the vLLM plugin."""
    environment: dict[str, str]


def route(family: Family | None, *, quantized: bool, temperature: float, cpu: bool, embedded: bool = False) -> Route:
    """`family` is None for the target alone, which `embedded` says to hold an MTP block. On a GPU nothing is patched;
    DSpark needs model runner V2 there."""
    if not cpu:
        return Route((), {"VLLM_USE_V2_MODEL_RUNNER": "1"} if family is Family.DSPARK else {})
    features = [
        *(["emulation"] if quantized else []),
        *(["dspark"] if family is Family.DSPARK else []),
        *(["rmsnorm2d"] if family in _BLOCKS else []),
        *(["temperature"] if temperature > 0 else []),
        *(["torchvision"] if embedded else []),
    ]
    # V2 needs Triton, which a CPU build lacks.
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    return Route(tuple(features), environment | ({VARIABLE: ",".join(features)} if features else {}))

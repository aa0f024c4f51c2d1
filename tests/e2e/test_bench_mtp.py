"""An MTP block in its target's checkpoint, benchmarked in real vLLM: the control serves the source, the variant itself.

Every draft of the fixture is right, so that a block which is not what it should be shows in the counts at once.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from draftmill.archive import Archive
from draftmill.benchmarks import Acceptance, ArmName, Benchmark, Counts, Gate, PromptSet, Verdict
from draftmill.formats import FORMATS, Format
from draftmill.jobs import PathSource, QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill.receipts import Receipt
from draftmill_worker.bench.arms import Place
from draftmill_worker.bench.run import Question, bench
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.mill import Switches, mill
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.fixtures.mtp import build
from tests.unit.receipts.heads import MemoryHeads

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
DRAFTED = 3
# What the engine reads for target and block alike goes by ModelOpt's names.
FORMATS_TO_RUN = [name for name, spec in FORMATS.items() if spec.quant_method.startswith("modelopt")]


class Quiet:
    def progress(self, done: int, total: int, unit: str) -> None:
        return

    def log(self, level: str, message: str) -> None:
        return


@dataclass
class Workshop:
    folder: Path
    heads: MemoryHeads

    def source(self) -> Path:
        folder = self.folder / "source"
        return folder if folder.exists() else build(folder, apart=True)

    def variant(self, format: Format, name: str = "variant") -> Path:
        out = self.folder / f"{name}-{format}"
        switches = Switches(verify=False, fsync=False)
        mill(self.source(), out, format, QuantizeOptions(), switches=switches, progress=lambda *_: None)
        return out

    def bench(self, variant: Path, *, no_speculation: bool = False) -> Acceptance:
        """Of eight prompts. The control is measured once."""
        source = self.source()
        plan = Plan.model_validate_json((variant / "plan.json").read_bytes())
        subject = Subject(_given(source), _given(source), _given(variant), plan)
        benchmark = Benchmark(
            target=PathSource(path=str(source)),
            num_speculative_tokens=DRAFTED,
            prompts=PromptSet(limit=8, max_tokens=25),
            no_speculation=no_speculation,
            gate=Gate(max_al_drop=0.05),
        )
        data = self.folder / "data"
        place = Place(
            data, self.folder / f"{variant.name}-boots", ArchiveWriter(data / "receipts", "t", self.heads), 600.0
        )
        return bench(Question(subject, benchmark, None), place, Quiet())

    def receipt(self, boot: str) -> Receipt:
        return Archive.of(self.folder / "data").receipt(boot)


def _given(folder: Path) -> Directory:
    return Directory(folder, make_manifest(folder), None, None)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    pytest.importorskip("vllm")
    return Workshop(tmp_path_factory.mktemp("workshop"), MemoryHeads())


def _all_accepted(counts: Counts | None) -> None:
    """Of 25 tokens the prompt's pass gives the first, and six drafts the other 24."""
    assert counts is not None
    assert counts.drafts == 8 * 6
    assert counts.accepted == counts.draft_tokens == counts.drafts * DRAFTED


def _check(workshop: Workshop, found: Acceptance, format: Format) -> None:
    _all_accepted(found.control.counts)
    assert found.variant.counts == found.control.counts
    assert found.variant.output_sha256 == found.control.output_sha256
    assert found.gate.verdict is Verdict.PASSED
    control, variant = workshop.receipt(found.control.receipt), workshop.receipt(found.variant.receipt)
    for receipt in (control, variant):
        assert [rule.rule for rule in receipt.rules if not rule.passed] == []
        assert receipt.drafter == receipt.target
        assert receipt.view is not None
        assert receipt.view.drafter_class == "Qwen3_5MTP"
        assert all(name.startswith("Unquantized") for name in receipt.view.target_methods)
    assert variant.target.files != control.target.files
    assert variant.view is not None
    methods = {module.prefix: module.method for module in variant.view.modules}
    fc = "UnquantizedLinearMethod" if FORMATS[format].quant_method == "modelopt_fp4" else "ModelOptLinearMethod"
    assert methods["mtp.fc"] == fc
    assert methods["mtp.layers.0.self_attn.qkv_proj"] == "ModelOptLinearMethod"


def test_control_and_variant_in_one_directory_each(workshop: Workshop) -> None:
    found = workshop.bench(workshop.variant(Format.FP8_PC_PT))
    _check(workshop, found, Format.FP8_PC_PT)


@pytest.mark.slow
@pytest.mark.parametrize("format", [name for name in FORMATS_TO_RUN if name is not Format.FP8_PC_PT])
def test_every_format(workshop: Workshop, format: Format) -> None:
    found = workshop.bench(workshop.variant(format), no_speculation=True)
    assert found.none is not None
    assert found.none.output_sha256 == found.control.output_sha256
    _check(workshop, found, format)


@pytest.mark.slow
def test_a_target_that_is_built_quantized_breaks_a_rule(workshop: Workshop) -> None:
    """C9, C111: a list that lost the target's last layer leaves it quantized by name, and bf16 on the disk."""
    variant = workshop.variant(Format.FP8, "spoiled")
    for name in ("config.json", "hf_quant_config.json"):
        text = (variant / name).read_text()
        assert '"model.layers.1.*"' in text
        (variant / name).write_text(text.replace('"model.layers.1.*"', '"model.layers.9.*"'))
    with pytest.raises(ProblemError) as caught:
        workshop.bench(variant)
    assert caught.value.problem.slug in {"receipt-invalid", "boot-failed"}
    if caught.value.problem.slug == "receipt-invalid":
        newest = next(iter(Archive.of(workshop.folder / "data").summaries(arm=ArmName.VARIANT)))
        assert "target-unquantized" in newest.failed_rules

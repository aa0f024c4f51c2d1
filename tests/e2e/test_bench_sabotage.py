"""Variants that load, serve, give right answers and accept nothing, or less: each is caught, by its own name."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftmill.archive import Archive
from draftmill.benchmarks import Acceptance, ArmName, Benchmark, Gate, PromptSet, Verdict
from draftmill.formats import Format
from draftmill.jobs import PathSource, QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.bench.arms import Place
from draftmill_worker.bench.run import Question, bench
from draftmill_worker.bench.subject import Directory, Subject
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.mill import Switches, mill
from draftmill_worker.receipts.archive import ArchiveWriter
from tests.unit.receipts.heads import MemoryHeads

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

WEIGHTS = "model.safetensors"


class Quiet:
    def progress(self, done: int, total: int, unit: str) -> None:
        return

    def log(self, level: str, message: str) -> None:
        return


@dataclass
class Workshop:
    """Boots of one module share arms: a control is measured once."""

    models: Path
    folder: Path
    heads: MemoryHeads

    def variant(self, source: Path, name: str, format: Format, **options: object) -> Path:
        out = self.folder / name
        switches = Switches(verify=False, fsync=False)
        chosen = QuantizeOptions.model_validate(options)
        mill(source, out, format, chosen, switches=switches, progress=lambda *_: None)
        return out

    def bench(self, source: Path, variant: Path, gate: Gate) -> Acceptance:
        data = self.folder / "data"
        plan = Plan.model_validate_json((variant / "plan.json").read_bytes())
        subject = Subject(_given(self.models / "target"), _given(source), _given(variant), plan)
        target = PathSource(path=str(self.models / "target"))
        benchmark = Benchmark(
            target=target,
            num_speculative_tokens=3,
            prompts=PromptSet(limit=10, max_tokens=48),
            no_speculation=False,
            gate=gate,
        )
        place = Place(
            data, self.folder / f"{variant.name}-boots", ArchiveWriter(data / "receipts", "test", self.heads), 600.0
        )
        return bench(Question(subject, benchmark, None), place, Quiet())

    def broken_rules(self) -> set[str]:
        """Of the newest variant's receipt."""
        newest = next(iter(Archive.of(self.folder / "data").summaries(arm=ArmName.VARIANT)))
        return set(newest.failed_rules)


def _given(folder: Path) -> Directory:
    return Directory(folder, make_manifest(folder), None, None)


@pytest.fixture(scope="module")
def workshop(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    pytest.importorskip("vllm")
    return Workshop(models, tmp_path_factory.mktemp("workshop"), MemoryHeads())


def _edit(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def _caught(workshop: Workshop, source: Path, variant: Path) -> ProblemError:
    with pytest.raises(ProblemError) as caught:
        workshop.bench(source, variant, Gate(max_al_drop=0.3))
    return caught.value


def test_a_map_shifted_by_one(workshop: Workshop) -> None:
    source = workshop.models / "eagle3"
    variant = workshop.variant(source, "shifted", Format.FP8_PC_PT)

    def shift(tensors: dict[str, torch.Tensor]) -> None:
        # All but the last, whose token would lie outside the vocabulary: the engine would die of that.
        tensors["d2t"][:-1] += 1

    _edit(variant / WEIGHTS, shift)
    error = _caught(workshop, source, variant)
    assert error.problem.slug == "receipt-invalid", error.problem
    assert workshop.broken_rules() == {"draft-map-as-stored"}


def test_ignore_with_checkpoint_names_only(workshop: Workshop) -> None:
    """The engine then builds quantized what is stored in bf16, and says nothing."""
    source = workshop.models / "eagle3"
    variant = workshop.variant(source, "misnamed", Format.FP8_PC_PT, exclude=["*self_attn*", "*fc*"])
    for name, section, key in (
        ("config.json", "quantization_config", "ignore"),
        ("hf_quant_config.json", "quantization", "exclude_modules"),
    ):
        config = json.loads((variant / name).read_text())
        # As the tensors are called in the checkpoint, where the engine asks for `model.layers.4.self_attn.qkv_proj`.
        config[section][key] = [
            "midlayer.self_attn.q_proj",
            "midlayer.self_attn.k_proj",
            "midlayer.self_attn.v_proj",
            "lm_head",
        ]
        (variant / name).chmod(0o644)
        (variant / name).write_text(json.dumps(config))
    error = _caught(workshop, source, variant)
    assert error.problem.slug == "receipt-invalid", error.problem
    assert "kept-as-planned" in workshop.broken_rules()


@pytest.mark.slow
def test_separate_scales_of_siblings_on_uneven_weights(workshop: Workshop, tmp_path: Path) -> None:
    """The same function in bf16: q grows as k shrinks. The engine takes one scale for both."""
    source = tmp_path / "uneven"
    shutil.copytree(workshop.models / "eagle3", source)

    def unbalance(tensors: dict[str, torch.Tensor]) -> None:
        tensors["midlayer.self_attn.q_proj.weight"] *= 1024
        tensors["midlayer.self_attn.k_proj.weight"] /= 1024

    _edit(source / WEIGHTS, unbalance)
    fused = workshop.variant(source, "fused", Format.NVFP4)
    separate = workshop.variant(source, "separate", Format.NVFP4, scales="reference")
    gate = Gate(max_al_drop=0.3, min_control_al=2.0)
    lost = workshop.bench(source, separate, gate)
    assert lost.gate.verdict is Verdict.FAILED
    assert lost.change.high < 0
    kept = workshop.bench(source, fused, gate)
    assert kept.control.reused
    assert kept.variant.al is not None
    assert lost.variant.al is not None
    assert kept.variant.al > lost.variant.al


def test_a_quantized_medusa_gets_no_boot(workshop: Workshop) -> None:
    with pytest.raises(ProblemError, match="family-not-quantizable"):
        workshop.variant(workshop.models / "medusa", "medusa", Format.FP8_PC_PT)

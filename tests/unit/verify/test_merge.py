"""C47: a drafter that is quantized in part gets the rest, in the same format or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Fate
from draftmill.problems import Problem, ProblemError
from draftmill_worker.assemble import assemble
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.quantize.existing import read_drafter
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.quantize.stream import quantize
from tests.fixtures.synthetic import Layout
from tests.unit.assemble.sources import edit_config
from tests.unit.verify.variants import Case, build, explained

MERGE = QuantizeOptions(merge=True)
IN_PLACE = [format for format, spec in FORMATS.items() if spec.quant_method.startswith("modelopt")]
PARTS = {
    "eagle3": ("*mlp*",),
    "draft_model": ("*layers.1.*", "*.layers.0.self_attn.*"),
    "dspark": ("fc.weight", "*o_proj*"),
}
"""What the first pass leaves out."""


def half(root: Path, family: str, format: Format, layout: Layout | None = None) -> Path:
    """A source that is the variant of a first pass."""
    return build(root, family, format, QuantizeOptions(exclude=PARTS[family]), layout).variant


def merged(root: Path, source: Path, format: Format, options: QuantizeOptions = MERGE) -> Case:
    checkpoint = open_checkpoint(source)
    drafter = read_drafter(checkpoint, format, options)
    plan = make_plan(checkpoint, drafter, format, options)
    root.mkdir(parents=True)
    (root / "source").symlink_to(source)
    variant = root / "variant"
    variant.mkdir()
    quantize(source, plan, variant, fsync=False)
    assemble(source, checkpoint, drafter, plan, variant, repo="org/half", commit="0" * 40)
    return Case(root, plan)


def refused(source: Path, format: Format, options: QuantizeOptions = MERGE) -> Problem:
    checkpoint = open_checkpoint(source)

    def plan() -> None:
        make_plan(checkpoint, read_drafter(checkpoint, format, options), format, options)

    with pytest.raises(ProblemError) as caught:
        plan()
    return caught.value.problem


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and torch.equal(
        left.contiguous().flatten().view(torch.uint8), right.contiguous().flatten().view(torch.uint8)
    )


@pytest.mark.parametrize("format", IN_PLACE)
@pytest.mark.parametrize("family", PARTS)
def test_c47_two_passes_give_what_one_gives(tmp_path: Path, family: str, format: Format) -> None:
    """ModelOpt's bytes both times: the sets of modules are different, and no scale is shared between them."""
    source = half(tmp_path / "half", family, format)
    case = merged(tmp_path / "merged", source, format)
    at_once = build(tmp_path / "at once", family, format).variant
    before, found, wanted = tensors(source), tensors(case.variant), tensors(at_once)
    assert found.keys() == wanted.keys()
    assert all(same(found[name], wanted[name]) for name in wanted)
    kept = [plan.name for plan in case.plan.tensors if plan.fate is Fate.KEPT]
    assert all(same(found[name], before[name]) for name in kept)
    for name in ("config.json", "hf_quant_config.json"):
        one, two = (json.loads((folder / name).read_text()) for folder in (at_once, case.variant))
        ignored = [_pop_exclusions(document) for document in (one, two)]
        assert one == two
        assert ignored[0] == ignored[1]


def _pop_exclusions(document: dict[str, Any]) -> set[str]:
    section = document.get("quantization_config") or document["quantization"]
    return set(section.pop("ignore", None) or section.pop("exclude_modules"))


@pytest.mark.parametrize(
    ("family", "format", "layout"),
    [
        ("eagle3", Format.NVFP4, None),
        ("draft_model", Format.FP8, Layout(shards=3)),
        ("dspark", Format.FP8_PC_PT, None),
    ],
)
def test_c47_a_merged_variant_passes_every_check(
    tmp_path: Path, family: str, format: Format, layout: Layout | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftmill_worker.verify.engine.TIMEOUT", 900.0)
    case = merged(tmp_path / "merged", half(tmp_path / "half", family, format, layout), format)
    report = case.verify(source_manifest=None, source_identity=None)
    assert report.passed, explained(report)
    evidence = {check.id: check.evidence for check in report.checks}
    assert evidence["scales-complete"]["modules"] > evidence["modelopt-parity"]["modules"] > 0
    assert "config_class" in evidence["engine-reads-config"]
    assert any("merged" in warning for warning in case.plan.warnings)


def test_c47_a_changed_byte_of_the_old_part_is_seen(tmp_path: Path) -> None:
    case = merged(tmp_path / "merged", half(tmp_path / "half", "eagle3", Format.FP8), Format.FP8)
    name = f"{case.plan.merged[0]}.weight"

    def flip(stored: dict[str, torch.Tensor]) -> None:
        stored[name].view(torch.uint8)[0, 0] ^= 1

    case.edit_tensors(flip)
    report = case.verify(source_manifest=None, source_identity=None)
    failed = {check.id: [offender.where for offender in check.offenders] for check in report.checks if check.offenders}
    assert failed["integers-identical"] == [name]


def test_c47_without_merge_it_is_refused(tmp_path: Path) -> None:
    source = half(tmp_path / "half", "eagle3", Format.FP8)
    assert refused(source, Format.FP8, QuantizeOptions()).slug == "already-quantized"


@pytest.mark.parametrize("format", FORMATS)
def test_c47_another_format_is_refused_by_name(tmp_path: Path, format: Format) -> None:
    source = half(tmp_path / "half", "eagle3", Format.W4A16_NVFP4)
    if format is Format.W4A16_NVFP4:
        return
    found = refused(source, format)
    assert found.slug == "merge-refused"
    assert "W4A16_NVFP4" in found.detail
    assert "ask for w4a16_nvfp4" in found.detail


def _edit(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    stored = load_file(folder / "model.safetensors")
    edit(stored)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})


def _float_k(stored: dict[str, torch.Tensor]) -> None:
    module = "midlayer.self_attn.k_proj"
    del stored[f"{module}.weight_scale"], stored[f"{module}.input_scale"]
    stored[f"{module}.weight"] = torch.ones(128, 256, dtype=torch.bfloat16)


REFUSED: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a lost scale": (
        lambda folder: _edit(folder, lambda stored: stored.pop("midlayer.self_attn.o_proj.weight_scale")),
        "merge-refused",
        "midlayer.self_attn.o_proj.weight_scale",
    ),
    "another form": (
        lambda folder: _edit(folder, lambda stored: stored.update({"fc.weight_scale": torch.ones(128)})),
        "merge-refused",
        "fc.weight_scale",
    ),
    "a scale of the cache": (
        lambda folder: _edit(folder, lambda stored: stored.update({"midlayer.self_attn.k_scale": torch.ones(1)})),
        "already-quantized",
        "midlayer.self_attn.k_scale",
    ),
    "half of a fused layer": (
        lambda folder: _edit(folder, _float_k),
        "mixed-fused-group",
        "midlayer.self_attn.qkv_proj",
    ),
    "no configuration": (
        lambda folder: edit_config(folder, quantization_config=...),
        "merge-refused",
        "config.json: quantization_config",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_c47_what_cannot_be_merged_is_named(tmp_path: Path, name: str) -> None:
    change, slug, where = REFUSED[name]
    source = half(tmp_path / "half", "eagle3", Format.FP8)
    change(source)
    found = refused(source, Format.FP8)
    assert (found.slug, found.offenders[0].where) == (slug, where)


@pytest.mark.parametrize("key", ["quantized_layers", "kv_cache_scheme", "quantization"])
def test_c47_schemes_beside_the_one_are_refused(tmp_path: Path, key: str) -> None:
    source = half(tmp_path / "half", "eagle3", Format.FP8)
    config = json.loads((source / "config.json").read_text())["quantization_config"]
    edit_config(source, quantization_config=config | {key: {"fc": {"quant_algo": "FP8"}}})
    found = refused(source, Format.FP8)
    assert (found.slug, found.offenders[0].where) == ("merge-refused", f"config.json: quantization_config.{key}")


def test_c47_nothing_is_left_to_quantize(tmp_path: Path) -> None:
    source = build(tmp_path / "whole", "eagle3", Format.FP8).variant
    assert refused(source, Format.FP8).slug == "nothing-to-quantize"


def test_c47_exclusions_of_modules_unknown_here_stay(tmp_path: Path) -> None:
    """They hit nothing that is quantized; those that do would undo it."""
    source = half(tmp_path / "half", "eagle3", Format.FP8)
    config = json.loads((source / "config.json").read_text())["quantization_config"]
    edit_config(source, quantization_config=config | {"ignore": [*config["ignore"], "*vision_tower*", "*down_proj*"]})
    ignore = merged(tmp_path / "merged", source, Format.FP8).plan.ignore
    assert "*vision_tower*" in ignore
    assert "*down_proj*" not in ignore

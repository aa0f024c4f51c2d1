"""The plan of a target with an MTP block: the block alone is quantized, and one list excludes all else."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Fate, Plan
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.drafter import Existing
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.quantize.ignore import excludes
from draftmill_worker.quantize.plan import TARGET, make_plan
from tests.unit.checkpoint.layouts import Layout
from tests.unit.checkpoint.targets import TargetLayout, glm4_moe, qwen3_5, qwen3_next

DIALECTS: Mapping[str, Layout] = {
    "qwen3_5": qwen3_5(),
    "multimodal": qwen3_5(multimodal=True),
    "qwen3_next": qwen3_next(),
    "glm4_moe": glm4_moe(),
}


def _plan(folder: Path, format: Format = Format.FP8, **options: Any) -> Plan:
    checkpoint = open_checkpoint(folder)
    return make_plan(checkpoint, detect(checkpoint), format, QuantizeOptions(**options))


def _of_block(name: str) -> bool:
    return name.startswith(("mtp.", "model.layers.2."))


@pytest.mark.parametrize("name", DIALECTS)
def test_c17_only_the_block_changes(tmp_path: Path, name: str) -> None:
    plan = _plan(DIALECTS[name].write(tmp_path / "target"))
    for tensor in plan.tensors:
        if not _of_block(tensor.name):
            assert (tensor.fate, tensor.reason) == (Fate.KEPT, TARGET)
    quantized = {tensor.name for tensor in plan.tensors if tensor.fate is Fate.QUANTIZED}
    assert any(member.endswith("self_attn.v_proj.weight") for member in quantized)
    groups = {tensor.group for tensor in plan.tensors if tensor.name.endswith("self_attn.v_proj.weight")} - {None}
    assert len(groups) == 1


@pytest.mark.parametrize("format", [Format.FP8, Format.FP8_PC_PT, Format.NVFP4, Format.W4A16_NVFP4])
def test_fc_stays_where_the_engine_forces_it(tmp_path: Path, format: Format) -> None:
    (fc,) = (t for t in _plan(qwen3_5().write(tmp_path / "t"), format).tensors if t.name == "mtp.fc.weight")
    forced = FORMATS[format].quant_method == "modelopt_fp4"
    assert fc.fate is (Fate.KEPT if forced else Fate.QUANTIZED)
    assert ("modelopt_fp4" in fc.reason) is forced


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("format", [Format.FP8, Format.NVFP4])
def test_c9_c45_c111_the_list_follows_from_what_is_written(tmp_path: Path, name: str, format: Format) -> None:
    """By the engine's names and the checkpoint's; MoE experts are one module."""
    plan = _plan(DIALECTS[name].write(tmp_path / "target"), format)
    fused = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "gate_proj": "gate_up_proj"}
    for tensor in plan.tensors:
        if len(tensor.shape) < 2:
            continue
        module = tensor.name.removesuffix(".weight")
        parent, _, last = re.sub(r"\.experts\..*", ".experts", module).rpartition(".")
        engine = f"{parent}.{fused.get(last, last)}" if parent else last
        if name == "multimodal":
            engine = engine.replace("model.language_model.", "language_model.model.").replace("model.visual", "visual")
        kept = tensor.fate is not Fate.QUANTIZED
        for asked in (module, engine):
            assert any(excludes(pattern, asked) for pattern in plan.ignore) is kept, (asked, plan.ignore)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "keep"])
def test_no_dtype_is_changed_in_a_targets_checkpoint(tmp_path: Path, dtype: str) -> None:
    plan = _plan(qwen3_5().cast("F32").write(tmp_path / "target"), dtype=dtype)
    assert plan.dtype == "keep"
    assert {tensor.fate for tensor in plan.tensors} == {Fate.KEPT, Fate.QUANTIZED}


def test_whole_files_are_planned_whole(tmp_path: Path) -> None:
    layout = qwen3_5()
    assert isinstance(layout, TargetLayout)
    plan = _plan(layout.write_apart(tmp_path / "target"))
    (whole,) = plan.untouched
    assert whole.file == "a.safetensors"
    assert whole.tensors == sum(not name.startswith("mtp.") for name in layout.tensors)
    assert all(_of_block(tensor.name) for tensor in plan.tensors)
    source = open_checkpoint(tmp_path / "target")
    assert plan.source_bytes == source.nbytes
    written = sum(tensor.nbytes for tensor in source.tensors.values() if tensor.name.startswith("mtp."))
    assert plan.variant_bytes < plan.source_bytes
    assert plan.source_bytes - whole.nbytes == written


def test_a_pattern_for_the_target_alone_is_unused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as caught:
        _plan(qwen3_5().write(tmp_path / "target"), exclude=("model.layers.0.*",))
    assert caught.value.problem.slug == "unused-exclude"


def test_the_targets_head_is_not_for_quantizing(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as caught:
        _plan(qwen3_5().write(tmp_path / "target"), lm_head=True)
    assert caught.value.problem.slug == "lm-head-refused"


def test_experts_are_excluded_as_one(tmp_path: Path) -> None:
    """A block of Qwen3-Next has 512 of them: naming each would make a list of thousands."""
    plan = _plan(qwen3_next().write(tmp_path / "target"))
    assert [pattern for pattern in plan.ignore if ".experts" in pattern] == ["mtp.layers.0.mlp.experts"]
    reasons = {tensor.reason for tensor in plan.tensors if ".experts." in tensor.name}
    assert len(reasons) == 1
    assert "experts" in reasons.pop()


def test_a_target_that_is_quantized_itself_is_not_merged(tmp_path: Path) -> None:
    """One pattern per layer of the target would take what is quantized there."""
    checkpoint = open_checkpoint(qwen3_5().write(tmp_path / "target"))
    existing = Existing(modules=("model.layers.0.mlp.up_proj",), tensors=frozenset(), ignore=())
    drafter = replace(detect(checkpoint), existing=existing)
    with pytest.raises(ProblemError) as caught:
        make_plan(checkpoint, drafter, Format.FP8, QuantizeOptions())
    assert caught.value.problem.slug == "family-not-quantizable"

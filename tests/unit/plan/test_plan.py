from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Fate, Plan, TensorPlan
from draftmill.problems import Problem, ProblemError
from draftmill_worker.quantize.plan import make_plan
from tests.unit.checkpoint.layouts import (
    DRAFT_VOCAB,
    HIDDEN,
    VOCAB,
    Layout,
    dflash,
    dflash2,
    draft_model,
    dspark,
    eagle,
    eagle3,
    gemma4_dspark,
    medusa,
)

FAMILIES: dict[str, Callable[[], Layout]] = {
    "eagle": eagle,
    "eagle3": eagle3,
    "dflash": dflash,
    "dspark": dspark,
    "gemma4_dspark": gemma4_dspark,
    "draft_model": draft_model,
}


def _plan(layout: Layout, folder: Path, format: Format = Format.FP8, shards: int = 1, **options: Any) -> Plan:
    checkpoint, drafter = layout.open(folder, shards)
    return make_plan(checkpoint, drafter, format, QuantizeOptions(**options))


def _problem(layout: Layout, folder: Path, format: Format = Format.FP8, **options: Any) -> Problem:
    with pytest.raises(ProblemError) as caught:
        _plan(layout, folder, format, **options)
    return caught.value.problem


def _of(plan: Plan, name: str) -> TensorPlan:
    return next(tensor for tensor in plan.tensors if tensor.name == name)


def _names(plan: Plan, fate: Fate) -> set[str]:
    return {tensor.name for tensor in plan.tensors if tensor.fate is fate}


LAYER = {"o_proj", "gate_proj", "up_proj", "down_proj"}
QKV = {"q_proj", "k_proj", "v_proj"}
EXPECTED = {
    "eagle": LAYER | QKV | {"fc"},
    "eagle3": LAYER | QKV | {"fc"},
    "dflash": LAYER | {"fc"},
    "dspark": LAYER | {"fc"},
    "gemma4_dspark": LAYER | {"q_proj", "fc"},
    "draft_model": LAYER | QKV,
}


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_quantized_by_default(tmp_path: Path, family: str, format: Format) -> None:
    plan = _plan(FAMILIES[family](), tmp_path, format)
    quantized = _names(plan, Fate.QUANTIZED)
    assert {name.split(".")[-2] for name in quantized} == EXPECTED[family]
    every = {name for name in (tensor.name for tensor in plan.tensors) if name.split(".")[-2:][0] in EXPECTED[family]}
    assert quantized == every


@pytest.mark.parametrize("format", Format)
@pytest.mark.parametrize("family", FAMILIES)
def test_c13_every_tensor_has_one_fate_one_reason_and_the_named_outputs(
    tmp_path: Path, family: str, format: Format
) -> None:
    layout = FAMILIES[family]()
    plan = _plan(layout, tmp_path, format)
    assert sorted(tensor.name for tensor in plan.tensors) == sorted(layout.tensors)
    for tensor in plan.tensors:
        assert tensor.reason
        if tensor.fate is not Fate.QUANTIZED:
            assert [output.name for output in tensor.outputs] == [tensor.name]
            assert tensor.outputs[0].shape == tensor.shape
    outputs = [output.name for tensor in plan.tensors for output in tensor.outputs]
    assert len(outputs) == len(set(outputs))
    assert Plan.model_validate_json(plan.model_dump_json(by_alias=True)) == plan


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (draft_model, "model.embed_tokens.weight", "embedding"),
        (draft_model, "lm_head.weight", "lm_head: quantized on request only"),
        (draft_model, "model.norm.weight", "norm"),
        (eagle3, "d2t", "I64 data: copied byte for byte"),
        (eagle3, "t2d", "BOOL data: copied byte for byte"),
        (dspark, "markov_head.markov_w1.weight", "Markov head: a table per token"),
        (dspark, "markov_head.markov_w2.weight", "Markov head: a table per token"),
        (dspark, "confidence_head.proj.weight", "confidence head"),
        (dspark, "confidence_head.proj.bias", "bias"),
    ],
)
def test_c93_default_keeps(tmp_path: Path, make: Callable[[], Layout], name: str, reason: str) -> None:
    tensor = _of(_plan(make(), tmp_path), name)
    assert (tensor.fate, tensor.reason) == (Fate.KEPT, reason)


def test_c93_selector_and_convolutions(tmp_path: Path) -> None:
    plan = _plan(dflash2(), tmp_path)
    kept = {tensor.name: tensor for tensor in plan.tensors if "conv" in tensor.name or "selector" in tensor.name}
    assert {tensor.reason for tensor in kept.values()} == {"convolution", "selector"}
    assert {tensor.fate for tensor in kept.values()} == {Fate.KEPT}
    assert len(kept) == 2 * 2 * 2 + 3
    assert {
        "layers.1.mlp_conv.kernel_projection",
        "model.layers.8.attention_conv.kernel_projection",
        "model.candidate_selector.hidden_projection",
    } <= set(plan.ignore)


@pytest.mark.parametrize("make", [dflash, dflash2, dspark])
def test_c7_q_k_v_of_block_drafters_stay_by_a_named_rule(tmp_path: Path, make: Callable[[], Layout]) -> None:
    plan = _plan(make(), tmp_path)
    for name in QKV:
        tensor = _of(plan, f"layers.0.self_attn.{name}.weight")
        assert tensor.fate is Fate.KEPT
        assert tensor.reason.startswith("rule context-kv: ")


@pytest.mark.parametrize("make", [eagle3, draft_model])
def test_fused_siblings_are_one_group(tmp_path: Path, make: Callable[[], Layout]) -> None:
    plan = _plan(make(), tmp_path, shards=3)
    groups: dict[str, set[str]] = {}
    for tensor in plan.tensors:
        if tensor.group is not None:
            groups.setdefault(tensor.group, set()).add(tensor.name.split(".")[-2])
    assert {group.rpartition(".")[2]: members for group, members in groups.items()} == {
        "qkv_proj": QKV,
        "gate_up_proj": {"gate_proj", "up_proj"},
    }
    files = {
        tensor.file for tensor in plan.tensors if tensor.group and tensor.group.endswith("layers.0.self_attn.qkv_proj")
    }
    assert len(files) > 1 or make is eagle3


def test_lone_modules_have_no_group(tmp_path: Path) -> None:
    plan = _plan(eagle3(), tmp_path)
    assert _of(plan, "fc.weight").group is None
    assert _of(plan, "midlayer.self_attn.o_proj.weight").group is None


def test_c116_a_fused_group_is_excluded_whole_or_not_at_all(tmp_path: Path) -> None:
    problem = _problem(eagle3(), tmp_path, exclude=["*q_proj*", "midlayer.mlp.up_proj.weight"])
    assert problem.slug == "mixed-fused-group"
    assert [offender.where for offender in problem.offenders] == [
        "midlayer.self_attn.qkv_proj",
        "midlayer.mlp.gate_up_proj",
    ]
    assert problem.offenders[0].value == [f"midlayer.self_attn.{name}_proj.weight" for name in "qkv"]


def test_c116_groups_hold_across_shards(tmp_path: Path) -> None:
    layout = draft_model()
    checkpoint, drafter = layout.open(tmp_path, shards=4)
    options = QuantizeOptions(exclude=("model.layers.1.self_attn.k_proj.weight",))
    with pytest.raises(ProblemError) as caught:
        make_plan(checkpoint, drafter, Format.NVFP4, options)
    assert [offender.where for offender in caught.value.problem.offenders] == ["model.layers.1.self_attn.qkv_proj"]


def test_excluded_groups_are_kept_with_the_pattern_as_reason(tmp_path: Path) -> None:
    plan = _plan(eagle3(), tmp_path, exclude=["*.self_attn.[qkv]_proj.weight", "fc.*"])
    assert _of(plan, "midlayer.self_attn.k_proj.weight").reason == "excluded by *.self_attn.[qkv]_proj.weight"
    assert _of(plan, "fc.weight").reason == "excluded by fc.*"
    assert _of(plan, "midlayer.self_attn.o_proj.weight").fate is Fate.QUANTIZED


def test_patterns_that_match_nothing_are_refused(tmp_path: Path) -> None:
    problem = _problem(eagle3(), tmp_path, exclude=["fc", "*norm*", "*.gate.*"])
    assert problem.slug == "unused-exclude"
    assert [offender.value for offender in problem.offenders] == ["fc", "*.gate.*"]
    assert "did you mean 'fc.weight'" in problem.offenders[0].message


def test_excluding_everything_leaves_no_plan(tmp_path: Path) -> None:
    assert _problem(eagle3(), tmp_path, exclude=["*"]).slug == "nothing-to-quantize"


@pytest.mark.parametrize(
    "make", [eagle3, draft_model, lambda: dflash(has_own_lm_head=True).add({"lm_head.weight": (VOCAB, HIDDEN)})]
)
def test_c91_lm_head_on_request(tmp_path: Path, make: Callable[[], Layout]) -> None:
    plan = _plan(make(), tmp_path, lm_head=True)
    assert _of(plan, "lm_head.weight").fate is Fate.QUANTIZED
    assert "lm_head" not in plan.ignore
    assert any("vLLM 0.32" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    "make",
    [
        dspark,
        dflash,
        eagle,
        gemma4_dspark,
        lambda: gemma4_dspark().add({"lm_head.weight": (VOCAB, HIDDEN)}),
        lambda: eagle3(draft_vocab_size=None, has_lm_head=False).without("lm_head.weight", "d2t", "t2d"),
        lambda: dspark().add({"lm_head.weight": (VOCAB, HIDDEN)}),
        lambda: dflash().add({"lm_head.weight": (VOCAB, HIDDEN)}),
        lambda: dflash(has_lm_head=False),
        lambda: draft_model(tied=True),
        lambda: draft_model(tied=True).add({"lm_head.weight": (VOCAB, HIDDEN)}),
        lambda: eagle3(draft_vocab_size=None).without("lm_head.weight", "d2t", "t2d"),
    ],
)
def test_c91_lm_head_is_refused_by_name_where_no_engine_reads_it(tmp_path: Path, make: Callable[[], Layout]) -> None:
    problem = _problem(make(), tmp_path, lm_head=True)
    assert (problem.slug, problem.offenders[0].where) == ("lm-head-refused", "lm_head")


def test_c90_a_tied_head_that_is_stored_too_is_kept(tmp_path: Path) -> None:
    plan = _plan(draft_model(tied=True).add({"lm_head.weight": (VOCAB, HIDDEN)}), tmp_path)
    assert _of(plan, "lm_head.weight").reason == "lm_head: the head is tied"


def test_c90_an_absent_head_is_not_created(tmp_path: Path) -> None:
    plan = _plan(draft_model(tied=True), tmp_path)
    assert not any("lm_head" in output.name for tensor in plan.tensors for output in tensor.outputs)


@pytest.mark.parametrize("format", [Format.NVFP4, Format.W4A16_NVFP4])
def test_c95_every_shape_that_does_not_divide_is_listed_at_once(tmp_path: Path, format: Format) -> None:
    layout = eagle3(intermediate_size=40, target_hidden_size=33).add(
        {
            "fc.weight": (HIDDEN, 99),
            "midlayer.mlp.gate_proj.weight": (40, HIDDEN),
            "midlayer.mlp.up_proj.weight": (40, HIDDEN),
            "midlayer.mlp.down_proj.weight": (HIDDEN, 40),
        }
    )
    problem = _problem(layout, tmp_path, format)
    assert problem.slug == "shape-not-divisible"
    assert [offender.where for offender in problem.offenders] == ["fc.weight", "midlayer.mlp.down_proj.weight"]
    assert problem.offenders[1].value == [HIDDEN, 40]
    assert "'midlayer.mlp.down_proj.weight' to exclude" in problem.offenders[1].message
    plan = _plan(layout, tmp_path, format, exclude=[offender.where for offender in problem.offenders])
    assert _of(plan, "midlayer.mlp.down_proj.weight").fate is Fate.KEPT


@pytest.mark.parametrize("format", [Format.MXFP8, Format.FP8_PB_WO, Format.INT4_G128, Format.INT8_G128])
def test_c95_wider_blocks_refuse_more(tmp_path: Path, format: Format) -> None:
    layout = eagle3(intermediate_size=48).add(
        {
            "midlayer.mlp.gate_proj.weight": (48, HIDDEN),
            "midlayer.mlp.up_proj.weight": (48, HIDDEN),
            "midlayer.mlp.down_proj.weight": (HIDDEN, 48),
        }
    )
    problem = _problem(layout, tmp_path, format)
    assert problem.slug == "shape-not-divisible"
    # Rows matter to blocks alone, and there to those that others stand behind.
    before = ["midlayer.mlp.gate_proj.weight"] if format is Format.FP8_PB_WO else []
    assert sorted(offender.where for offender in problem.offenders) == ["midlayer.mlp.down_proj.weight", *before]


def test_rows_that_end_within_a_block_may_come_last(tmp_path: Path) -> None:
    """Of q, k and v the last may, and so may a layer of its own."""
    layout = draft_model(num_key_value_heads=1, head_dim=64)
    for number in range(2):
        attention = f"model.layers.{number}.self_attn"
        layout.add({f"{attention}.{name}_proj.weight": (64, HIDDEN) for name in "kv"})
    problem = _problem(layout, tmp_path, Format.FP8_PB_WO)
    assert {offender.where.rpartition("self_attn.")[2] for offender in problem.offenders} == {"k_proj.weight"}
    assert "64 rows, which 128 does not divide" in problem.offenders[0].message


def test_a_head_in_blocks_is_refused(tmp_path: Path) -> None:
    problem = _problem(eagle3(), tmp_path, Format.FP8_PB_WO, lm_head=True)
    assert (problem.slug, problem.offenders[0].where) == ("lm-head-refused", "lm_head")
    assert "per 128 rows" in problem.offenders[0].message


def test_c95_problems_of_all_kinds_come_in_one_answer(tmp_path: Path) -> None:
    layout = dspark(target_hidden_size=33).add({"fc.weight": (HIDDEN, 99)})
    problem = _problem(layout, tmp_path, Format.NVFP4, exclude=["nothing", "*.gate_proj.*"], lm_head=True)
    wheres = [offender.where for offender in problem.offenders]
    assert wheres == [
        "quantize.exclude: nothing",
        "lm_head",
        "fc.weight",
        "layers.0.mlp.gate_up_proj",
        "layers.1.mlp.gate_up_proj",
    ]


@pytest.mark.parametrize("format", Format)
def test_c118_one_row_projections_are_kept(tmp_path: Path, format: Format) -> None:
    """A single KV head of width one gives one-row k and v: they keep q with them."""
    layout = draft_model(num_attention_heads=128, num_key_value_heads=1, head_dim=1)
    for number in range(2):
        attention = f"model.layers.{number}.self_attn"
        layout.add({f"{attention}.q_proj.weight": (128, HIDDEN), f"{attention}.o_proj.weight": (HIDDEN, 128)})
        layout.add({f"{attention}.k_proj.weight": (1, HIDDEN), f"{attention}.v_proj.weight": (1, HIDDEN)})
    plan = _plan(layout, tmp_path, format)
    for name in QKV:
        tensor = _of(plan, f"model.layers.0.self_attn.{name}.weight")
        assert (tensor.fate, tensor.reason) == (Fate.KEPT, "one row: its scale would collapse to a scalar")


def test_c11_integers_and_booleans_are_never_cast(tmp_path: Path) -> None:
    plan = _plan(eagle3().cast("F32"), tmp_path, dtype="float16")
    for name, dtype in (("d2t", "I64"), ("t2d", "BOOL")):
        tensor = _of(plan, name)
        assert (tensor.fate, tensor.outputs[0].dtype) == (Fate.KEPT, dtype)


@pytest.mark.parametrize(("dtype", "stored"), [("bfloat16", "BF16"), ("float16", "F16"), ("keep", "F32")])
def test_kept_floating_tensors_follow_dtype(tmp_path: Path, dtype: str, stored: str) -> None:
    plan = _plan(draft_model().cast("F32"), tmp_path, dtype=dtype)
    tensor = _of(plan, "model.embed_tokens.weight")
    assert tensor.outputs[0].dtype == stored
    assert tensor.fate is (Fate.KEPT if dtype == "keep" else Fate.CAST)
    if dtype != "keep":
        assert tensor.reason == f"embedding; F32 to {stored}: {dtype} asked for"


def test_bf16_sources_are_not_cast(tmp_path: Path) -> None:
    assert not _names(_plan(eagle3(), tmp_path), Fate.CAST)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_the_engine_computes_in_fp32_stays(tmp_path: Path, dtype: str) -> None:
    plan = _plan(dspark().cast("F32"), tmp_path, dtype=dtype)
    for name in ("confidence_head.proj.weight", "confidence_head.proj.bias"):
        tensor = _of(plan, name)
        assert (tensor.fate, tensor.outputs[0].dtype) == (Fate.KEPT, "F32")
        assert "stays F32" in tensor.reason
    assert _of(plan, "norm.weight").fate is Fate.CAST


def test_c32_float16_comes_with_a_warning(tmp_path: Path) -> None:
    assert any("float16" in warning for warning in _plan(eagle3(), tmp_path, dtype="float16").warnings)
    assert not any("float16" in warning for warning in _plan(eagle3(), tmp_path).warnings)


def test_reference_scales_come_with_a_warning(tmp_path: Path) -> None:
    plan = _plan(eagle3(), tmp_path, scales="reference")
    assert any("reference" in warning for warning in plan.warnings)
    assert _of(plan, "midlayer.self_attn.q_proj.weight").group == "midlayer.self_attn.qkv_proj"


def test_sizes_are_bytes_of_tensors(tmp_path: Path) -> None:
    layout = Layout(eagle3().config, eagle3().tensors)
    plan = _plan(layout, tmp_path, Format.NVFP4)
    source = (
        sum(2 * _count(shape) for dtype, shape in layout.tensors.values() if dtype == "BF16") + 8 * DRAFT_VOCAB + VOCAB
    )
    assert plan.source_bytes == source
    quantized = [_count(layout.tensors[name][1]) for name in _names(plan, Fate.QUANTIZED)]
    kept = source - 2 * sum(quantized)
    assert plan.variant_bytes == kept + sum(count // 2 + count // 16 + 4 + 4 for count in quantized)


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def test_medusa_is_refused_with_the_reason(tmp_path: Path) -> None:
    problem = _problem(medusa(), tmp_path)
    assert problem.slug == "family-not-quantizable"
    assert "without a quantization config" in problem.detail


@pytest.mark.parametrize("prefix", ["mtp.layers.0", "model.layers.2"])
def test_c17_c111_predicting_layers_are_kept_and_excluded(tmp_path: Path, prefix: str) -> None:
    """No class of this family builds them: nobody would read their scales."""
    layout = draft_model(num_nextn_predict_layers=1)
    layer = {name: kind for name, kind in layout.tensors.items() if name.startswith("model.layers.1.")}
    layout.tensors |= {name.replace("model.layers.1", prefix): kind for name, kind in layer.items()}
    plan = _plan(layout, tmp_path)
    kept = [tensor for tensor in plan.tensors if tensor.name.startswith(prefix)]
    assert len(kept) == len(layer)
    assert {tensor.fate for tensor in kept} == {Fate.KEPT}
    linear = {tensor.name.removesuffix(".weight") for tensor in kept if len(tensor.shape) == 2}
    assert linear <= set(plan.ignore)
    assert all(any(name in warning for warning in plan.warnings) for name in linear)


def test_c92_only_layers_that_are_not_fused(tmp_path: Path) -> None:
    """The way out for engines that fail on a fused layer with scales."""
    plan = _plan(eagle3(), tmp_path, exclude=["*.[qkv]_proj.*", "*.gate_proj.*", "*.up_proj.*"])
    quantized = {name.split(".")[-2] for name in _names(plan, Fate.QUANTIZED)}
    assert quantized == {"fc", "o_proj", "down_proj"}
    assert {tensor.group for tensor in plan.tensors} == {None}
    assert {"midlayer.self_attn.qkv_proj", "midlayer.mlp.gate_up_proj"} <= set(plan.ignore)


def test_a_planted_pattern_does_not_hang(tmp_path: Path) -> None:
    problem = _problem(eagle3(), tmp_path, exclude=["*a" * 127])
    assert problem.slug == "unused-exclude"

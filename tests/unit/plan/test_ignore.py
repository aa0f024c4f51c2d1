"""`ignore` against vLLM's own rule, and against its own configuration classes where vLLM is installed."""

import re
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.quantize.config import hf_quant_config, quantization_config
from draftmill_worker.quantize.ignore import RuntimeModule, excludes, ignore_list, runtime_modules
from draftmill_worker.quantize.plan import make_plan
from tests.unit.checkpoint.layouts import (
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
    speculators,
)

Case = tuple[Callable[[], Layout], dict[str, Any]]

_ONE_LAYER = {"exclude": ["layers.1.mlp.down_proj.weight", "layers.1.self_attn.o_proj.weight"]}
CASES: dict[str, Case] = {
    "eagle": (eagle, {}),
    "eagle attention": (eagle, {"exclude": ["*self_attn*"]}),
    "eagle two layers": (lambda: eagle(layers=2, num_target_layers=30), _ONE_LAYER),
    "eagle3": (eagle3, {}),
    "eagle3 lm_head": (eagle3, {"lm_head": True}),
    "eagle3 all attention": (eagle3, {"exclude": ["*self_attn*"]}),
    "eagle3 fc": (eagle3, {"exclude": ["fc.weight"]}),
    "eagle3 qwen3 attention": (lambda: eagle3(qwen3=True), {"exclude": ["*_proj.weight"], "lm_head": True}),
    "eagle3 two layers": (lambda: eagle3(layers=2), {"exclude": ["*down_proj*"]}),
    "eagle3 two layers, one kept": (lambda: eagle3(layers=2, num_target_layers=1), _ONE_LAYER),
    "eagle3 borrowed head": (
        lambda: eagle3(draft_vocab_size=None).without("lm_head.weight", "d2t", "t2d"),
        {"exclude": ["fc.weight"]},
    ),
    "eagle3 speculators": (lambda: speculators(eagle3(prefix=None), "eagle3"), {"exclude": ["*mlp*"]}),
    "dflash": (dflash, {}),
    "dflash one layer": (dflash, _ONE_LAYER),
    "dflash unknown depth": (lambda: dflash(num_target_layers=None), _ONE_LAYER),
    "dflash deeper than its target": (
        lambda: dflash(layers=8, num_target_layers=6),
        {"exclude": ["layers.7.mlp.*", "layers.6.self_attn.o_proj.weight"]},
    ),
    "dflash own lm_head": (
        lambda: dflash(has_own_lm_head=True).add({"lm_head.weight": (VOCAB, HIDDEN)}),
        {"lm_head": True},
    ),
    "dflash2": (dflash2, {}),
    "dflash2 one layer": (lambda: dflash2(num_target_layers=None), _ONE_LAYER),
    "dspark": (dspark, {}),
    "dspark one layer": (dspark, _ONE_LAYER),
    "gemma4 dspark": (gemma4_dspark, {}),
    "gemma4 dspark one layer": (gemma4_dspark, _ONE_LAYER),
    "gemma4 dspark gate and up": (gemma4_dspark, {"exclude": ["layers.0.mlp.gate_proj.*", "layers.0.mlp.up_proj.*"]}),
    "draft_model": (draft_model, {}),
    "draft_model eleven layers": (lambda: draft_model(layers=11), {"exclude": ["model.layers.1.*"]}),
    "draft_model tied": (lambda: draft_model(tied=True), {"exclude": ["*mlp*"]}),
    "draft_model lm_head": (draft_model, {"lm_head": True}),
    "draft_model qwen3": (lambda: draft_model(architecture="Qwen3ForCausalLM"), {"exclude": ["*layers.0.self_attn*"]}),
}

INTEGERS = [format for format, spec in FORMATS.items() if spec.quant_method == "compressed-tensors"]
MODELOPT = [format for format in FORMATS if format not in INTEGERS]


def _planned(case: Case, folder: Path, format: Format = Format.FP8) -> tuple[Drafter, Plan]:
    make, options = case
    checkpoint, drafter = make().open(folder)
    return drafter, make_plan(checkpoint, drafter, format, QuantizeOptions(**options))


def _depths(drafter: Drafter) -> list[int]:
    """Target layer counts to try: the recorded one, or several, among them the drafter's own number of layers."""
    if drafter.target_num_layers is not None:
        return [drafter.target_num_layers]
    least = drafter.min_target_layers
    return sorted({least, least + 1, least + drafter.num_layers, 36, 64})


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_c9_every_kept_module_is_excluded_and_no_quantized_one(tmp_path: Path, case: Case) -> None:
    """By vLLM's rule as its source states it: equal, substring or shell pattern."""
    drafter, plan = _planned(case, tmp_path)
    for depth in _depths(drafter):
        read = _with_engine_offsets(drafter, list(plan.ignore), depth)
        for module in runtime_modules(drafter, plan, depth):
            excluded = any(pattern in module.name or fnmatch(module.name, pattern) for pattern in read)
            assert excluded == (not module.quantized), (module, depth)


# One layer of several, counted on from an unknown depth. DFlash's class mends ModelOpt's lists alone.
NEED_THE_DEPTH = {"dflash unknown depth", "dflash2 one layer"}


@pytest.mark.parametrize("name", sorted(NEED_THE_DEPTH))
def test_a_layer_kept_alone_needs_the_targets_depth_for_integers(tmp_path: Path, name: str) -> None:
    with pytest.raises(ProblemError) as raised:
        _planned(CASES[name], tmp_path, Format.INT8_G128)
    assert raised.value.problem.slug == "target-depth-unknown"


@pytest.mark.parametrize("case", [case for name, case in CASES.items() if name not in NEED_THE_DEPTH])
def test_c9_whole_names_for_compressed_tensors(tmp_path: Path, case: Case) -> None:
    """By vLLM's rule for compressed-tensors as its source states it: equal, or an expression that matches the start."""
    drafter, plan = _planned(case, tmp_path, Format.INT4_G128)
    for depth in _depths(drafter):
        for module in runtime_modules(drafter, plan, depth):
            expressions = [pattern[3:] for pattern in plan.ignore if pattern.startswith("re:")]
            excluded = module.name in plan.ignore or any(re.match(found, module.name) for found in expressions)
            assert excluded == (not module.quantized), (module, depth)
    assert not any("*" in pattern for pattern in plan.ignore)


def _with_engine_offsets(drafter: Drafter, patterns: list[str], depth: int) -> list[str]:
    """What DFlash's class adds to its exclusions: bare layer numbers counted on from the target's."""
    if not drafter.engine_offsets_ignore:
        return patterns
    added = []
    for pattern in patterns:
        head, dot, tail = pattern.partition(".")
        number, _, rest = tail.partition(".")
        if head == "layers" and dot:
            added.append(f"layers.{int(number) + depth}.{rest}")
    return patterns + added


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_c3_fused_and_shard_names_stand_in_both_name_spaces(tmp_path: Path, case: Case) -> None:
    drafter, plan = _planned(case, tmp_path)
    kept = [module for module in runtime_modules(drafter, plan) if not module.quantized]
    fused = [module for module in kept if len(module.members) > 1]
    for module in fused:
        shards = [member.rpartition(".")[2] for member in module.members]
        assert sum(any(pattern.endswith(shard) for pattern in plan.ignore) for shard in shards) == len(shards)
    assert plan.ignore


def test_c20_run_time_names_of_eagle3(tmp_path: Path) -> None:
    _, plan = _planned((eagle3, {"exclude": ["*self_attn*", "fc.weight"]}), tmp_path)
    expected = {
        "fc",
        "model.fc",
        "lm_head",
        "midlayer.self_attn.qkv_proj",
        "midlayer.self_attn.q_proj",
        "model.layers.*.self_attn.qkv_proj",
        "model.layers.*.self_attn.o_proj",
    }
    assert expected <= set(plan.ignore)


def test_c45_layers_are_counted_on_from_the_target(tmp_path: Path) -> None:
    _, plan = _planned((dflash, {}), tmp_path)
    qkv = {pattern for pattern in plan.ignore if pattern.endswith("qkv_proj")}
    assert qkv == {
        "layers.0.self_attn.qkv_proj",
        "layers.1.self_attn.qkv_proj",
        "model.layers.8.self_attn.qkv_proj",
        "model.layers.9.self_attn.qkv_proj",
    }


def test_no_pattern_is_global_where_layers_differ(tmp_path: Path) -> None:
    _, plan = _planned(CASES["dflash unknown depth"], tmp_path)
    assert not excludes_any(plan, "model.layers.36.mlp.down_proj")
    assert excludes_any(plan, "model.layers.36.self_attn.qkv_proj")
    assert "layers.1.mlp.down_proj" in plan.ignore


def excludes_any(plan: Plan, name: str) -> bool:
    return any(excludes(pattern, name) for pattern in plan.ignore)


def test_a_bare_name_that_would_hit_a_quantized_module_is_not_written(tmp_path: Path) -> None:
    """`layers.7` of the checkpoint is layer 13 of the engine here, where `layers.7` is the drafter's layer 1."""
    _, plan = _planned(CASES["dflash deeper than its target"], tmp_path)
    assert "layers.7.mlp.down_proj" not in plan.ignore
    assert not excludes_any(plan, "model.layers.7.mlp.down_proj")
    assert excludes_any(plan, "model.layers.13.mlp.down_proj")


def test_a_kept_name_inside_a_quantized_one_is_written_as_a_shell_pattern(tmp_path: Path) -> None:
    from dataclasses import replace

    from draftmill_worker.checkpoint.drafter import Module

    _, drafter = eagle3().open(tmp_path)
    drafter = replace(drafter, modules=(*drafter.modules, Module("fc1", ("fc1",), ("model.fc1",))))
    quantized = {module.name for module in drafter.modules} - {"fc", "lm_head"}
    patterns = ignore_list(drafter, quantized)
    assert "[f]c" in patterns or "[m]odel.fc" in patterns
    assert any(excludes(pattern, "model.fc") for pattern in patterns)
    assert not any(excludes(pattern, "model.fc1") for pattern in patterns)


def test_bare_numbers_that_may_mean_another_layer_are_refused(tmp_path: Path) -> None:
    """Eight draft layers, a target of six or more: `layers.7` may be the checkpoint's or the engine's."""
    layout = dflash(layers=8, num_target_layers=None)
    with pytest.raises(ProblemError) as caught:
        _planned((lambda: layout, {"exclude": ["layers.7.mlp.*"]}), tmp_path)
    assert caught.value.problem.slug == "target-depth-unknown"
    _planned((lambda: dflash(layers=8, num_target_layers=12), {"exclude": ["layers.7.mlp.*"]}), tmp_path)


def test_layers_that_cannot_be_named_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as caught:
        _planned((lambda: eagle3(layers=2), _ONE_LAYER), tmp_path)
    problem = caught.value.problem
    assert problem.slug == "target-depth-unknown"
    assert {offender.where for offender in problem.offenders} == {"layers.1.mlp.down_proj", "layers.1.self_attn.o_proj"}


def test_borrowed_and_tied_heads_are_ignored_though_not_stored(tmp_path: Path) -> None:
    """The engine builds them before it replaces them, and would build them quantized."""
    for name in ("dflash", "dspark", "draft_model tied", "eagle3 borrowed head"):
        _, plan = _planned(CASES[name], tmp_path / name)
        assert "lm_head" in plan.ignore


def test_runtime_modules_name_every_quantized_tensor_once(tmp_path: Path) -> None:
    drafter, plan = _planned(CASES["eagle3"], tmp_path)
    modules = runtime_modules(drafter, plan, 30)
    assert (
        RuntimeModule("model.layers.30.self_attn.qkv_proj", tuple(f"midlayer.self_attn.{x}_proj" for x in "qkv"), True)
        in modules
    )
    members = [member for module in modules if module.quantized for member in module.members]
    quantized = [tensor.name.removesuffix(".weight") for tensor in plan.tensors if tensor.fate == "quantized"]
    assert sorted(members) == sorted(quantized)


def test_qwen3_eagle3_asks_twice_for_q_k_v(tmp_path: Path) -> None:
    drafter, plan = _planned((lambda: eagle3(qwen3=True), {}), tmp_path)
    names = [module.name for module in runtime_modules(drafter, plan, 36)]
    assert "model.layers.36.qkv_proj" in names
    assert "model.layers.36.self_attn.qkv_proj" in names


@pytest.mark.vllm
class TestAgainstVllm:
    """vLLM's configuration classes read what is written, and answer for every module the engine builds."""

    @pytest.mark.parametrize("form", ["flat", "nested"])
    @pytest.mark.parametrize("format", MODELOPT)
    @pytest.mark.parametrize("name", CASES)
    def test_c19_engine_reads_exclusions_as_meant(self, tmp_path: Path, name: str, format: Format, form: str) -> None:
        if format is Format.FP8_PB_WO and CASES[name][1].get("lm_head"):
            with pytest.raises(ProblemError, match="lm-head-refused"):
                _planned(CASES[name], tmp_path, format)
            return
        drafter, plan = _planned(CASES[name], tmp_path, format)
        for depth in _depths(drafter):
            config = _engine_config(plan, form)
            _prepare(config, drafter, depth)
            for module in runtime_modules(drafter, plan, depth):
                assert config.is_layer_excluded(module.name) == (not module.quantized), (module, depth)

    @pytest.mark.parametrize("format", INTEGERS)
    @pytest.mark.parametrize("name", [name for name in CASES if name not in NEED_THE_DEPTH])
    def test_c19_engine_reads_exclusions_of_integers_as_meant(self, tmp_path: Path, name: str, format: Format) -> None:
        from vllm.model_executor.layers.quantization.compressed_tensors.utils import should_ignore_layer

        drafter, plan = _planned(CASES[name], tmp_path, format)
        for depth in _depths(drafter):
            config = _engine_config(plan, "flat")
            _prepare(config, drafter, depth)
            for module in runtime_modules(drafter, plan, depth):
                excluded = should_ignore_layer(module.name, config.ignore, config.packed_modules_mapping)
                assert excluded == (not module.quantized), (module, depth)

    @pytest.mark.parametrize("format", MODELOPT)
    def test_engine_chooses_the_method_and_algorithm(self, tmp_path: Path, format: Format) -> None:
        _, plan = _planned((eagle3, {}), tmp_path, format)
        config, flat = _engine_config(plan, "flat"), quantization_config(plan)
        assert config.get_name() == flat["quant_method"]
        assert config.quant_method == flat["quant_algo"]

    @pytest.mark.parametrize("format", INTEGERS)
    def test_engine_chooses_the_layout_of_integers(self, tmp_path: Path, format: Format) -> None:
        _, plan = _planned((eagle3, {}), tmp_path, format)
        config = _engine_config(plan, "flat")
        weights = config.target_scheme_map["Linear"]["weights"]
        assert config.get_name() == "compressed-tensors"
        assert config.quant_format == "pack-quantized"
        assert (weights.num_bits, weights.group_size, weights.symmetric) == (FORMATS[format].bits, 128, True)

    def test_families_build_the_modules_this_project_names(self) -> None:
        """The facts in `checkpoint/families` are those of the installed vLLM's sources."""
        import inspect

        from vllm.model_executor.models import llama_eagle3, qwen3_dflash, qwen3_dspark, qwen3_eagle3
        from vllm.v1.spec_decode import draft_model as proposer

        assert 'prefix="draft_model"' in inspect.getsource(proposer)
        assert 'maybe_prefix(prefix, "qkv_proj")' in inspect.getsource(qwen3_eagle3)
        assert "start_layer_id=target_layer_num" in inspect.getsource(llama_eagle3)
        head = inspect.getsource(qwen3_dflash.DFlashQwen3ForCausalLM.__init__)
        assert 'getattr(self.config, "has_own_lm_head", False)' in head
        dspark_init = inspect.getsource(qwen3_dspark.Qwen3DSparkForCausalLM.__init__)
        assert "quant_config" not in dspark_init
        assert "params_dtype=torch.float32" in inspect.getsource(qwen3_dspark.DSparkConfidenceHead)

    @given(st.text("ab.*[]?c", min_size=1, max_size=6), st.text("abc.", min_size=1, max_size=8))
    def test_excludes_is_the_engines_rule(self, pattern: str, name: str) -> None:
        from vllm.model_executor.layers.quantization.modelopt import ModelOptFp8Config

        config = ModelOptFp8Config("FP8", True, None, [pattern])
        assert excludes(pattern, name) == config.is_layer_excluded(name)


def _engine_config(plan: Plan, form: str) -> Any:
    from vllm.model_executor.layers.quantization import get_quantization_config

    flat = quantization_config(plan)
    cls: Any = get_quantization_config(flat["quant_method"])
    return cls.from_config(flat if form == "flat" else hf_quant_config(plan))


def _prepare(config: Any, drafter: Drafter, depth: int) -> None:
    """What the engine does to a drafter's quantization config before its modules are built."""
    from vllm.model_executor.models import gemma4_dspark, llama, qwen3
    from vllm.model_executor.models.qwen3_dflash import _add_global_draft_layer_exclusions

    if drafter.engine_offsets_ignore:
        _add_global_draft_layer_exclusions(config, depth, drafter.num_layers)
    classes: dict[str, Any] = {
        "LlamaForCausalLM": llama.LlamaForCausalLM,
        "Qwen3ForCausalLM": qwen3.Qwen3ForCausalLM,
        "Gemma4DSparkForCausalLM": gemma4_dspark.Gemma4DSparkForCausalLM,
    }
    if drafter.engine_class in classes:
        model = classes[drafter.engine_class]
        config.apply_vllm_mapper(model.hf_to_vllm_mapper.get_rename_mapper())
        config.packed_modules_mapping = model.packed_modules_mapping

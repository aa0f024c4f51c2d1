import warnings
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions
from draftmill.plans import Plan
from draftmill_worker.quantize.config import hf_quant_config, quantization_config
from draftmill_worker.quantize.plan import make_plan
from tests.unit.checkpoint.layouts import eagle3


@pytest.fixture(params=list(Format))
def plan(tmp_path: Path, request: pytest.FixtureRequest) -> Plan:
    checkpoint, drafter = eagle3().open(tmp_path)
    return make_plan(checkpoint, drafter, request.param, QuantizeOptions())


def test_c19_both_forms_say_the_same(plan: Plan) -> None:
    flat, nested = quantization_config(plan), hf_quant_config(plan)
    if nested is None:
        assert flat["quant_method"] == "compressed-tensors"
        assert flat["ignore"] == list(plan.ignore)
        return
    quantization = nested["quantization"]
    assert flat["quant_algo"] == quantization["quant_algo"] == FORMATS[plan.format].quant_algo
    assert flat["ignore"] == quantization["exclude_modules"] == list(plan.ignore)
    assert flat.get("group_size") == quantization.get("group_size") == FORMATS[plan.format].group
    assert flat["kv_cache_scheme"] is None
    assert quantization["kv_cache_quant_algo"] is None
    assert flat["producer"] == nested["producer"]


def test_one_algorithm_and_no_layer_map(plan: Plan) -> None:
    text = str(quantization_config(plan)) + str(hf_quant_config(plan))
    assert "MIXED_PRECISION" not in text
    assert "quantized_layers" not in text


# ModelOpt's own conversion has no group for fp8_pc_pt.
@pytest.mark.parametrize("format", [Format.FP8, Format.NVFP4, Format.W4A16_NVFP4, Format.MXFP8])
def test_groups_are_modelopts(tmp_path: Path, format: Format) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ModelOpt warns of a newer transformers, which this part does not touch
        from modelopt.torch.export.convert_hf_config import _quant_algo_to_group_config, convert_hf_quant_config_format

    checkpoint, drafter = eagle3().open(tmp_path)
    plan = make_plan(checkpoint, drafter, format, QuantizeOptions())
    nested = hf_quant_config(plan)
    assert nested is not None
    theirs: dict[str, Any] = convert_hf_quant_config_format(nested)
    if format is Format.MXFP8:
        # It writes groups of this algorithm for mixed checkpoints only.
        group = _quant_algo_to_group_config("MXFP8", 32) | {"targets": ["Linear"]}
        theirs["config_groups"] = {"group_0": group}
    assert quantization_config(plan)["config_groups"] == theirs["config_groups"]


def test_c31_activation_precision_is_stated(plan: Plan) -> None:
    group = quantization_config(plan)["config_groups"]["group_0"]
    expected = {"static": {"dynamic": False}, "dynamic": {"dynamic": True, "strategy": "token"}, "none": None}
    if plan.format is Format.MXFP8:
        expected["dynamic"] = {"dynamic": False, "group_size": 32}
    if plan.format is Format.FP8_PB_WO:
        expected["dynamic"] = {"dynamic": True, "strategy": "group", "group_size": 128}
    stated = group.get("input_activations")
    wanted = expected[FORMATS[plan.format].activation]
    assert stated is None if wanted is None else stated | wanted == stated


@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("format", [Format.INT4_G128, Format.INT8_G128])
def test_the_library_reads_what_integers_say(tmp_path: Path, format: Format, head: bool) -> None:
    """compressed-tensors' own model of a configuration takes it, and packs what it describes."""
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from torch import nn

    checkpoint, drafter = eagle3().open(tmp_path)
    plan = make_plan(checkpoint, drafter, format, QuantizeOptions(lm_head=head))
    config = QuantizationConfig.model_validate(quantization_config(plan))
    [scheme] = config.config_groups.values()
    assert config.format == scheme.format == "pack-quantized"
    assert scheme.targets == (["Linear", "re:.*lm_head$"] if head else ["Linear"])
    assert PackedQuantizationCompressor.can_compress(nn.Linear, scheme)
    stored = {output.name.rpartition(".")[2] for tensor in plan.tensors for output in tensor.outputs}
    assert set(PackedQuantizationCompressor.compression_param_names(scheme)) <= stored
    assert (scheme.weights.num_bits, scheme.weights.group_size) == (FORMATS[format].bits, 128)


def test_the_library_reads_what_blocks_say(tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationArgs

    checkpoint, drafter = eagle3().open(tmp_path)
    plan = make_plan(checkpoint, drafter, Format.FP8_PB_WO, QuantizeOptions())
    group = quantization_config(plan)["config_groups"]["group_0"]
    assert QuantizationArgs.model_validate(group["weights"]).block_structure == [128, 128]
    assert QuantizationArgs.model_validate(group["input_activations"]).group_size == 128

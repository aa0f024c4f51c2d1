"""The quantization configuration an engine reads, in both places it may look."""

from importlib.metadata import version
from typing import Any

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.plans import Fate, Plan
from draftmill_worker.quantize.exclusions import COMPRESSED_TENSORS

_DYNAMIC: dict[Format, dict[str, Any]] = {
    Format.FP8_PC_PT: {"dynamic": True, "strategy": "token"},
    # ModelOpt writes the same as for the weights. Engines go by the algorithm's name.
    Format.MXFP8: {},
    Format.FP8_PB_WO: {"dynamic": True, "strategy": "group"},
}
"""How a format says that activations are quantized at run time."""


def quantization_config(plan: Plan) -> dict[str, Any]:
    """config.json's `quantization_config`, flat. vLLM dispatches on quant_method and quant_algo and reads `ignore`."""
    spec = FORMATS[plan.format]
    if spec.quant_method == COMPRESSED_TENSORS:
        return _compressed_tensors(plan, spec)
    config = {
        "quant_method": spec.quant_method,
        "quant_algo": spec.quant_algo,
        "config_groups": {"group_0": _group(spec)},
        "ignore": list(plan.ignore),
        "kv_cache_scheme": None,
        "producer": _producer(),
    }
    return config if spec.group is None else config | {"group_size": spec.group}


def _compressed_tensors(plan: Plan, spec: FormatSpec) -> dict[str, Any]:
    """As the library's `QuantizationConfig` is stored. The first group whose target matches a module wins.

    A target is a class name, of which `Linear` is a part in all of vLLM's linear layers, but not in its heads.
    """
    heads = [tensor for tensor in plan.tensors if tensor.fate is Fate.QUANTIZED and "lm_head" in tensor.name]
    weights = {
        "num_bits": spec.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": spec.group,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    group = {
        "targets": ["Linear", *(["re:.*lm_head$"] if heads else [])],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": spec.quant_algo,
    }
    return {
        "quant_method": spec.quant_method,
        "format": spec.quant_algo,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": list(plan.ignore),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }


def hf_quant_config(plan: Plan) -> dict[str, Any] | None:
    """hf_quant_config.json, nested: the same, under the names older readers look for. None where no reader does."""
    spec = FORMATS[plan.format]
    if spec.quant_method == COMPRESSED_TENSORS:
        return None
    quantization: dict[str, Any] = {
        "quant_algo": spec.quant_algo,
        "kv_cache_quant_algo": None,
        "exclude_modules": list(plan.ignore),
    }
    if spec.group is not None:
        quantization["group_size"] = spec.group
    return {"producer": _producer(), "quantization": quantization}


def _group(spec: FormatSpec) -> dict[str, Any]:
    """What weights and activations are, as ModelOpt 0.47's `convert_hf_quant_config_format` writes it.

    A weight-only format has no `input_activations`: without that mark, hardware with FP4 units would quantize
    activations by itself.
    """
    number: dict[str, Any] = {"dynamic": False, "num_bits": spec.bits, "type": "float"}
    if spec.group is not None:
        number["group_size"] = spec.group
    group: dict[str, Any] = {"weights": dict(number), "targets": ["Linear"]}
    if any(scale.per == "channel" for scale in spec.scales):
        group["weights"]["strategy"] = "channel"
    if spec.name is Format.FP8_PB_WO:
        group["weights"] |= {"strategy": "block", "block_structure": [spec.group, spec.group], "group_size": None}
    if spec.activation != "none":
        group["input_activations"] = dict(number)
    if spec.activation == "dynamic":
        group["input_activations"] |= _DYNAMIC[spec.name]
    return group


def _producer() -> dict[str, str]:
    return {"name": "draftmill", "version": version("draftmill")}

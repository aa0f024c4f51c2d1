"""Runs apart from the worker: questions about quantization configurations in, vLLM's answers out, as JSON lists.

`python -m draftmill_worker.verify.engine_view < questions`. The last line of the output is the answers.
"""

import json
import sys
from typing import Any

from draftmill_worker.verify.embedded import PACKED

NEEDED = (
    "vllm.model_executor.layers.quantization.modelopt",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3_dflash",
)
# The drafters whose layers are offset, and the one whose class passes its fused names on.
_ALIASED = ("dflash", "dspark")
_STANDALONE = "draft_model"
_COMPRESSED = "compressed-tensors"
_GEMMA4 = "gemma4_dspark"
_EMBEDDED = "mtp"


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """method, algorithm, config_class and what is excluded; or `refusal` with what vLLM raised."""
    from vllm.model_executor.layers.quantization import get_quantization_config

    quantization = question["quantization"]
    try:
        method = _method(quantization)
        kind = get_quantization_config(method)
        algorithm = _algorithm(kind.from_config(dict(quantization)))
        excluded = {
            f"{query['depth']}: {name}": _excluded(config, name)
            for query in question["queries"]
            for config in [_configured(kind.from_config(dict(quantization)), query)]
            for name in query["names"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        return {"refusal": f"{type(error).__name__}: {error}"}
    return {"method": method, "algorithm": algorithm, "config_class": kind.__name__, "excluded": excluded}


def _algorithm(config: Any) -> str:
    return str(config.quant_format if config.get_name() == _COMPRESSED else config.quant_method)


def _excluded(config: Any, name: str) -> bool:
    """compressed-tensors' class goes by the module's class name too: a target may be one."""
    if config.get_name() != _COMPRESSED:
        return bool(config.is_layer_excluded(name))
    from torch import nn

    kind = "ParallelLMHead" if name.endswith("lm_head") else "ColumnParallelLinear"
    return config.get_scheme_dict(type(kind, (nn.Module,), {})(), name) is None


def _method(quantization: dict[str, Any]) -> str:
    """As ModelConfig decides it: the first class that claims the configuration, else the name it gives itself."""
    from vllm.model_executor.layers.quantization import get_quantization_config

    # The ModelOpt ones in vLLM's own order of preference.
    for name in ("modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"):
        claimed = get_quantization_config(name).override_quantization_method(quantization, None)
        if claimed is not None:
            return str(claimed)
    return str(quantization["quant_method"])


def _configured(config: Any, query: dict[str, Any]) -> Any:
    """What the drafter's model class does to its configuration before it asks."""
    if query["family"] == _STANDALONE:
        from vllm.model_executor.models.llama import LlamaForCausalLM

        # As SupportsQuant does it when the model is made.
        config.apply_vllm_mapper(LlamaForCausalLM.hf_to_vllm_mapper.get_rename_mapper())
        config.packed_modules_mapping.update(LlamaForCausalLM.packed_modules_mapping)
    elif query["family"] == _EMBEDDED:
        from vllm.model_executor.models.utils import WeightsMapper

        # As `configure_quant_config` does it for a class without SupportsQuant, the target's and then the block's.
        config.apply_vllm_mapper(WeightsMapper(orig_to_new_prefix=dict(query["renames"])))
        config.packed_modules_mapping.update({name: list(parts) for name, parts in PACKED.items()})
    elif query["family"] == _GEMMA4:
        from vllm.model_executor.models.gemma4_dspark import Gemma4DSparkForCausalLM

        # As `configure_quant_config` does it for a class without SupportsQuant.
        config.apply_vllm_mapper(Gemma4DSparkForCausalLM.hf_to_vllm_mapper.get_rename_mapper())
        config.packed_modules_mapping = dict(Gemma4DSparkForCausalLM.packed_modules_mapping)
    elif query["family"] in _ALIASED:
        from vllm.model_executor.models import qwen3_dflash

        qwen3_dflash._add_global_draft_layer_exclusions(config, query["depth"], query["layers"])
    return config


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps([answer(question) for question in json.load(sys.stdin)]) + "\n")

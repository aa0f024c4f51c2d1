"""config.json and hf_quant_config.json: one algorithm, said twice alike, and nothing else of the source changed."""

from collections.abc import Iterator
from typing import Any

from draftmill.reports import CheckStatus
from draftmill_worker.checkpoint.headers import FLOAT_DTYPES
from draftmill_worker.verify import compressed
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.view import HF_QUANT_CONFIG, View, same_json

DTYPE_KEYS = ("torch_dtype", "dtype")
QUANTIZATION_KEYS = ("quantization_config", "compression_config")


def walk(value: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """(path, key, value) of every entry of every object in a JSON value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"{path}.{key}".lstrip("."), key, item
            yield from walk(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from walk(item, f"{path}[{number}]")


@check(
    "one-quant-algo",
    reads="config.json, hf_quant_config.json",
    after=("documents-readable",),
    proves="quant_method and quant_algo are the format's, everywhere they are said; never MIXED_PRECISION by accident",
)
def one_quant_algo(view: View) -> Result:
    wanted = {"quant_method": view.spec.quant_method, view.spec.algo_key: view.spec.quant_algo}
    result = Result(evidence=dict(wanted))
    for key, value in wanted.items():
        if view.quantization.get(key) != value:
            result.blame(f"config.json: quantization_config.{key}", f"{value} expected", view.quantization.get(key))
    for name, document in (("config.json", view.config), (HF_QUANT_CONFIG, view.hf_quant_config)):
        for path, key, value in walk(document):
            # `format` says something else elsewhere.
            ours = key in wanted and (key != "format" or path.startswith("quantization_config."))
            if ours and value != wanted[key] and path != f"quantization_config.{key}":
                result.blame(f"{name}: {path}", f"{wanted[key]} expected", value)
            if key in QUANTIZATION_KEYS and path != "quantization_config":
                result.blame(f"{name}: {path}", "a second quantization configuration")
    return result


@check(
    "no-layer-overrides",
    reads="config.json, hf_quant_config.json",
    after=("documents-readable",),
    proves="no per-layer scheme leaks in: no `quantized_layers`, and one group for all linear layers",
)
def no_layer_overrides(view: View) -> Result:
    result = Result()
    for name, document in (("config.json", view.config), (HF_QUANT_CONFIG, view.hf_quant_config)):
        for path, key, value in walk(document):
            if key == "quantized_layers":
                result.blame(f"{name}: {path}", "per-layer schemes would override the one algorithm")
            elif key == "config_groups":
                groups = value if isinstance(value, dict) else {}
                targets = [group.get("targets") for group in groups.values() if isinstance(group, dict)]
                result.evidence["targets"] = targets
                wanted = [["Linear", *_head_targets(view)]]
                if targets != wanted:
                    result.blame(f"{name}: {path}", f"one group for {' and '.join(wanted[0])} expected", targets)
    return result


def _head_targets(view: View) -> list[str]:
    """compressed-tensors' `Linear` is in the names of all linear classes; a head's class is none of them."""
    heads = [linear for linear in view.linears if linear.name.endswith("lm_head")]
    return ["re:.*lm_head$"] if heads and view.spec.quant_method == compressed.METHOD else []


@check(
    "hf-quant-config-agrees",
    reads="config.json, hf_quant_config.json",
    after=("one-quant-algo",),
    proves="the two files that engines read say the same: algorithm, exclusions, group size, no KV cache scheme",
)
def hf_quant_config_agrees(view: View) -> Result:
    nested = view.hf_quant_config.get("quantization")
    nested = nested if isinstance(nested, dict) else {}
    excluded = nested.get("exclude_modules")
    result = Result(evidence={"exclusions": len(view.ignore), "group_size": view.spec.group})
    if view.spec.quant_method == compressed.METHOD:
        if HF_QUANT_CONFIG in view.files:
            result.blame(HF_QUANT_CONFIG, "a configuration of ModelOpt beside one of compressed-tensors")
        if view.quantization.get("kv_cache_scheme") is not None:
            result.blame("kv_cache_scheme", "no scale of the KV cache is stored")
        return result
    if nested.get("quant_algo") != view.spec.quant_algo:
        result.blame(f"{HF_QUANT_CONFIG}: quant_algo", f"{view.spec.quant_algo} expected", nested.get("quant_algo"))
    if not isinstance(excluded, list) or not same_json(sorted(map(str, excluded)), sorted(view.ignore)):
        result.blame(f"{HF_QUANT_CONFIG}: exclude_modules", "differs from config.json's ignore")
    for name, section in (("config.json", view.quantization), (HF_QUANT_CONFIG, nested)):
        if not same_json(section.get("group_size"), view.spec.group):
            result.blame(f"{name}: group_size", f"{view.spec.group} expected", section.get("group_size"))
    for key, section in (("kv_cache_scheme", view.quantization), ("kv_cache_quant_algo", nested)):
        if section.get(key) is not None:
            result.blame(key, "no scale of the KV cache is stored", str(section[key]))
    return result


@check(
    "config-preserved",
    reads="config.json of source and variant",
    after=("documents-readable",),
    proves="every field but dtype and quantization is the source's, auto_map and unknown ones too",
)
def config_preserved(view: View) -> Result:
    before, after = _rest(view.source_checkpoint.config), _rest(view.config)
    result = Result(evidence={"fields": len(before)})
    for key in sorted(before.keys() | after.keys()):
        if key not in before or key not in after or not same_json(before[key], after[key]):
            result.blame(f"config.json: {key}", "differs from the source")
    return result


def _rest(config: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _rest(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in QUANTIZATION_KEYS and not (key in DTYPE_KEYS and isinstance(value, str))
    }


@check(
    "dtype-declared",
    reads="config.json, headers, plan",
    after=("documents-readable", "dtypes-and-shapes"),
    proves="the dtype said is the dtype asked for, and float16, whose range drafters overflow, only where asked",
)
def dtype_declared(view: View) -> Result:
    source = view.source_checkpoint.config
    declared = {path: value for path, key, value in walk(view.config) if key in DTYPE_KEYS and isinstance(value, str)}
    halves = sorted(name for name, tensor in view.tensors.items() if tensor.dtype == "F16")
    result = Result(evidence={"declared": declared, "float16_tensors": len(halves)})
    result.evidence["stored"] = sorted({info.dtype for info in view.tensors.values() if info.dtype in FLOAT_DTYPES})
    for path, value in declared.items():
        wanted = view.plan.dtype
        if wanted != "keep" and value.removeprefix("torch.") != wanted:
            result.blame(f"config.json: {path}", f"{wanted} expected", value)
    if view.plan.dtype == "keep":
        asked = {path: value for path, key, value in walk(source) if key in DTYPE_KEYS and isinstance(value, str)}
        if declared != asked:
            result.blame("config.json", "dtype differs from the source, which was to be kept", str(declared))
    elif not any(key in view.config for key in DTYPE_KEYS):
        result.blame("config.json", "no dtype is said: engines would choose one")
    if view.plan.dtype == "bfloat16":
        for name in halves:
            result.blame(name, "float16 was not asked for")
    elif not result.offenders and (halves or "float16" in declared.values()):
        result.status = CheckStatus.WARN
        result.evidence["warning"] = "float16: a drafter's fused hidden states can overflow in it"
    return result

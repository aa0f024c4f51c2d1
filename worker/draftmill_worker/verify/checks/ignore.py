"""Exclusions: derived from what was stored, matched as the engine matches, and read back by the engine itself."""

from collections.abc import Iterator

from draftmill.plans import Family
from draftmill_worker.verify import compressed, embedded, engine
from draftmill_worker.verify.registry import Result, check, skipped
from draftmill_worker.verify.runtime import (
    RuntimeModule,
    as_engine_reads,
    excluded,
    layout_of,
    packed_mapping,
    runtime_modules,
    target_depths,
)
from draftmill_worker.verify.view import View


@check(
    "exclusions-present",
    reads="config.json, plan",
    after=("documents-readable",),
    proves="`ignore` is a list of names, the plan's, and not empty while linear layers are kept",
)
def exclusions_present(view: View) -> Result:
    found = view.quantization.get("ignore")
    kept = [tensor.name for tensor in view.unquantized if tensor.name.endswith(".weight") and len(tensor.shape) == 2]
    result = Result(evidence={"exclusions": len(view.ignore), "kept_matrices": len(kept)})
    if not isinstance(found, list) or len(view.ignore) != len(found):
        result.blame("config.json: quantization_config.ignore", "a list of strings expected")
    elif kept and not found:
        result.blame("config.json: quantization_config.ignore", "empty, though matrices are kept", kept)
    elif tuple(found) != view.plan.ignore:
        result.blame("config.json: quantization_config.ignore", "differs from the plan's list")
    return result


@check(
    "ignore-resolves",
    reads="config.json, plan",
    after=("exclusions-present", "names-complete"),
    proves="by vLLM's rules all kept modules are excluded and no quantized one, by checkpoint's and engine's names",
)
def ignore_resolves(view: View) -> Result:
    result = Result(evidence={"engine_names": 0, "target_layers": list(_depths(view))})
    seen: set[tuple[str, str]] = set()
    for depth in _depths(view):
        ignore = _read(view, depth)
        for module in _modules(view, depth):
            result.evidence["engine_names"] += 1
            for where, message in _faults(view, module, ignore):
                if (where, message) not in seen:
                    seen.add((where, message))
                    result.blame(where, message)
    return result


def _faults(view: View, module: RuntimeModule, ignore: list[str]) -> Iterator[tuple[str, str]]:
    """(module, what is wrong) for one module of the engine."""
    rule = compressed.excluded if _compressed(view) else excluded
    inside = _quantized(view).intersection(module.parts)
    if inside and len(inside) < len(module.parts):
        yield module.name, "the engine fuses quantized and kept parts"
        return
    if inside and not module.quantizable:
        yield module.name, "quantized, yet the engine builds it without a quantization configuration"
    try:
        out = rule(module.name, ignore, _packed(view))
    except ValueError as error:
        yield module.name, str(error)
        return
    if inside and out:
        yield module.name, "quantized, yet the engine would build it unquantized"
    if not inside and module.quantizable and not out:
        yield module.name, "kept, yet the engine would build it quantized"
    # A target's class renames the list in place, for the engine alone.
    stored = view.ignore if _embedded(view) else ignore
    for part in module.parts if module.quantizable else ():
        if rule(part, stored, {}) == bool(inside):
            yield part, "by its checkpoint name it is read otherwise than by the engine's"


@check(
    "engine-reads-config",
    reads="config.json, through vLLM's own configuration class in a process of its own",
    after=("ignore-resolves", "layers-present", "one-quant-algo", "no-layer-overrides", "hf-quant-config-agrees"),
    proves="vLLM takes the configuration, resolves the same method, and excludes exactly the kept modules",
)
def engine_reads_config(view: View) -> Result:
    build = engine.build()
    if build is None:
        return skipped("vLLM is not installed")
    queries, expected = engine_queries(view)
    return _judge(view, engine.ask(view.quantization, queries, build, view.cache), expected)


def engine_queries(view: View) -> tuple[list[engine.Query], dict[str, bool]]:
    """What to ask vLLM, per depth of the target, and the right answer by `<depth>: <name>`."""
    expected: dict[str, bool] = {}
    queries = []
    for depth in _depths(view):
        modules = _modules(view, depth)
        asked = {module.name: _quantized(view).isdisjoint(module.parts) for module in modules if module.quantizable}
        renames = tuple(embedded.renames(view.settings).items()) if _embedded(view) else ()
        queries.append(engine.Query(_layout(view), depth, _layers(view), tuple(sorted(asked)), renames))
        expected |= {f"{depth}: {name}": out for name, out in asked.items()}
    return queries, expected


def _judge(view: View, answer: engine.Answer, expected: dict[str, bool]) -> Result:
    result = Result(evidence={"engine": answer.build, "cached": answer.cached, "modules": len(expected)})
    if answer.unavailable is not None:
        return skipped("vLLM gave no answer", engine=answer.build, because=answer.unavailable)
    result.evidence["config_class"] = answer.config_class
    if answer.refusal is not None:
        result.blame("config.json: quantization_config", f"vLLM refuses it: {answer.refusal}")
        return result
    if (answer.method, answer.algorithm) != (view.spec.quant_method, view.spec.quant_algo):
        result.blame("config.json: quantization_config", f"vLLM resolves {answer.method}, {answer.algorithm}")
    for name, out in expected.items():
        found = answer.excluded.get(name)
        if found != out:
            result.blame(name, "excluded" if out else "quantized", f"vLLM: {found}")
    return result


def _compressed(view: View) -> bool:
    return view.spec.quant_method == compressed.METHOD


def _embedded(view: View) -> bool:
    return view.plan.family is Family.MTP


def _depths(view: View) -> tuple[int, ...]:
    return (embedded.target_layers(view.settings),) if _embedded(view) else target_depths(view.settings)


def _modules(view: View, depth: int) -> tuple[RuntimeModule, ...]:
    if _embedded(view):
        return embedded.runtime_modules(_matrices(view), view.settings, view.spec.quant_method)
    return runtime_modules(view.plan.family, _matrices(view), view.settings, depth)


def _read(view: View, depth: int) -> list[str]:
    if _embedded(view):
        return embedded.as_engine_reads(view.ignore, view.settings)
    if _compressed(view):
        # No class changes a list of whole names.
        return list(view.ignore)
    return as_engine_reads(_layout(view), view.ignore, depth, _layers(view))


def _packed(view: View) -> dict[str, tuple[str, ...]]:
    return embedded.PACKED if _embedded(view) else packed_mapping(_layout(view))


def _layout(view: View) -> str:
    return layout_of(view.plan.family, view.settings)


def _matrices(view: View) -> list[str]:
    if _embedded(view):
        # The target's too, also those in files that the plan does not list tensor by tensor.
        tensors = view.source_checkpoint.tensors.values()
        return [tensor.name.removesuffix(".weight") for tensor in tensors if len(tensor.shape) >= 2]
    return [
        tensor.name.removesuffix(".weight")
        for tensor in view.plan.tensors
        if tensor.name.endswith(".weight") and len(tensor.shape) == 2
    ]


def _quantized(view: View) -> frozenset[str]:
    return frozenset(linear.name for linear in view.linears) | {*view.plan.merged}


def _layers(view: View) -> int:
    layers = view.settings.get("num_hidden_layers")
    return layers if isinstance(layers, int) else 0

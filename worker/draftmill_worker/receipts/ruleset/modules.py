"""That each module of the drafter is in the engine what the plan says."""

from draftmill.plans import Family, Head
from draftmill.receipts import ModuleRecord
from draftmill_worker.receipts.expected import (
    PLAIN_DTYPES,
    SCHEMES,
    UNQUANTIZED,
    BuiltModule,
    Scheme,
    is_head,
    records,
)
from draftmill_worker.receipts.rule import Case, Found, dtype_of, one_of, rule, viewed


@rule(
    "modules-recorded",
    proves="every module whose fate the plan decides was seen in the engine",
)
def modules_recorded(case: Case) -> Found:
    found = Found("the target alone")
    if not case.drafts:
        return found
    view = viewed(found, case)
    expected = [built for built in case.expected.modules if built.module.keep is None and not is_head(built)]
    drafter = case.expected.drafter
    # vLLM gives Medusa no quantization config, so that its modules have no names there.
    named = bool(expected) or (drafter is not None and drafter.family is Family.MEDUSA)
    found.require(named, "drafter", "no module of the drafter is known")
    seen = set() if view is None else {built for _, built in records(view, case.expected.modules) if built}
    for built in expected:
        found.require(built in seen, built.module.name, f"is not among the engine's modules, as {one_of(built.asked)}")
    found.detail = f"{len(expected)} modules"
    return found


@rule(
    "quantized-as-planned",
    proves="what the plan quantizes is quantized in the engine: method, quantization keys, kernel, stored dtype",
)
def quantized_as_planned(case: Case) -> Found:
    plan = case.expected.plan
    found = Found("no module is planned to be quantized")
    if not case.drafts or plan is None:
        return found
    view = viewed(found, case)
    if view is None:
        return found
    pairs = [(module, built) for module, built in records(view, case.expected.modules) if built and built.quantized]
    scheme = SCHEMES[plan.format]
    for module, built in pairs:
        _check_scheme(found, module, scheme, built)
    found.detail = f"{len(pairs)} modules as {plan.format}"
    found.require(bool(pairs), "view.modules", "no quantized module was seen")
    return found


def _check_scheme(found: Found, module: ModuleRecord, scheme: Scheme, built: BuiltModule) -> None:
    name = built.module.name
    if module.method not in scheme.methods:
        found.blame(name, f"the plan quantizes it, and the engine runs it with {module.method}", module.weight_dtype)
        return
    for role, wanted in (("weight", scheme.weight), ("activation", scheme.activation)):
        seen = module.scheme.get(role, "")
        found.require(seen == wanted, name, f"its {role} must be {wanted}", seen)
    found.require(module.kernel is not None, name, "its kernel was not recorded")
    dtype = dtype_of(module.weight_dtype)
    holds = scheme.holds(dtype, module.kernel)
    found.require(holds, name, f"must be stored as {one_of(scheme.dtypes)}", dtype)


@rule(
    "kept-as-planned",
    proves="what the plan keeps, or does not know, is not quantized in the engine: an `ignore` that hit nothing shows",
)
def kept_as_planned(case: Case) -> Found:
    found = Found("the target alone")
    if not case.drafts:
        return found
    view = viewed(found, case)
    if view is None:
        return found
    kept = [
        (module, built)
        for module, built in records(view, case.expected.modules)
        if built is None or not (built.quantized or _is_judged_elsewhere(built, case))
    ]
    for module, built in kept:
        name = built.module.name if built else module.name
        found.require(module.method in UNQUANTIZED, name, f"is kept, and the engine runs it with {module.method}")
        dtype = dtype_of(module.weight_dtype)
        found.require(dtype in PLAIN_DTYPES, name, "is kept, and the engine stores it in another dtype", dtype)
    found.detail = f"{len(kept)} modules"
    return found


def _is_judged_elsewhere(built: BuiltModule, case: Case) -> bool:
    """A borrowed head is the target's, which may be quantized itself; another may have been quantized on loading."""
    drafter = case.expected.drafter
    borrowed = drafter is not None and drafter.head is Head.BORROWED
    return is_head(built) and (borrowed or case.draft_head_asked)


@rule(
    "scales-sound",
    proves="every quantized module has its scales, finite and positive, none on the value it had before loading",
)
def scales_sound(case: Case) -> Found:
    found = Found("no module is quantized")
    if not case.drafts:
        return found
    view = viewed(found, case)
    if view is None:
        return found
    plan = case.expected.plan
    needed = SCHEMES[plan.format].scales if plan is not None else frozenset()
    quantized = [pair for pair in records(view, case.expected.modules) if pair[0].method not in UNQUANTIZED]
    for module, built in quantized:
        name = built.module.name if built else module.name
        missing = needed - module.scales.keys()
        found.require(not missing, name, f"has no {', '.join(sorted(missing))}")
        for scale, facts in module.scales.items():
            # Rows that pad a vocabulary have a zero scale.
            may_be_zero = built is not None and is_head(built)
            value = f"{facts.get('min')} to {facts.get('max')}"
            found.require(_sound(facts, may_be_zero), f"{name}.{scale}", "not finite and positive", value)
    if quantized:
        found.detail = f"{len(quantized)} modules"
    return found


def _sound(facts: dict[str, object], may_be_zero: bool) -> bool:
    least, most = facts.get("min"), facts.get("max")
    if facts.get("finite") is not True or facts.get("sentinel") is not False:
        return False
    if not isinstance(least, int | float) or not isinstance(most, int | float):
        return False
    if facts.get("dtype") == "torch.uint8":
        # E8M0 codes: 0 is 2^-127, the scale of an all-zero block; 255 is NaN.
        return least >= 0 and 0 < most < 255
    return most > 0 and (least > 0 or (may_be_zero and least == 0))


@rule(
    "medusa-unquantized",
    proves="a medusa is not quantized: vLLM gives it no quantization config and drops its scales without a word",
)
def medusa_unquantized(case: Case) -> Found:
    drafter = case.expected.drafter
    medusa = drafter is not None and drafter.family is Family.MEDUSA
    found = Found("medusa" if medusa else "another family")
    found.require(not medusa or case.expected.plan is None, "plan", "the engine does not read a quantized medusa")
    return found

"""The plan: every tensor's one fate and one reason, decided from headers alone."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import translate

from draftmill.formats import FORMATS, Format
from draftmill.jobs import QuantizeOptions, scale_search_faults
from draftmill.plans import Family, Fate, OutputTensor, Plan, TensorPlan, UntouchedFile
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.drafter import Drafter, Module
from draftmill_worker.checkpoint.families.reading import keep_reason
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, FLOAT_DTYPES, TensorInfo
from draftmill_worker.quantize.exclusions import exclusions
from draftmill_worker.quantize.formats import scheme_for

QUANTIZED = "2-D linear"
MERGED = "quantized already: kept byte for byte"
TARGET = "target: kept byte for byte"
_CAST_TO = {"bfloat16": "BF16", "float16": "F16"}


@dataclass
class _Draft:
    """The plan in the making."""

    checkpoint: Checkpoint
    drafter: Drafter
    format: Format
    options: QuantizeOptions
    excluded: Mapping[str, str]
    """Pattern that excludes a tensor, by its name."""
    findings: Findings
    kept: dict[str, str] = field(default_factory=dict)
    """Reason by tensor name, for the weights of kept modules."""
    quantized: dict[str, str | None] = field(default_factory=dict)
    """Fused group by tensor name."""
    modules: set[str] = field(default_factory=set)
    """Names of quantized modules."""
    merged: set[str] = field(default_factory=set)
    """Names of modules that were quantized before."""


def make_plan(checkpoint: Checkpoint, drafter: Drafter, format: Format, options: QuantizeOptions) -> Plan:
    """The plan for `drafter`, read from `checkpoint`.

    Raises `family-not-quantizable`, `scale-search-refused`, `unused-exclude`, `lm-head-refused`, `mixed-fused-group`,
    `shape-not-divisible`, `nothing-to-quantize` or `target-depth-unknown`, with every offender of the kinds before
    `nothing-to-quantize`.
    """
    if drafter.family is Family.MEDUSA:
        raise _medusa(drafter)
    findings = Findings()
    for fault in scale_search_faults(format, options):
        findings.add("scale-search-refused", "quantize.nvfp4_scale_search", fault)
    if drafter.target is not None:
        # One configuration says the dtype of target and drafter.
        options = options.model_copy(update={"dtype": "keep"})
    draft = _Draft(checkpoint, drafter, format, options, _excluded(checkpoint, drafter, options, findings), findings)
    no_head = drafter.lm_head_refusal or scheme_for(format).lm_head_refusal
    if options.lm_head and no_head is not None:
        findings.add("lm-head-refused", "lm_head", no_head)
    for module in drafter.modules:
        _decide(draft, module)
    findings.raise_any()
    if not draft.modules:
        raise ProblemError("nothing-to-quantize", "every tensor is kept: loosen the exclude patterns")
    return _assembled(draft)


def _decide(draft: _Draft, module: Module) -> None:
    if _is_merged(draft, module):
        draft.merged.add(module.name)
        return
    weights = [f"{member}.weight" for member in module.members]
    reason = _keep_reason(draft, module, weights)
    if reason is not None:
        draft.kept |= dict.fromkeys(weights, reason)
        return
    scheme = scheme_for(draft.format)
    for weight in weights:
        shape = draft.checkpoint.tensors[weight].shape
        followed = module.fused and weight != weights[-1]
        refusal = scheme.refusal(shape) or (scheme.followed_refusal(shape) if followed else None)
        if refusal is not None:
            message = f"{refusal}, as {draft.format} needs; add {weight!r} to exclude to keep it"
            draft.findings.add("shape-not-divisible", weight, message, list(shape))
    draft.quantized |= dict.fromkeys(weights, module.name if module.fused else None)
    draft.modules.add(module.name)


def _is_merged(draft: _Draft, module: Module) -> bool:
    """Whether the module is quantized already. Of a fused one all parts must be, or none."""
    existing = draft.drafter.existing
    inside = [member for member in module.members if existing is not None and member in existing.modules]
    if inside and len(inside) < len(module.members):
        others = [member for member in module.members if member not in inside]
        message = f"{', '.join(inside)} quantized already, {', '.join(others)} not, yet the engine fuses them"
        draft.findings.add("mixed-fused-group", module.name, message, inside)
    return bool(inside)


def _keep_reason(draft: _Draft, module: Module, weights: list[str]) -> str | None:
    """Why the whole module is kept; None when it is to be quantized."""
    if module.keep is not None:
        return module.keep
    method = FORMATS[draft.format].quant_method
    if method in module.plain_under:
        return f"the engine builds it unquantized under {method}"
    if module.opt_in and not draft.options.lm_head:
        return "lm_head: quantized on request only"
    excluded = [weight for weight in weights if weight in draft.excluded]
    if 0 < len(excluded) < len(weights):
        others = [weight for weight in weights if weight not in excluded]
        message = (
            f"{', '.join(excluded)} excluded, {', '.join(others)} not, yet the engine fuses them: "
            "exclude all of them or none"
        )
        draft.findings.add("mixed-fused-group", module.name, message, weights)
    if excluded:
        return f"excluded by {draft.excluded[excluded[0]]}"
    if any(draft.checkpoint.tensors[weight].shape[0] == 1 for weight in weights):
        return "one row: its scale would collapse to a scalar"
    return None


def _assembled(draft: _Draft) -> Plan:
    drafter, options = draft.drafter, draft.options
    untouched = _untouched(draft)
    whole = {file.file for file in untouched}
    listed = (tensor for tensor in draft.checkpoint.tensors.values() if tensor.file not in whole)
    tensors = tuple(_tensor_plan(draft, tensor) for tensor in listed)
    written = sum(_nbytes(output) for tensor in tensors for output in tensor.outputs)
    return Plan(
        family=drafter.family,
        dialect=drafter.dialect,
        head=drafter.head,
        format=draft.format,
        scales=options.scales,
        dtype=options.dtype,
        nvfp4_scale_search=options.nvfp4_scale_search,
        tensors=tensors,
        untouched=untouched,
        ignore=exclusions(draft.format, drafter, draft.modules | draft.merged),
        merged=() if drafter.existing is None else drafter.existing.modules,
        source_bytes=draft.checkpoint.nbytes,
        variant_bytes=written + sum(file.nbytes for file in untouched),
        warnings=(*drafter.warnings, *_warnings(draft, tensors)),
    )


def _untouched(draft: _Draft) -> tuple[UntouchedFile, ...]:
    """Files that hold nothing of a drafter which lies in its target's checkpoint."""
    target, tensors = draft.drafter.target, draft.checkpoint.tensors
    if target is None:
        return ()
    found: dict[str, list[TensorInfo]] = {}
    written = target.written_files(tensors)
    for tensor in tensors.values():
        if tensor.file not in written:
            found.setdefault(tensor.file, []).append(tensor)
    return tuple(
        UntouchedFile(file=file, tensors=len(inside), nbytes=sum(tensor.nbytes for tensor in inside))
        for file, inside in found.items()
    )


def _tensor_plan(draft: _Draft, tensor: TensorInfo) -> TensorPlan:
    if tensor.name in draft.quantized:
        fate, reason = Fate.QUANTIZED, QUANTIZED
        outputs = scheme_for(draft.format).outputs(tensor.name, (tensor.shape[0], tensor.shape[1]))
    else:
        fate, reason, dtype = _kept(draft, tensor)
        outputs = (OutputTensor(name=tensor.name, dtype=dtype, shape=tensor.shape),)
    return TensorPlan(
        name=tensor.name,
        dtype=tensor.dtype,
        shape=tensor.shape,
        file=tensor.file,
        fate=fate,
        reason=reason,
        group=draft.quantized.get(tensor.name),
        outputs=outputs,
    )


def _kept(draft: _Draft, tensor: TensorInfo) -> tuple[Fate, str, str]:
    """Fate, reason and dtype of a tensor that is not quantized."""
    existing = draft.drafter.existing
    if existing is not None and tensor.name in existing.tensors:
        return Fate.KEPT, MERGED, tensor.dtype
    target = draft.drafter.target
    if target is not None and tensor.name not in target.block:
        return Fate.KEPT, TARGET, tensor.dtype
    reason = draft.kept.get(tensor.name) or _reason_by_kind(tensor)
    wanted = _CAST_TO.get(draft.options.dtype, tensor.dtype)
    if tensor.dtype not in FLOAT_DTYPES or wanted == tensor.dtype:
        return Fate.KEPT, reason, tensor.dtype
    if tensor.dtype == "F32" and _in_modules(tensor.name, draft.drafter.float32_modules):
        return Fate.KEPT, f"{reason}; stays F32, in which the engine computes it", tensor.dtype
    return Fate.CAST, f"{reason}; {tensor.dtype} to {wanted}: {draft.options.dtype} asked for", wanted


def _reason_by_kind(tensor: TensorInfo) -> str:
    if tensor.dtype not in FLOAT_DTYPES:
        return f"{tensor.dtype} data: copied byte for byte"
    if tensor.name.endswith(".bias"):
        return "bias"
    if len(tensor.shape) < 2 and "norm" not in tensor.name:
        return "fewer than two dimensions"
    return keep_reason(tensor.name)


def _in_modules(name: str, modules: tuple[str, ...]) -> bool:
    return any(name.startswith(module + ".") for module in modules)


def _excluded(checkpoint: Checkpoint, drafter: Drafter, options: QuantizeOptions, findings: Findings) -> dict[str, str]:
    """The first pattern that excludes each tensor. A pattern without a tensor is noted: it is a misspelling.

    Of a target's checkpoint only the drafter's tensors count: the target's are excluded anyway.
    """
    names = tuple(name for name in checkpoint.tensors if drafter.target is None or name in drafter.target.block)
    excluded: dict[str, str] = {}
    for pattern in options.exclude:
        match = re.compile(translate(pattern)).match
        matching = [name for name in names if match(name)]
        for name in matching:
            excluded.setdefault(name, pattern)
        if not matching:
            near = [f"{pattern}{end}" for end in (".weight", "*") if _any(names, pattern + end)]
            hint = f"; did you mean {near[0]!r}?" if near else ""
            findings.add("unused-exclude", f"quantize.exclude: {pattern}", f"matches no tensor's name{hint}", pattern)
    return excluded


def _any(names: Iterable[str], pattern: str) -> bool:
    match = re.compile(translate(pattern)).match
    return any(match(name) for name in names)


def _nbytes(output: OutputTensor) -> int:
    return math.prod(output.shape) * DTYPE_BYTES[output.dtype]


def _warnings(draft: _Draft, tensors: tuple[TensorPlan, ...]) -> list[str]:
    options, found = draft.options, []
    if draft.drafter.existing is not None:
        count = len(draft.drafter.existing.modules)
        found.append(f"merged: {count} modules were quantized before, by whatever means, and are kept as they are")
    if options.dtype == "float16" and any(tensor.fate is Fate.CAST for tensor in tensors):
        found.append("float16: a drafter's fused hidden states can overflow in it; acceptance fell to 0.06 of 15 once")
    if options.scales == "reference":
        found.append("scales: reference is for comparison; engines fuse siblings and read only one of their scales")
    if options.lm_head and "lm_head" in draft.modules:
        found.append(f"lm_head: read quantized by {draft.drafter.engine_class} of vLLM 0.32; other engines may not")
    return found


def _medusa(drafter: Drafter) -> ProblemError:
    message = (
        "vLLM builds Medusa heads without a quantization config and drops their scales silently: "
        "acceptance length falls to 1.0. Serve the drafter as it is"
    )
    return ProblemError("family-not-quantizable", message, [Offender(where=drafter.engine_class, message=message)])

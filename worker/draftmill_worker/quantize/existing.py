"""A checkpoint that is quantized in part already, read so that the rest can be quantized beside it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from draftmill.formats import FORMATS, Format, FormatSpec
from draftmill.jobs import QuantizeOptions
from draftmill.plans import OutputTensor
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.drafter import Drafter, Existing
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.headers import TensorInfo
from draftmill_worker.quantize.formats import scheme_for

CONFIG_KEY = "quantization_config"
_WHERE = f"config.json: {CONFIG_KEY}"
_WEIGHT = ".weight"
# What says more than one scheme, or of more than weights. Read or merged, they would change what the engine builds.
_OTHER_SCHEMES = ("quantized_layers", "kv_cache_scheme", "kv_cache_quant_algo", "quantization")


def read_drafter(checkpoint: Checkpoint, format: Format, options: QuantizeOptions) -> Drafter:
    """`detect`, and with `options.merge` for a checkpoint that is quantized in part, in `format`.

    Raises what `detect` raises, and `merge-refused` with every reason why the two cannot be one configuration.
    """
    if not options.merge:
        return detect(checkpoint)
    existing = _existing(checkpoint, format)
    floating = _floating(checkpoint, existing, FORMATS[format])
    return replace(detect(floating), config=checkpoint.config, existing=existing)


def _existing(checkpoint: Checkpoint, format: Format) -> Existing:
    findings = Findings()
    config = checkpoint.config.get(CONFIG_KEY)
    if not isinstance(config, dict):
        message = "there is none: nothing says what is quantized here. hf_quant_config.json alone is not read"
        raise ProblemError("merge-refused", message, [Offender(where=_WHERE, message=message)])
    _check_scheme(config, FORMATS[format], findings)
    findings.raise_any()
    modules: list[str] = []
    tensors: set[str] = set()
    for tensor in checkpoint.tensors.values():
        if not tensor.name.endswith(_WEIGHT) or tensor.dtype != FORMATS[format].weight_dtype:
            continue
        modules.append(tensor.name.removesuffix(_WEIGHT))
        tensors |= {output.name for output in _checked_outputs(checkpoint, format, tensor, findings)}
    if not modules:
        findings.add("merge-refused", _WHERE, f"no weight is stored in {format}'s dtype")
    findings.raise_any()
    ignore = config.get("ignore")
    listed = ignore if isinstance(ignore, list) else []
    return Existing(tuple(modules), frozenset(tensors), tuple(item for item in listed if isinstance(item, str)))


def _check_scheme(config: dict[str, Any], spec: FormatSpec, findings: Findings) -> None:
    found = (config.get("quant_method"), config.get("quant_algo"))
    if found != (spec.quant_method, spec.quant_algo):
        same = [other.name for other in FORMATS.values() if (other.quant_method, other.quant_algo) == found]
        hint = f"; ask for {same[0]}" if same else ""
        message = f"is {found[0]}, {found[1]}; {spec.name} is {spec.quant_method}, {spec.quant_algo}. One is read{hint}"
        findings.add("merge-refused", _WHERE, message)
    if not spec.quant_method.startswith("modelopt"):
        findings.add("merge-refused", _WHERE, f"{spec.name} renames the weights it packs; that is not merged")
    for key in _OTHER_SCHEMES:
        if config.get(key) is not None:
            findings.add("merge-refused", f"{_WHERE}.{key}", "would have to be merged too; it is not")


def _checked_outputs(
    checkpoint: Checkpoint, format: Format, weight: TensorInfo, findings: Findings
) -> Iterator[OutputTensor]:
    """The scheme's tensors of one module; what is missing or of another form is noted."""
    if len(weight.shape) != 2:
        findings.add("merge-refused", weight.name, "a quantized weight has two dimensions", list(weight.shape))
        return
    spec = FORMATS[format]
    shared = {scale.suffix for scale in spec.scales if scale.per in ("tensor", "activation")}
    for output in scheme_for(format).outputs(weight.name, _logical_shape(weight, spec)):
        stored = checkpoint.tensors.get(output.name)
        if stored is None:
            findings.add("merge-refused", output.name, f"{format} needs it; it is not stored")
            continue
        # One number is written as [] or as [1].
        one = output.name.rpartition(".")[2] in shared and set(stored.shape) <= {1}
        if stored.dtype != output.dtype or (stored.shape != output.shape and not one):
            message = f"{output.dtype} {list(output.shape)} is {format}'s form, this is {stored.dtype}"
            findings.add("merge-refused", output.name, message, list(stored.shape))
        yield output


def _logical_shape(weight: TensorInfo, spec: FormatSpec) -> tuple[int, int]:
    """[out, in] of a weight stored in `spec.bits` bits per element, as bytes."""
    return weight.shape[0], weight.shape[1] * 8 // spec.bits


def _floating(checkpoint: Checkpoint, existing: Existing, spec: FormatSpec) -> Checkpoint:
    """The checkpoint as it was before: weights in their own shapes, no scales, no quantization."""
    weights = {f"{module}{_WEIGHT}" for module in existing.modules}
    tensors = {
        name: replace(tensor, dtype="BF16", shape=_logical_shape(tensor, spec)) if name in weights else tensor
        for name, tensor in checkpoint.tensors.items()
        if name in weights or name not in existing.tensors
    }
    config = {key: value for key, value in checkpoint.config.items() if key != CONFIG_KEY}
    return replace(checkpoint, config=config, tensors=tensors)

"""What is stored for each tensor, from the headers: dtypes, shapes, full sets of scales, no scale without a reader."""

from collections.abc import Iterator

from draftmill.formats import FormatSpec
from draftmill.plans import Fate, TensorPlan
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, FLOAT_DTYPES, TensorInfo
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.view import View

CAST = {"bfloat16": "BF16", "float16": "F16"}


def shape_of(text: str, out: int, columns: int) -> tuple[int, ...]:
    """The shape that a format's text such as `[out, in/16]` gives for a weight of [out, columns]."""
    shape = []
    for part in filter(None, (part.strip() for part in text.strip("[]").split(","))):
        name, _, divisor = part.partition("/")
        size = {"out": out, "in": columns}.get(name) or int(name)
        shape.append(-(-size // int(divisor)) if divisor else size)
    return tuple(shape)


def scheme_outputs(spec: FormatSpec, tensor: TensorPlan) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """(suffix, dtype, shape) of everything stored for a quantized weight, from the format's data alone."""
    out, columns = tensor.shape
    yield spec.weight_suffix, spec.weight_dtype, (out, columns * spec.bits // 8 // DTYPE_BYTES[spec.weight_dtype])
    for stored in (*spec.scales, *spec.described_by):
        yield stored.suffix, stored.dtype, shape_of(stored.shape, out, columns)


@check(
    "dtypes-and-shapes",
    reads="headers of source and variant, plan",
    after=("one-file-per-tensor",),
    proves="each tensor has the dtype and shape of its scheme, or of the source where it is not quantized",
)
def dtypes_and_shapes(view: View) -> Result:
    result = Result(evidence={"tensors": len(view.tensors), "format": view.plan.format.value})
    for linear in view.linears:
        for suffix, dtype, shape in scheme_outputs(view.spec, linear.plan):
            _compare(result, view.tensors.get(linear.tensor(suffix)), dtype, shape)
    for tensor in view.unquantized:
        source = view.source_checkpoint.tensors[tensor.name]
        # Only floating tensors may be cast: an integer map loses its values.
        cast = tensor.fate is Fate.CAST and source.dtype in FLOAT_DTYPES
        _compare(result, view.tensors.get(tensor.name), _cast(view) if cast else source.dtype, source.shape)
    return result


def _cast(view: View) -> str:
    return CAST.get(view.plan.dtype, "no cast")


def _compare(result: Result, found: TensorInfo | None, dtype: str, shape: tuple[int, ...]) -> None:
    if found is not None and (found.dtype, found.shape) != (dtype, shape):
        result.blame(found.name, f"{dtype} {list(shape)} expected", f"{found.dtype} {list(found.shape)}")


@check(
    "scales-complete",
    reads="headers",
    after=("dtypes-and-shapes",),
    proves="every module stored in the format's dtype has every scale its scheme needs",
)
def scales_complete(view: View) -> Result:
    quantized = [*_quantized(view), *view.plan.merged]
    result = Result(evidence={"modules": len(quantized), "scales": [scale.suffix for scale in view.spec.scales]})
    for module in quantized:
        for stored in (*view.spec.scales, *view.spec.described_by):
            if f"{module}.{stored.suffix}" not in view.tensors:
                result.blame(f"{module}.{stored.suffix}", f"{view.plan.format.value} needs it; it is not there")
    planned = {linear.name for linear in view.linears} | {*view.plan.merged}
    for module in sorted(planned ^ set(quantized)):
        result.blame(module, "quantized in the plan or in the file, not in both")
    return result


def _quantized(view: View) -> list[str]:
    """Modules whose weight has the format's dtype and had another one in the source."""
    source, ending = view.source_checkpoint.tensors, f".{view.spec.weight_suffix}"
    return [
        name.removesuffix(ending)
        for name, info in view.tensors.items()
        if name.endswith(ending)
        and info.dtype == view.spec.weight_dtype
        and (name not in source or source[name].dtype != info.dtype)
    ]


@check(
    "no-orphan-scales",
    reads="headers",
    after=("names-complete",),
    proves="every scale belongs to a quantized module of the scheme: loaders drop others without a word",
)
def no_orphan_scales(view: View) -> Result:
    owned = {
        linear.tensor(suffix) for linear in view.linears for suffix, _, _ in scheme_outputs(view.spec, linear.plan)
    }
    added = view.tensors.keys() - view.source_checkpoint.tensors.keys()
    result = Result(evidence={"owned": len(owned & added)})
    for name in sorted(added - owned):
        result.blame(name, "no module of the scheme reads this tensor")
    return result

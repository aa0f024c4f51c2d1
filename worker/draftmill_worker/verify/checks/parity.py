"""The bytes against ModelOpt's own functions, run here on the source's tensors."""

from draftmill.formats import Scale
from draftmill_worker.verify.modelopt import quantize_rows
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.tensors import raw, sample_rows
from draftmill_worker.verify.view import View


@check(
    "modelopt-parity",
    reads="rows of every quantized weight of the source, the same rows of the variant",
    after=("dequantized-error",),
    proves="codes and scales are byte for byte what NVIDIA ModelOpt gives, for the amax of the fused group",
)
def modelopt_parity(view: View) -> Result:
    result = Result(evidence={"modules": len(view.linears), "rows": 0, "bytes": 0})
    whole = {scale.suffix for scale in view.spec.scales if not _per_row(scale)}
    for linear in view.linears:
        rows = sample_rows(linear.plan.shape[0])
        top = view.top(linear)
        wanted = quantize_rows(view.plan.format, view.before(linear.plan), rows, top, view.plan.dtype)
        result.evidence["rows"] += len(rows)
        for suffix, values in wanted.items():
            stored = view.after(linear.plan, linear.tensor(suffix))
            found = stored if suffix in whole else stored[rows]
            if values.shape != found.shape or values.dtype != found.dtype:
                result.blame(linear.tensor(suffix), f"ModelOpt gives {values.dtype} {list(values.shape)}")
                continue
            result.evidence["bytes"] += values.nbytes
            differing = int((raw(values) != raw(found)).sum())
            if differing:
                result.blame(linear.tensor(suffix), "bytes differ from ModelOpt's", differing)
    return result


def _per_row(scale: Scale) -> bool:
    return scale.per in ("channel", "block")

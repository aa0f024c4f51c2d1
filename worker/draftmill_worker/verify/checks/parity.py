"""The bytes against ModelOpt's own functions, run here on the source's tensors."""

from draftmill.formats import Scale
from draftmill_worker.verify import library
from draftmill_worker.verify.modelopt import quantize_rows
from draftmill_worker.verify.reference import INTEGER_BITS, ROWS_PER_SCALE
from draftmill_worker.verify.registry import Result, check, skipped
from draftmill_worker.verify.tensors import SAMPLE_ROWS, raw, sample_rows
from draftmill_worker.verify.view import View


@check(
    "modelopt-parity",
    reads="rows of every quantized weight of the source, the same rows of the variant",
    after=("dequantized-error",),
    proves="codes and scales are byte for byte what NVIDIA ModelOpt gives, for the amax of the fused group; for "
    "integers, what the compressed-tensors library gives; for searched block scales, ModelOpt's codes",
)
def modelopt_parity(view: View) -> Result:
    result = Result(evidence={"modules": len(view.linears), "rows": 0, "bytes": 0})
    integers = view.plan.format in INTEGER_BITS
    if integers and not library.installed():
        return skipped("compressed-tensors, which vLLM brings, is not installed")
    per = ROWS_PER_SCALE.get(view.plan.format, 1)
    whole = {scale.suffix for scale in view.spec.scales if not _per_row(scale)}
    for linear in view.linears:
        blocks = sample_rows(-(-linear.plan.shape[0] // per), SAMPLE_ROWS // per or 2)
        rows = [row for block in blocks for row in range(block * per, min((block + 1) * per, linear.plan.shape[0]))]
        weight, dtype = view.before(linear.plan), view.plan.dtype
        if integers:
            wanted = library.quantize_rows(view.plan.format, weight, rows, dtype)
        else:
            searched = (
                view.after(linear.plan, linear.tensor("weight_scale"))[rows] if view.plan.nvfp4_scale_search else None
            )
            wanted = quantize_rows(view.plan.format, weight, rows, view.top(linear), dtype, block_scales=searched)
        result.evidence["rows"] += len(rows)
        for suffix, values in wanted.items():
            stored = view.after(linear.plan, linear.tensor(suffix))
            found = stored if suffix in whole else stored[blocks if suffix == "weight_scale" else rows]
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

"""Second moments of hidden rows, and the factor that GPTQ walks along."""

from collections.abc import Iterable

import torch
from torch import Tensor

from draftmill.problems import Offender, ProblemError

DAMP = 0.01
"""Of the diagonal's mean, added to it before inverting: GPTQ's own."""
LISTED = 100


def hessian(rows: Iterable[Tensor]) -> Tensor:
    """2/n XᵀX of all rows [n, columns], given in pieces; fp64 [columns, columns].

    ModelOpt's `update_hessian`, summed before dividing. ProblemError("capture-invalid") without a row, and with every
    column that no row uses: GPTQ would let such a column take any value.
    """
    total: Tensor | None = None
    count = 0
    for piece in rows:
        values = piece.float()
        product = (values.T @ values).double()
        total = product if total is None else total.add_(product)
        count += len(values)
    if total is None or count == 0:
        raise ProblemError("capture-invalid", "there are no hidden rows")
    dead = (total.diagonal() == 0).nonzero().flatten().tolist()
    if dead:
        message = "no captured row uses this column of the hidden state"
        offenders = [Offender(where=f"column {column}", message=message) for column in dead[:LISTED]]
        raise ProblemError("capture-dead-columns", f"{len(dead)} of {len(total)} columns are dead", offenders)
    return total.mul_(2 / count)


def inverse_factor(moments: Tensor, damp: float = DAMP) -> Tensor:
    """Upper Cholesky factor U of the damped inverse, H⁻¹ = UᵀU; fp32 [columns, columns].

    ModelOpt's `compute_hessian_inverse`, in fp64, without its silent fall-back to the identity.
    ProblemError("capture-invalid") where the damped matrix is not positive definite.
    """
    damped = moments.clone()
    damped.diagonal().add_(damp * moments.diagonal().mean())
    lower, fault = torch.linalg.cholesky_ex(damped)
    if not fault:
        upper, fault = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
    if fault:
        raise ProblemError("capture-invalid", "the rows' second moments cannot be inverted; raise damp")
    factor: Tensor = upper.float()
    return factor

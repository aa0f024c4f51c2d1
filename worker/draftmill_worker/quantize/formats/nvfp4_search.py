"""nvfp4 and w4a16_nvfp4 with block scales searched by weight error; stored as the plain kinds are.

Plain max lays a block's largest magnitude on E2M1's 6, and what falls between 4 and 6 is far from both. Scaled to 4
instead, some blocks lose less ("Four Over Six", arXiv:2512.02010). Here every E4M3 scale that can be better is tried,
as ModelOpt's calibration `mse` with `fp8_scale_sweep` does, under the tensor's own scale: docs/adr/0085.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from typing_extensions import override

from draftmill_worker.quantize.formats.base import WEIGHT, Packed
from draftmill_worker.quantize.formats.nvfp4 import BLOCK, Nvfp4

if TYPE_CHECKING:
    import torch

    from draftmill_worker.quantize.kernels import RowOps, Rows


class SearchedNvfp4(Nvfp4):
    @override
    def pack(self, ops: "RowOps", rows: "Rows", scalars: Mapping[str, np.float32]) -> Packed:
        codes, scales, zeros, errors = ops.e2m1_searched(rows, scalars["weight_scale_2"])
        return Packed(arrays={WEIGHT: codes, "weight_scale": scales}, zeros=zeros, finite=True, errors=errors)

    @override
    def error_bound(self, weight: "torch.Tensor", amax: float | None = None) -> "torch.Tensor":
        """No element errs by more than the root of its block's squared error, which is at most plain max's."""
        bound = super().error_bound(weight, amax).double().reshape(weight.shape[0], -1, BLOCK)
        return bound.square().sum(dim=-1, keepdim=True).sqrt().expand(bound.shape).reshape(weight.shape)

"""Weights that are quantized: each fused set is measured, then packed, chunk of rows by chunk of rows."""

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from draftmill.plans import Fate, Plan, TensorPlan
from draftmill_worker.quantize.files import Files
from draftmill_worker.quantize.formats import Packed, scheme_for
from draftmill_worker.quantize.formats.base import SCALE, WEIGHT
from draftmill_worker.quantize.kernels.rows import TINY, RowOps, Rows, SquaredErrors, work_dtype
from draftmill_worker.quantize.pool import WorkPool, spans
from draftmill_worker.quantize.reader import itemsize

FusedSet = tuple[TensorPlan, ...]
Measured = tuple[TensorPlan, Future[np.float32]]
Noted = tuple[int, bool, SquaredErrors | None]
"""Of some packed rows: all-zero scale units, whether all is finite, what a scale search gained."""


@dataclass(slots=True)
class Findings:
    """What was seen on the way, by weight."""

    amax: dict[str, float | None] = field(default_factory=dict)
    """What the tensor's scale was made from, its fused set's where that is shared; None with a scale per row."""
    zeros: dict[str, int] = field(default_factory=dict)
    """Rows (fp8_pc_pt) or blocks (nvfp4) that are all zero."""
    errors: dict[str, SquaredErrors] = field(default_factory=dict)
    """Of weights whose block scales were searched."""
    nonfinite: set[str] = field(default_factory=set)
    scaleless: set[str] = field(default_factory=set)
    """Weights whose scale would be zero."""


def fused_sets(plan: Plan) -> list[FusedSet]:
    """The quantized weights, those that share a scale together, in the order of the plan."""
    sets: dict[str, list[TensorPlan]] = {}
    for tensor in plan.tensors:
        if tensor.fate is Fate.QUANTIZED:
            shared = plan.scales == "fused" and tensor.group is not None
            # A module's name never ends in `.weight`, so that a lone tensor's key meets no group's.
            sets.setdefault(str(tensor.group) if shared else tensor.name, []).append(tensor)
    return [tuple(members) for members in sets.values()]


class Packer:
    def __init__(self, plan: Plan, files: Files, pool: WorkPool, ops: RowOps, findings: Findings) -> None:
        self._dtype = plan.dtype
        self._scheme = scheme_for(plan.format, scale_search=plan.nvfp4_scale_search)
        self._files, self._pool, self._ops, self._findings = files, pool, ops, findings

    def pack(self, sets: list[FusedSet]) -> None:
        """Measures one set ahead of the one it packs, so that no thread waits for the reduction between."""
        measured: deque[tuple[FusedSet, list[Measured]]] = deque()
        for fused in sets:
            measured.append((fused, self._measure(fused)))
            if len(measured) > 1:
                self._pack_set(*measured.popleft())
        while measured:
            self._pack_set(*measured.popleft())

    def _measure(self, fused: FusedSet) -> list[Measured]:
        if not self._scheme.whole_tensor_amax:
            return []
        return [
            (tensor, self._pool.submit(0, self._amax, tensor, first, last))
            for tensor in fused
            for first, last in self._row_spans(tensor)
        ]

    def _amax(self, tensor: TensorPlan, first: int, last: int) -> np.float32:
        return self._ops.amax(self._rows(tensor, first, last))

    def _pack_set(self, fused: FusedSet, measured: list[Measured]) -> None:
        amaxes = [(tensor, future.result()) for tensor, future in measured]
        bad = {tensor.name for tensor, amax in amaxes if not np.isfinite(amax)}
        if bad:
            self._findings.nonfinite |= bad
            return
        amax = max((amax for _, amax in amaxes), default=None)
        tiny = max(TINY[self._cast_dtype(tensor)] for tensor in fused)
        scalars = {} if amax is None else self._scheme.scalars(amax, tiny)
        if any(value == 0 for value in scalars.values()):
            self._findings.scaleless.update(tensor.name for tensor in fused)
            return
        for tensor in fused:
            self._findings.amax[tensor.name] = None if amax is None else float(amax)
            self._pack_tensor(tensor, scalars)

    def _pack_tensor(self, tensor: TensorPlan, scalars: Mapping[str, np.float32]) -> None:
        def note(packed: Noted) -> None:
            zeros, finite, errors = packed
            self._findings.zeros[tensor.name] = self._findings.zeros.get(tensor.name, 0) + zeros
            if not finite:
                self._findings.nonfinite.add(tensor.name)
            if errors is not None:
                before = self._findings.errors.get(tensor.name)
                self._findings.errors[tensor.name] = errors if before is None else before + errors

        for suffix, value in scalars.items():
            self._files.put(tensor, _beside(tensor, suffix), 0, np.array([value], np.float32))
        for suffix, constant in self._scheme.constants(tensor.shape).items():
            self._files.put(tensor, _beside(tensor, suffix), 0, constant)
        row_bytes = self._row_bytes(tensor)
        for first, last in self._row_spans(tensor):
            self._pool.submit((last - first) * row_bytes, self._pack_rows, tensor, scalars, first, last, then=note)

    def _pack_rows(self, tensor: TensorPlan, scalars: Mapping[str, np.float32], first: int, last: int) -> Noted:
        packed: Packed = self._scheme.pack(self._ops, self._rows(tensor, first, last), scalars)
        for suffix, array in packed.arrays.items():
            # A scale may be that of several rows.
            per = self._scheme.row_block if suffix == SCALE else 1
            self._files.put(tensor, _beside(tensor, suffix), first // per * (array.nbytes // len(array)), array)
        return packed.zeros, packed.finite, packed.errors

    def _rows(self, tensor: TensorPlan, first: int, last: int) -> Rows:
        columns = tensor.shape[1]
        stored = self._files.elements(tensor, first * columns, last * columns).reshape(last - first, columns)
        return Rows(stored, tensor.dtype, self._cast_dtype(tensor))

    def _cast_dtype(self, tensor: TensorPlan) -> str:
        return work_dtype(tensor.dtype, self._dtype)

    def _row_bytes(self, tensor: TensorPlan) -> int:
        return tensor.shape[1] * itemsize(self._files.info(tensor))

    def _row_spans(self, tensor: TensorPlan) -> Iterator[tuple[int, int]]:
        block = self._scheme.row_block
        step = self._ops.chunk_bytes // self._row_bytes(tensor)
        return spans(tensor.shape[0], max(step - step % block, block))


def _beside(tensor: TensorPlan, suffix: str) -> str:
    return tensor.name.removesuffix(WEIGHT) + suffix

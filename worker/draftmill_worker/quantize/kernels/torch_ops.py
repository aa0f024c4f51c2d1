"""Row operations in torch, for CUDA. On CPU tensors the same code is the loops' independent twin.

On a CUDA device every thread of the pool has a stream of its own and copies through pinned memory: while one thread's
rows are computed on, another's are on their way.
"""

import threading

import numpy as np
import torch
from numpy.typing import NDArray

from draftmill_worker.quantize.kernels.rows import GROUP, MX_BLOCK, Rows, SquaredErrors

_BLOCK = 16
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
_BOUNDS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_TIES_UP = torch.tensor([0.75, 1.75, 3.5])


class TorchOps:
    """`RowOps` by division and search, as the formats define them; `device` is a torch device name."""

    # Enough for a copy to a GPU to outweigh its launch.
    chunk_bytes = 1 << 24

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._own = threading.local()

    def amax(self, rows: Rows) -> np.float32:
        return np.float32(self._cast(rows).abs().max().float().item())

    def row_amax(self, rows: Rows) -> NDArray[np.float32]:
        return _float32(self._cast(rows).abs().amax(dim=1).float())

    def e4m3(self, rows: Rows, scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        divisor = torch.from_numpy(scales).to(self._device).unsqueeze(1)
        return _bytes((self._cast(rows).float() / divisor).to(torch.float8_e4m3fn))

    def e2m1(self, rows: Rows, scale_2: np.float32) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int]:
        weight = self._cast(rows).float()
        blocks = weight.view(weight.shape[0], -1, _BLOCK)
        second = torch.tensor(float(scale_2), dtype=torch.float32, device=self._device)
        top = blocks.abs().amax(dim=2)
        scales = _block_scales(top, second)
        codes = _e2m1_codes(blocks / (scales.float() * second).unsqueeze(2)).view(weight.shape)
        packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
        return _bytes(packed), _bytes(scales), int((top == 0).sum().item())

    def e2m1_searched(
        self, rows: Rows, scale_2: np.float32
    ) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, SquaredErrors]:
        weight = self._cast(rows).float()
        blocks = weight.view(-1, _BLOCK)
        second = torch.tensor(float(scale_2), dtype=torch.float32, device=self._device)
        plain = _block_scales(blocks.abs().amax(dim=1), second).view(torch.uint8).to(torch.int16)
        units = torch.arange(256, dtype=torch.uint8, device=self._device).view(torch.float8_e4m3fn).float() * second
        found, least, first = _least_squares(blocks.abs(), plain, units)
        codes = _e2m1_codes(blocks / units[found.long()].unsqueeze(1)).view(weight.shape)
        packed, scales = codes[:, 0::2] | (codes[:, 1::2] << 4), found.to(torch.uint8).view(weight.shape[0], -1)
        errors = SquaredErrors(*(float(part.sum().item()) for part in (least, first, weight.double().square())))
        return _bytes(packed), _bytes(scales), int((blocks == 0).all(dim=1).sum().item()), errors

    def mxfp8(self, rows: Rows) -> tuple[NDArray[np.uint8], NDArray[np.uint8], int, bool]:
        weight = self._cast(rows).float()
        blocks = weight.view(weight.shape[0], -1, MX_BLOCK)
        top = blocks.abs().amax(dim=2)
        # In float64 and rounded once: a GPU's float32 logarithm is off by a unit in the last place here and there.
        exponents = torch.log2((top / torch.tensor(448.0, device=self._device)).double()).float().ceil()
        scales = exponents.nan_to_num(nan=127.0).clamp(-127, 127) + 127
        units = (blocks * torch.exp2(127 - scales).unsqueeze(2)).clamp(-448.0, 448.0)
        codes = units.to(torch.float8_e4m3fn).view(weight.shape)
        finite = bool(top.isfinite().all().item())
        return _bytes(codes), _bytes(scales.to(torch.uint8)), int((top == 0).sum().item()), finite

    def group_amax(self, rows: Rows) -> NDArray[np.float32]:
        return _float32(self._groups(rows).abs().amax(dim=2))

    def e4m3_groups(self, rows: Rows, scales: NDArray[np.float32]) -> NDArray[np.uint8]:
        divisor = torch.from_numpy(scales).to(self._device).unsqueeze(2)
        return _bytes((self._groups(rows) / divisor).to(torch.float8_e4m3fn).flatten(1))

    def int_groups(self, rows: Rows, scales: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
        divisor, half = torch.from_numpy(scales).to(self._device).unsqueeze(2), 1 << (bits - 1)
        codes = (self._groups(rows) / divisor).clamp(-half, half - 1).round().to(torch.int16) + half
        lanes = codes.to(torch.uint8).flatten(1)
        return _bytes(lanes if bits == 8 else lanes[:, 0::2] | (lanes[:, 1::2] << 4))

    def _groups(self, rows: Rows) -> torch.Tensor:
        weight = self._cast(rows).float()
        return weight.view(weight.shape[0], -1, GROUP)

    def _cast(self, rows: Rows) -> torch.Tensor:
        cuda = self._device.type == "cuda"
        if cuda and not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            # Torch's current stream is one per thread: all that follows in this one goes there.
            torch.cuda.set_stream(self._own.stream)
        staged = torch.empty(rows.stored.shape, dtype=_DTYPES[rows.dtype], pin_memory=cuda)
        (staged.view(torch.int16) if rows.dtype == "BF16" else staged).numpy()[...] = rows.stored
        return staged.to(self._device, non_blocking=True).to(_DTYPES[rows.cast])


def _block_scales(top: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    ratio = top / (6.0 * second)
    return torch.where(ratio == 0, torch.ones_like(ratio), ratio).clamp(2.0**-9, 448.0).to(torch.float8_e4m3fn)


def _least_squares(
    magnitudes: torch.Tensor, plain: torch.Tensor, units: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Per block (code of the least squared error, that error, the error of code `plain`): `loops._least_square`, for
    all blocks of [blocks, 16] at once."""
    first = _block_squares(magnitudes, units[plain.long()])
    least, found, top = first.clone(), plain.clone(), magnitudes.amax(dim=1).double()
    going = first > 0
    for offset in (*range(1, 8), *range(-1, -126, -1)):
        codes = plain + offset
        inside = going & (codes >= 1) & (codes <= 126)
        if offset < 0:
            cut = (top - (6.0 * units[codes.clamp(1, 126).long()]).double()).clamp(min=0.0)
            going = inside = inside & ~((cut > 0) & (cut.square() >= least))
        at = inside.nonzero().squeeze(1)
        if not len(at):
            if offset < 0:
                break
            continue
        squares = _block_squares(magnitudes[at], units[codes[at].long()])
        better = squares < least[at]
        least[at] = torch.where(better, squares, least[at])
        found[at] = torch.where(better, codes[at], found[at])
    return found, least, first


def _block_squares(magnitudes: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """float64 [blocks]: squared errors, summed by halves as the loops do."""
    scale = units.unsqueeze(1)
    stored = _E2M1.to(units.device)[(_e2m1_codes(magnitudes / scale) & 7).long()] * scale
    squares = (magnitudes.double() - stored.double()).square()
    while squares.shape[1] > 1:
        half = squares.shape[1] // 2
        squares = squares[:, :half] + squares[:, half:]
    return squares[:, 0]


def _e2m1_codes(quotients: torch.Tensor) -> torch.Tensor:
    """E2M1 codes, uint8, to nearest even: position among the bounds, odd bounds upwards, sign where below zero."""
    magnitudes = quotients.abs()
    codes = torch.bucketize(magnitudes, _BOUNDS.to(quotients.device), out_int32=True)
    for tie in _TIES_UP.to(quotients.device):
        codes += magnitudes == tie
    return (codes | ((quotients < 0).int() << 3)).to(torch.uint8)


def _bytes(codes: torch.Tensor) -> NDArray[np.uint8]:
    array: NDArray[np.uint8] = _host(codes.view(torch.uint8)).numpy()
    return array


def _float32(values: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = _host(values).numpy()
    return array


def _host(values: torch.Tensor) -> torch.Tensor:
    """In the CPU's memory, contiguous; through pinned memory from a CUDA device."""
    if values.device.type != "cuda":
        return values.contiguous()
    return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values)

"""The registry of quantization schemes. Light: no torch, no numba."""

from draftmill.formats import SCALE_SEARCH_FORMATS, Format
from draftmill_worker.quantize.formats.base import Packed, Scheme
from draftmill_worker.quantize.formats.fp8 import Fp8
from draftmill_worker.quantize.formats.fp8_pb_wo import Fp8PerBlock
from draftmill_worker.quantize.formats.fp8_pc_pt import Fp8PerChannel
from draftmill_worker.quantize.formats.integer import Integer
from draftmill_worker.quantize.formats.mxfp8 import Mxfp8
from draftmill_worker.quantize.formats.nvfp4 import Nvfp4
from draftmill_worker.quantize.formats.nvfp4_search import SearchedNvfp4

__all__ = ["Packed", "Scheme", "scheme_for"]

_SCHEMES: dict[Format, Scheme] = {
    Format.FP8: Fp8(),
    Format.FP8_PC_PT: Fp8PerChannel(),
    Format.NVFP4: Nvfp4(Format.NVFP4),
    Format.W4A16_NVFP4: Nvfp4(Format.W4A16_NVFP4),
    Format.MXFP8: Mxfp8(),
    Format.FP8_PB_WO: Fp8PerBlock(),
    Format.INT4_G128: Integer(Format.INT4_G128),
    Format.INT8_G128: Integer(Format.INT8_G128),
}
_SEARCHED: dict[Format, Scheme] = {format: SearchedNvfp4(format) for format in SCALE_SEARCH_FORMATS}


def scheme_for(format: Format, *, scale_search: bool = False) -> Scheme:
    """KeyError for a scale search of a format that has none; a plan refuses it."""
    return _SEARCHED[format] if scale_search else _SCHEMES[format]

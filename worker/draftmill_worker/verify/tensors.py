"""Tensors of a folder's weight files, mapped by the safetensors library, and how to walk them in bounded pieces."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftmill_worker.checkpoint.headers import malformed

if TYPE_CHECKING:
    import torch

CHUNK = 1 << 18
"""Elements handled at a time. Small enough that the fp32 copies of a chunk stay in a core's cache."""
SAMPLE_ROWS = 64
"""Rows of a weight that a sampling check looks at."""


class Tensors:
    """`get` maps a tensor without copying it; its bytes are read when they are used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._open: dict[str, Any] = {}

    def get(self, file: str, name: str) -> "torch.Tensor":
        tensor: torch.Tensor = self._file(file).get_tensor(name)
        return tensor

    def header(self, file: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        """(dtype, shape) of each tensor as the library reads them. Raises `malformed-safetensors` where it refuses."""
        handle = self._file(file)
        slices = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118  (not a mapping)
        return {name: (str(part.get_dtype()), tuple(part.get_shape())) for name, part in slices.items()}

    def _file(self, file: str) -> Any:
        from safetensors import SafetensorError, safe_open

        if file not in self._open:
            try:
                handle = safe_open(self._folder / file, framework="pt", device="cpu")
            except SafetensorError as error:
                raise malformed(file, f"the safetensors library refuses it: {error}") from error
            self._open[file] = self._stack.enter_context(handle)
        return self._open[file]

    def close(self) -> None:
        self._open.clear()
        self._stack.close()


@contextmanager
def one_thread() -> Iterator[None]:
    """Chunks fit a core's cache: more threads would only wait for each other, for minutes on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def chunks(shape: tuple[int, ...], deep: bool, multiple: int = 1) -> Iterator[slice]:
    """Slices of the first dimension that hold about CHUNK elements each, in whole multiples but for the last; the first
    and the last alone unless `deep`."""
    rows = shape[0]
    width = 1
    for size in shape[1:]:
        width *= size
    step = max(CHUNK // max(width, 1) // multiple, 1) * multiple
    starts = range(0, rows, step)
    for number, start in enumerate(starts):
        if deep or number in (0, len(starts) - 1):
            yield slice(start, min(start + step, rows))


def pieces(tensor: "torch.Tensor", deep: bool = True) -> Iterator["torch.Tensor"]:
    """Flat views of a contiguous tensor's elements, CHUNK at a time."""
    flat = tensor.flatten()
    return (flat[part] for part in chunks((len(flat),), deep))


def sample_rows(rows: int, most: int = SAMPLE_ROWS) -> list[int]:
    """At most `most` row numbers, evenly spaced, the first and the last among them."""
    if rows <= most:
        return list(range(rows))
    return [number * (rows - 1) // (most - 1) for number in range(most)]


def raw(tensor: "torch.Tensor") -> "torch.Tensor":
    """The tensor's bytes, flat: equality of these tells NaN payloads and negative zeros apart."""
    import torch

    return tensor.contiguous().flatten().view(torch.uint8)

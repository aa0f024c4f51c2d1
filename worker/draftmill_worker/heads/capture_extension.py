"""Hidden states as vLLM's worker sees them: mixed into its worker class by `worker_extension_cls`.

A forward hook on the target's final norm gives one row per token. Rows go straight into the mapped file: they never
cross a process boundary. Neither ModelOpt nor numba is imported here: an engine must not meet them before its model.
"""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftmill_worker.heads import norm


class Extension:
    """Called through `collective_rpc`; `self` is vLLM's worker. Only the first rank writes."""

    def draftmill_capture_model(self) -> dict[str, Any]:
        """What will be hooked, before anything is: `runner`, `model`, and `norm` and `columns`, None without one."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        model = runner.get_model()
        found = norm.final_norm(model)
        weight = None if found is None else getattr(found[1], "weight", None)
        return {
            "runner": f"{type(runner).__module__}.{type(runner).__name__}",
            "model": type(model).__name__,
            "norm": None if found is None else found[0],
            "columns": None if weight is None else int(weight.numel()),
        }

    def draftmill_capture_start(self, path: str, start: int, rows: int, columns: int) -> None:
        """Hook the norm. Rows go to `path` from byte `start` on."""
        self._draftmill_sink = _Sink(path, start, rows, columns) if _first() else _Sink(None, 0, rows, columns)
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        found = norm.final_norm(runner.get_model())
        if found is None:
            raise RuntimeError("the model has no final norm")
        self._draftmill_hook = found[1].register_forward_hook(self._draftmill_sink)

    def draftmill_capture_rows(self) -> int:
        """Seen so far, also beyond what was asked for."""
        return self._draftmill_sink.seen

    def draftmill_capture_stop(self) -> None:
        self._draftmill_hook.remove()
        self._draftmill_sink.close()


def _first() -> bool:
    from vllm.distributed import get_tensor_model_parallel_rank

    return bool(get_tensor_model_parallel_rank() == 0)


class _Sink:
    """The hook. Counts every row, and writes those that fit."""

    def __init__(self, path: str | None, start: int, rows: int, columns: int) -> None:
        self.seen = 0
        self._rows, self._columns = rows, columns
        self._map = None if path is None else norm.mapped(Path(path), start, rows, columns)

    def __call__(self, _module: nn.Module, _given: Any, output: Any) -> None:
        # A norm that adds the residual gives (normed, residual).
        value = output[0] if isinstance(output, tuple) else output
        values = value.detach().reshape(-1, self._columns).to("cpu", torch.bfloat16)
        first, last = self.seen, self.seen + len(values)
        self.seen = last
        if self._map is not None and last <= self._rows:
            self._map[first:last] = values.view(torch.int16).numpy()

    def close(self) -> None:
        if self._map is not None:
            self._map.flush()
            self._map = None

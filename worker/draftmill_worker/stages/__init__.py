"""One module per stage, each with `run(request, reporter)`. Thin: they call the rooms."""

PRELOAD = (
    "torch",
    "safetensors.torch",
    "tokenizers",
    "huggingface_hub",
    "modelopt.torch.quantization",
)
"""What the template imports before it serves, beside the stages themselves."""


def warm() -> None:
    """Called once in the template, so that its forks find loaded what takes long: compiled loops, vLLM's classes."""
    import numpy as np

    from draftmill_worker.quantize.kernels.casts import cast
    from draftmill_worker.quantize.kernels.cpu import CpuOps
    from draftmill_worker.quantize.kernels.rows import STORED, Rows
    from draftmill_worker.verify import engine

    engine.preload()
    ops, one = CpuOps(), np.float32(1.0)
    for dtype, stored in STORED.items():
        rows = Rows(np.ones((1, 16), stored), dtype, "BF16")
        ops.amax(rows)
        ops.row_amax(rows)
        ops.e4m3(rows, np.array([one]))
        ops.e2m1(rows, one)
        cast(np.ones(1, stored), dtype, "BF16")

"""One module per stage, each with `run(request, reporter)`. Thin: they call the rooms."""

PRELOAD = (
    "torch",
    "safetensors.torch",
    "tokenizers",
    "huggingface_hub",
    "modelopt.torch.quantization",
)
"""What the template imports before it serves, beside the stages themselves."""

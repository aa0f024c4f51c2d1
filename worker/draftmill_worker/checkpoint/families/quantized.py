"""Finds checkpoints that are quantized already: quantizing them again would strip the scales' meaning."""

from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.checkpoint.headers import DTYPE_BYTES, FLOAT_DTYPES

_CONFIG_KEYS = ("quantization_config", "compression_config")
_SECTIONS = ("text_config", "transformer_layer_config", "model")
# ModelOpt, compressed-tensors, AutoGPTQ and AWQ, DeepSeek's block FP8.
_SUFFIXES = (
    "_scale",
    ".weight_scale_2",
    ".weight_scale_inv",
    ".weight_packed",
    ".weight_zero_point",
    ".weight_shape",
    ".qweight",
    ".qzeros",
    ".g_idx",
    ".scales",
)
_PACKED_DTYPES = DTYPE_BYTES.keys() - FLOAT_DTYPES


def refuse_quantized(checkpoint: Checkpoint) -> None:
    """Raises `already-quantized` with every sign of it."""
    findings = Findings()
    sections = {"": checkpoint.config} | {f"{key}.": checkpoint.config.get(key) for key in _SECTIONS}
    for prefix, section in sections.items():
        for key in _CONFIG_KEYS:
            if isinstance(section, dict) and section.get(key) is not None:
                findings.add("already-quantized", f"config.json: {prefix}{key}", "the configuration is quantized")
    for tensor in checkpoint.tensors.values():
        if tensor.name.endswith(_SUFFIXES):
            findings.add("already-quantized", tensor.name, "a quantizer's tensor")
        elif tensor.name.endswith(".weight") and tensor.dtype in _PACKED_DTYPES:
            findings.add("already-quantized", tensor.name, f"a weight stored as {tensor.dtype}")
    findings.raise_any()

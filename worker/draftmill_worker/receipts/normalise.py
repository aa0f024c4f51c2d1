"""What differs between two equal boots, replaced or left out: folders, addresses, ports, ids, durations.

A receipt holds what would make two runs differ, so that the diff of two equal runs is empty.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")
_NETWORK = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\blocalhost:\d+\b")
_TIME = re.compile(
    r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
)
_MEASURE = re.compile(
    r"\b\d+(?:\.\d+)?(?= ?(?:s|ms|us|sec|secs|seconds|minutes|it/s|tokens/s|[KMGT]i?B|bytes)\b)", re.ASCII
)
_PROCESS = re.compile(r"\b(pid|process|port|rank_port)([ =:]+)\d+", re.I)

DROPPED = re.compile(
    r"(?:.*_)?(?:ip|addr|address|port|ports|port_list|pid|host|hostname|token)"  # where it ran, and secrets
    r"|instance_id|placement_group|ray_runtime_env|assigned_physical_gpu_ids|numa_bind_(?:nodes|cpus)"
    r"|cache_dir|local_cache_dir|debug_dump_path|(?:torch|proton)_profiler_dir|download_dir"
    r"|(?:encoder_)?compilation_time|static_forward_context|static_all_moe_layers|traced_files"
    # Measured at start: what is left of the memory.
    r"|num_[gc]pu_blocks|kv_cache_size_tokens|kv_cache_max_concurrency|kv_cache_memory_bytes"
    # The files are recorded by hash; the target's configuration is there already.
    r"|hf_config|hf_text_config|hf_image_processor_config|target_model_config|target_parallel_config"
)
"""Entries of the engine's configuration that are left out, by their whole name."""


class Roots:
    """Folders by what stands for them: `{"drafter": Path(...)}`. The longest folder that fits is replaced."""

    def __init__(self, roots: Mapping[str, Path]) -> None:
        by_length = sorted(((str(path), name) for name, path in roots.items()), key=lambda item: -len(item[0]))
        self._names = dict(by_length)
        paths = "|".join(re.escape(path) for path in self._names)
        # Whole path components only: /a/b is no part of /a/bc or /x/a/b.
        self._pattern = re.compile(rf"(?<![\w./-])(?:{paths})(?![\w.-])") if paths else None

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._names[match[0]], text)


def text(value: str, roots: Roots) -> str:
    """A string of a configuration: paths and addresses of objects in memory."""
    return _ADDRESS.sub("<address>", roots.text(value))


def message(value: str, roots: Roots) -> str:
    """A line of a log: also times, durations, sizes, process ids and network addresses."""
    value = text(value, roots)
    value = _NETWORK.sub("<network>", _TIME.sub("<time>", value))
    return _PROCESS.sub(r"\1\2<n>", _MEASURE.sub("<n>", value))


def config(value: Any, roots: Roots) -> Any:
    """A JSON value without the entries in DROPPED, its strings as `text` has them."""
    if isinstance(value, dict):
        return {str(key): config(item, roots) for key, item in value.items() if not DROPPED.fullmatch(str(key))}
    if isinstance(value, list | tuple):
        return [config(item, roots) for item in value]
    return text(value, roots) if isinstance(value, str) else value

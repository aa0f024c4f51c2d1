"""Identity of the code that measures: part of what makes an earlier measurement comparable."""

import functools
import hashlib
from pathlib import Path

MEASURING = (
    "counting.py",
    "engine_args.py",
    "engine_env.py",
    "engine_main.py",
    "prompts.py",
    "speculative.py",
    "vllm_plugin/*.py",
)
"""What decides an arm's counts. What is made of them afterwards does not."""


@functools.cache
def bench_build() -> str:
    """SHA-256 over these sources, by relative path."""
    room = Path(__file__).parent
    found = hashlib.sha256()
    for path in sorted(path for pattern in MEASURING for path in room.glob(pattern)):
        found.update(str(path.relative_to(room)).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()

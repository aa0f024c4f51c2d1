"""The archive is read without the HTTP client; receipts are collected and judged without torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "kept_out"),
    [
        ("draftmill.archive", ["httpx", "rich", "torch"]),
        ("draftmill_worker.receipts.rules, draftmill_worker.receipts.archive", ["torch", "numba", "vllm", "celery"]),
        ("draftmill_worker.receipts.describe", ["torch", "numba", "redis"]),
    ],
)
def test_what_importing_costs(modules: str, kept_out: list[str]) -> None:
    check = f"import sys, {modules}; print(sorted(sys.modules.keys() & {set(kept_out)!r}))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

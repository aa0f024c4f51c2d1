"""Memory follows a chunk of rows, not the size of a tensor or of a drafter."""

import threading
from pathlib import Path

import pytest

from draftmill.formats import Format
from draftmill_worker.verify import engine
from tests.fixtures.large import dspark_shaped
from tests.unit.verify.conftest import Good
from tests.unit.verify.variants import build_from, explained

LIMIT = 128 << 20


def anonymous() -> int:
    """Bytes of memory that no file stands behind."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


@pytest.mark.slow
@pytest.mark.parametrize("format", [Format.FP8, Format.W4A16_NVFP4])
def test_half_a_gigabyte_in_little_memory(
    good: Good, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: Format
) -> None:
    monkeypatch.setattr(engine, "build", lambda: None)
    good("eagle3-fp8").verify()  # imports what a worker's template has imported
    dspark_shaped(tmp_path / "source", 0.5)
    case = build_from(tmp_path, tmp_path / "source", format)
    before, seen, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.01):
            seen.append(anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        report = case.verify()
    finally:
        done.set()
        watcher.join()
    assert report.passed, explained(report)
    assert max(seen) - before < LIMIT, (max(seen) - before) >> 20

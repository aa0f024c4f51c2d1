"""The bench's own instruments."""

import sys
from pathlib import Path

import pytest

from tests.bench import floor, measure


def test_memory_and_time_of_a_process_are_seen() -> None:
    code = "import time; block = bytearray(b'x') * (64 << 20); end = time.time() + 0.3\nwhile time.time() < end: pass"
    measured = measure.run([sys.executable, "-c", f"{code}\nprint('done')"])
    assert measured.output == "done\n"
    assert measured.wall > 0.3
    assert measured.cpu > 0.02
    assert 64 << 20 <= measured.anonymous < 128 << 20


def test_mapped_files_are_no_anonymous_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (64 << 20))
    code = (
        f"import mmap, time; f = open({str(tmp_path / 'file')!r}, 'rb')\n"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n"
        "total = sum(m[i] for i in range(0, len(m), 4096)); end = time.time() + 0.2\nwhile time.time() < end: pass"
    )
    assert measure.run([sys.executable, "-c", code]).anonymous < 32 << 20


def test_a_failure_is_not_a_number() -> None:
    with pytest.raises(SystemExit, match="broken"):
        measure.run([sys.executable, "-c", "raise RuntimeError('broken')"])


@pytest.mark.parametrize("written", [1000, 1_234_567, 5_000_250])
def test_the_floor_moves_every_byte(tmp_path: Path, written: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(1, 251)) * 20_001)
    seconds = floor.main(source, tmp_path / "out", written, 2, fsync=True)
    assert seconds > 0
    assert (tmp_path / "out").stat().st_size == written

"""Files without MTP tensors go into a variant whole: linked where that is safe, copied and said so elsewhere."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions
from draftmill.problems import ProblemError
from draftmill_worker.checkpoint.checkpoint import open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.checkpoint.identity import changed, fingerprint
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.quantize import whole
from draftmill_worker.quantize.plan import make_plan
from draftmill_worker.quantize.stream import QuantizeResult, quantize
from tests.fixtures.mtp import build

TARGETS = ("model-00001.safetensors", "model-00002.safetensors")
BLOCK = "model-00003.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build(tmp_path / "source", shards=2, apart=True)


def _run(source: Path, out: Path, **options: Any) -> QuantizeResult:
    checkpoint = open_checkpoint(source)
    plan = make_plan(checkpoint, detect(checkpoint), Format.FP8, QuantizeOptions())
    out.mkdir()
    return quantize(source, plan, out, fsync=False, **options)


def test_a_link_is_the_same_file_and_the_block_is_not(source: Path, tmp_path: Path) -> None:
    manifest = make_manifest(source)
    result = _run(source, tmp_path / "out", link=True)
    assert result.copied == {}
    for name in TARGETS:
        assert (tmp_path / "out" / name).samefile(source / name)
    assert (tmp_path / "out" / BLOCK).stat().st_nlink == 1
    assert make_manifest(source) == manifest


def test_without_leave_every_byte_is_copied(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(whole, "BUFFER_BYTES", 700)
    before, done = fingerprint(source), list[tuple[int, int]]()
    result = _run(source, tmp_path / "out", progress=lambda count, total: done.append((count, total)))
    assert set(result.copied) == set(TARGETS)
    for name in TARGETS:
        copy = tmp_path / "out" / name
        assert copy.read_bytes() == (source / name).read_bytes()
        assert copy.stat().st_nlink == 1
    assert changed(source, before) == []
    assert done[-1][0] == done[-1][1] > sum((source / name).stat().st_size for name in TARGETS)


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM])
def test_a_refused_link_becomes_a_copy_that_says_why(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    result = _run(source, tmp_path / "out", link=True)
    assert set(result.copied) == set(TARGETS)
    assert all(why and why != whole.NOT_ASKED for why in result.copied.values())
    assert (tmp_path / "out" / TARGETS[0]).read_bytes() == (source / TARGETS[0]).read_bytes()


@pytest.mark.parametrize("link", [True, False])
def test_after_an_error_nothing_is_left(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ProblemError("non-finite-weights", "as if")

    monkeypatch.setattr("draftmill_worker.quantize.stream._run", fail)
    with pytest.raises(ProblemError):
        _run(source, tmp_path / "out", link=link)
    assert list((tmp_path / "out").iterdir()) == []
    assert all((source / name).is_file() for name in TARGETS)


def test_another_file_than_planned_is_named(source: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(source)
    plan = make_plan(checkpoint, detect(checkpoint), Format.FP8, QuantizeOptions())
    (source / TARGETS[0]).unlink()
    (source / TARGETS[0]).write_bytes((source / TARGETS[1]).read_bytes())
    (tmp_path / "out").mkdir()
    with pytest.raises(ProblemError) as caught:
        quantize(source, plan, tmp_path / "out", fsync=False)
    assert caught.value.problem.slug == "source-changed"
    assert [offender.where for offender in caught.value.problem.offenders] == [TARGETS[0]]


def test_c30_a_link_alone_is_no_change_and_other_bytes_are(source: Path, tmp_path: Path) -> None:
    """Variants of one source come and go beside each other: each link moves the file's ctime."""
    before, manifest = fingerprint(source), make_manifest(source)
    (tmp_path / "other").hardlink_to(source / TARGETS[0])
    assert [offender.where for offender in changed(source, before)] == [TARGETS[0]]
    assert changed(source, before, manifest) == []
    status = (source / TARGETS[1]).stat()
    data = bytearray((source / TARGETS[1]).read_bytes())
    data[-1] ^= 1
    (source / TARGETS[1]).write_bytes(data)
    os.utime(source / TARGETS[1], ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [offender.where for offender in changed(source, before, manifest)] == [TARGETS[1]]

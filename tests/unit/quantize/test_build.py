"""The build id changes with whatever decides bytes, and with nothing else."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import draftmill
import draftmill_worker


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for package in (draftmill, draftmill_worker):
        folder = Path(str(package.__file__)).parent
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def build_of(copy: Path) -> str:
    code = "from draftmill_worker.quantize.build import QUANTIZER_BUILD; print(QUANTIZER_BUILD)"
    found = subprocess.run([sys.executable, "-c", code], cwd=copy, text=True, capture_output=True, check=True)
    return found.stdout.strip()


def test_the_same_sources_elsewhere_give_the_same_id(copy: Path) -> None:
    build = build_of(copy)
    copy.rename(copy.with_name("moved"))
    assert build_of(copy.with_name("moved")) == build
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{16}", build)


@pytest.mark.parametrize(
    "file",
    ["quantize/kernels/loops.py", "quantize/formats/nvfp4.py", "quantize/plan.py", "assemble/card.py"],
)
def test_what_decides_bytes_changes_it(copy: Path, file: str) -> None:
    before = build_of(copy)
    with (copy / "draftmill_worker" / file).open("a") as stream:
        stream.write("# changed\n")
    assert build_of(copy) != before


def test_what_does_not_leaves_it(copy: Path) -> None:
    before = build_of(copy)
    with (copy / "draftmill_worker" / "verify" / "run.py").open("a") as stream:
        stream.write("# changed\n")
    assert build_of(copy) == before

"""The plugin that counts unrun tests as failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_runs(): pass

def test_skips(): pytest.skip("no device")

def test_imports(): pytest.importorskip("no_such_module")

@pytest.mark.xfail(reason="a known fault")
def test_known_fault(): assert False
"""


def run(tmp_path: Path, *arguments: str, listed: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "test_sample.py").write_text(TESTS)
    (tmp_path / "skips.toml").write_text(listed)
    command = [sys.executable, "-m", "pytest", "-p", "tests.skip_accounting", "-p", "no:cacheprovider", "-q"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run(
        [*command, "--skips", str(tmp_path / "skips.toml"), "-c", os.devnull, "--rootdir", str(tmp_path), *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_off_by_default(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert "1 passed, 2 skipped, 1 xfailed" in done.stdout


@pytest.mark.parametrize(("arguments", "environment"), [(["--strict-skips"], {}), ([], {"CI": "true"})])
def test_unlisted_skips_fail(tmp_path: Path, arguments: list[str], environment: dict[str, str]) -> None:
    done = run(tmp_path, *arguments, **environment)
    assert done.returncode == 1
    assert "3 failed, 1 passed" in done.stdout
    assert "tests/skips.toml does not name it: Skipped: no device" in done.stdout


@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_listed_skips_pass_and_are_printed(tmp_path: Path, processes: list[str]) -> None:
    listed = '[[skip]]\ntest = "test_sample.py::*"\nreason = "there is no device here"\n'
    done = run(tmp_path, "--strict-skips", *processes, listed=listed)
    assert done.returncode == 0
    assert "test_sample.py::test_skips: there is no device here" in done.stdout


def test_a_module_that_skips_itself_fails(tmp_path: Path) -> None:
    (tmp_path / "test_whole.py").write_text('import pytest\n\npytest.importorskip("no_such_module")\n')
    done = run(tmp_path, "--strict-skips", listed='[[skip]]\ntest = "test_sample.py::*"\nreason = "not this one"\n')
    assert done.returncode != 0
    assert "test_whole.py" in done.stdout


def test_an_entry_needs_a_reason(tmp_path: Path) -> None:
    done = run(tmp_path, listed='[[skip]]\ntest = "*"\nreason = " "\n')
    assert done.returncode == 4

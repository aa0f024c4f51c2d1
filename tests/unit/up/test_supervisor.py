"""The supervisor of `draftmill up`, seen from outside: restarts, order, stubborn children, nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftmill_service.up.child import Child, Command
from tests.support import alive, eventually

# Writes its process id and waits; a polite one ends at SIGTERM and says when.
NOTE = (
    "import os, pathlib, signal, sys, time; me = '{name}'; log = pathlib.Path('{logs}');"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}});"
)
ALIVE = NOTE + "(log / (me + '.pid')).write_text(str(os.getpid())); (log / 'ready').touch();"
POLITE = ALIVE + "signal.sigwait({{signal.SIGTERM}}); (log / (me + '.ended')).write_text(str(time.monotonic()))"
STUBBORN = ALIVE + "[signal.pause() for _ in range(99)]"
# Leaves a grandchild in a session of its own, which ignores SIGTERM, and ends.
LITTER = ALIVE + (
    "import subprocess; p = subprocess.Popen([sys.executable, '-c', 'import signal;"
    " signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()'], start_new_session=True);"
    "(log / 'orphan.pid').write_text(str(p.pid)); signal.sigwait({{signal.SIGTERM}})"
)
BROKEN = "import sys; sys.exit('no such setting: X')"


class Supervised:
    def __init__(self, logs: Path, *commands: tuple[str, str], grace: float = 10) -> None:
        self.logs = logs
        words = [f"{name}={code.format(name=name, logs=logs)}" for name, code in commands]
        command = [sys.executable, "-m", "tests.unit.up.supervised", str(logs), str(grace), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def pid(self, name: str, other_than: int = 0) -> int:
        """The process id that `name` wrote."""

        def read() -> int:
            path = self.logs / f"{name}.pid"
            text = path.read_text() if path.exists() else ""
            return int(text) if text and int(text) != other_than else 0

        return eventually(read, timeout=20)

    def stop(self, how: signal.Signals = signal.SIGINT) -> str:
        """What it said, to its end."""
        eventually((self.logs / "up").exists, timeout=20)
        self.process.send_signal(how)
        return self.process.communicate(timeout=30)[0]

    def ended(self, name: str) -> float:
        return float((self.logs / f"{name}.ended").read_text())


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Supervised]]:
    """Supervisors to end when the test fails before it does."""
    running: list[Supervised] = []
    yield running
    for one in running:
        one.process.kill()
        one.process.communicate()


def start(started: list[Supervised], *args: object, **more: float) -> Supervised:
    supervised = Supervised(*args, **more)  # type: ignore[arg-type]
    started.append(supervised)
    return supervised


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_children_stop_in_reverse_order(started: list[Supervised], tmp_path: Path, how: signal.Signals) -> None:
    up = start(started, tmp_path, ("one", POLITE), ("two", POLITE), ("three", POLITE))
    pids = [up.pid(name) for name in ("one", "two", "three")]
    assert up.stop(how).splitlines()[-1] == "stopped"
    assert up.process.returncode == 0
    assert up.ended("three") < up.ended("two") < up.ended("one")
    assert not any(alive(pid) for pid in pids)


def test_a_child_that_dies_is_started_again_and_that_is_said(started: list[Supervised], tmp_path: Path) -> None:
    up = start(started, tmp_path, ("one", POLITE), ("two", POLITE))
    first = up.pid("one")
    os.kill(first, signal.SIGKILL)
    second = up.pid("one", other_than=first)
    os.kill(second, signal.SIGKILL)
    third = up.pid("one", other_than=second)
    said = up.stop()
    assert "one was killed by SIGKILL; starting it again in 0.2 s" in said
    assert "one was killed by SIGKILL; starting it again in 0.4 s" in said
    assert not alive(third)


def test_a_child_that_does_not_stop_is_killed(started: list[Supervised], tmp_path: Path) -> None:
    up = start(started, tmp_path, ("deaf", STUBBORN), ("two", POLITE), grace=0.5)
    pid = up.pid("deaf")
    up.pid("two")
    assert "killing deaf, which does not stop" in up.stop()
    assert up.ended("two")
    assert not alive(pid)


def test_a_second_signal_does_not_wait(started: list[Supervised], tmp_path: Path) -> None:
    up = start(started, tmp_path, ("deaf", STUBBORN), ("polite", POLITE), grace=60)
    assert up.pid("deaf") != up.pid("polite")
    eventually((tmp_path / "up").exists, timeout=20)
    up.process.send_signal(signal.SIGINT)
    eventually((tmp_path / "polite.ended").exists, timeout=20)
    up.process.send_signal(signal.SIGINT)
    assert "killing deaf" in up.process.communicate(timeout=20)[0]


def test_orphans_in_sessions_of_their_own_are_ended(started: list[Supervised], tmp_path: Path) -> None:
    up = start(started, tmp_path, ("litter", LITTER))
    orphan = up.pid("orphan")
    up.stop()
    assert not alive(orphan)


def test_nothing_outlives_a_supervisor_that_is_killed(started: list[Supervised], tmp_path: Path) -> None:
    up = start(started, tmp_path, ("one", POLITE), ("deaf", STUBBORN))
    pids = [up.pid("one"), up.pid("deaf")]
    up.process.kill()
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_a_child_that_cannot_start_ends_the_start_with_its_last_words(
    started: list[Supervised], tmp_path: Path
) -> None:
    up = start(started, tmp_path, ("one", NOTE + "signal.sigwait({{signal.SIGTERM}})"), ("broken", BROKEN))
    said = up.process.communicate(timeout=30)[0]
    assert up.process.returncode == 2
    assert "the last one does not start; the end of" in said
    assert "no such setting: X" in said


def test_one_that_keeps_dying_shows_the_end_of_its_log_once(started: list[Supervised], tmp_path: Path) -> None:
    up = start(started, tmp_path, ("broken", BROKEN), ("one", POLITE))
    up.pid("one")
    eventually(lambda: (tmp_path / "broken.log").read_text().count("no such setting: X") > 3, timeout=20)
    assert up.stop().count("the end of its log:\n") == 1


def test_one_that_ends_by_itself_says_why_at_once(started: list[Supervised], tmp_path: Path) -> None:
    ends = ALIVE + "sys.exit('no space left')"
    up = start(started, tmp_path, ("full", ends), ("one", POLITE))
    up.pid("one")
    said = up.stop()
    assert "it said last:\nno space left\n" in said


def test_stopping_while_starting_is_no_error(started: list[Supervised], tmp_path: Path) -> None:
    waits = NOTE + "(log / (me + '.pid')).write_text(str(os.getpid())); signal.sigwait({{signal.SIGTERM}})"
    up = start(started, tmp_path, ("slow", waits))
    up.pid("slow")
    up.process.send_signal(signal.SIGINT)
    up.process.communicate(timeout=30)
    assert up.process.returncode == 3


def test_long_logs_are_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftmill_service.up.child._LOG_BYTES", 10)
    (tmp_path / "x.log").write_text("long enough to go")
    child = Child(Command("x", (sys.executable, "-c", "print('new')"), os.environ, 1), tmp_path)
    child.start()
    assert child.pid is not None
    os.waitpid(child.pid, 0)
    assert (tmp_path / "x.log").read_text() == "new\n"
    assert (tmp_path / "x.log.1").read_text() == "long enough to go"

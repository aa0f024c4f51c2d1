"""A pytest plugin: in CI a test that did not run counts as failed, unless the list of skips names it with a reason.

Skips, importorskip and expected failures all count. Active where CI is true or `--strict-skips` is given; the list is
`tests/skips.toml`, entries `[[skip]]` with `test`, a shell-style pattern over test ids, and `reason`. The run ends by
printing which entries were used.
"""

import fnmatch
import os
import tomllib
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

R = TypeVar("R", pytest.TestReport, pytest.CollectReport)
_CI_VALUES = {"1", "true", "yes"}


class Allowed(NamedTuple):
    test: str
    reason: str


class SkipAccounting:
    def __init__(self, allowed: tuple[Allowed, ...], strict: bool) -> None:
        self.allowed = allowed
        self.strict = strict
        self.used: list[tuple[str, Allowed]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        return self._judge(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        return self._judge(report)

    def _judge(self, report: R) -> R:
        if report.outcome != "skipped":
            return report
        if self.strict and self._entry(report) is None:
            report.outcome = "failed"
            report.longrepr = f"did not run, and tests/skips.toml does not name it: {_why(report)}"
        return report

    def _entry(self, report: pytest.TestReport | pytest.CollectReport) -> Allowed | None:
        return next((entry for entry in self.allowed if fnmatch.fnmatchcase(report.nodeid, entry.test)), None)

    # Counted where reports arrive: with several processes, that is the one that prints the summary.
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._count(report)

    def _count(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.outcome == "skipped" and (entry := self._entry(report)) is not None:
            self.used.append((report.nodeid, entry))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.strict and not self.used:
            return
        terminalreporter.section("skips that tests/skips.toml allows")
        for test, entry in self.used:
            terminalreporter.line(f"{test}: {entry.reason}")
        if not self.used:
            terminalreporter.line("none")


def _why(report: pytest.TestReport | pytest.CollectReport) -> str:
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    reason = report.longrepr
    return str(reason[2] if isinstance(reason, tuple) else reason)


def read_allowed(path: Path) -> tuple[Allowed, ...]:
    entries = tomllib.loads(path.read_text()).get("skip", []) if path.exists() else []
    for entry in entries:
        if set(entry) != {"test", "reason"} or not entry["reason"].strip():
            raise pytest.UsageError(f"{path}: every [[skip]] has a test and a reason, not {entry}")
    return tuple(Allowed(**entry) for entry in entries)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strict-skips", action="store_true", help="tests that did not run count as failed")
    parser.addoption("--skips", type=Path, default=None, help="the list of allowed skips [tests/skips.toml]")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--skips") or config.rootpath / "tests" / "skips.toml"
    strict = config.getoption("--strict-skips") or os.environ.get("CI", "").lower() in _CI_VALUES
    config.pluginmanager.register(SkipAccounting(read_allowed(path), strict), "draftmill-skip-accounting")

"""Exit codes: what a script learns from a command without reading its output."""

from enum import IntEnum

from draftmill.errors import DownloadError, DraftmillError, FolderTakenError, SettingsError
from draftmill.problems import ProblemError
from draftmill.states import Outcome


class ExitCode(IntEnum):
    OK = 0
    FAULT = 1
    USAGE = 2
    PROBLEM = 3
    FAILED = 4
    CANCELED = 5
    EXPIRED = 6
    UNREACHABLE = 7
    INTERRUPTED = 130


HELP = """\b
Exit codes:
  0  done; with --wait or watch: the job succeeded
  1  a fault of Draftmill's own, or a file that could not be stored
  2  the command line or the environment is wrong
  3  the service refused, with a problem; or an archive was tampered with
  4  the job failed
  5  the job was canceled
  6  the job expired
  7  the service cannot be reached
  130  interrupted; a job that was watched goes on"""

_OUTCOMES = {
    Outcome.SUCCEEDED: ExitCode.OK,
    Outcome.FAILED: ExitCode.FAILED,
    Outcome.CANCELED: ExitCode.CANCELED,
    Outcome.EXPIRED: ExitCode.EXPIRED,
}


def of_outcome(outcome: Outcome | None) -> ExitCode:
    """The code of a job that was watched to its end; a job without an outcome yet is no failure."""
    return ExitCode.OK if outcome is None else _OUTCOMES[outcome]


def of_error(error: DraftmillError) -> ExitCode:
    if isinstance(error, ProblemError):
        return ExitCode.FAULT if error.problem.slug == "internal" else ExitCode.PROBLEM
    if isinstance(error, SettingsError | FolderTakenError):
        return ExitCode.USAGE
    return ExitCode.FAULT if isinstance(error, DownloadError) else ExitCode.UNREACHABLE

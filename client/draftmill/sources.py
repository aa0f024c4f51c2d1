"""Where a model comes from: repositories of the Hub and local folders, and the names that go with them."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, StringConstraints
from pydantic_core import PydanticCustomError

from draftmill._model import Model

# The Hub's own rule for names: one optional namespace, no leading or trailing dot or dash.
_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"


def _plain_repo(value: str) -> str:
    if "--" in value or ".." in value or value.endswith(".git"):
        raise PydanticCustomError("repo_name", "a repository name has no '--', '..' or '.git' ending")
    return value


def _utc(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise PydanticCustomError("time_range", "is beyond the years 1 to 9999 in UTC") from error


Instant = Annotated[AwareDatetime, AfterValidator(_utc)]
Repo = Annotated[
    str, StringConstraints(pattern=rf"^(?:{_NAME}/)?{_NAME}$", max_length=193), AfterValidator(_plain_repo)
]
# A branch, tag or commit; git forbids the rest of the characters, and '..' would leave the folder.
Revision = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_/.+-]{0,127}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Commit = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]


class RepoSource(Model):
    repo: Repo
    revision: Revision = "main"


class PathSource(Model):
    path: Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^/[^\x00-\x1f]*$")]
    """Absolute, under a root the operator allows. A training output folder resolves to its newest
    `exported-checkpoint-<step>`."""

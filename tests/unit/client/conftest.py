"""A scripted server, and both clients behind one blocking face so that every test runs against each."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from draftmill import AsyncClient, Client, Format, Job, JobSpec, JobState, RepoSource, RetryPolicy
from tests.unit.client.scripted import Script, Scripted

KEY = "dm_test_secret"
FAST = RetryPolicy(attempts=3, first=0.01, longest=0.02)
SPEC = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8)


def make_job(state: JobState = JobState.QUEUED, job_id: str = "j" + "0" * 26) -> Job:
    return Job(id=job_id, state=state, spec=SPEC, timestamps={state: datetime(2026, 1, 2, tzinfo=UTC)})


class Blocking:
    """AsyncClient with each call run to its end; iterators come back as lists."""

    def __init__(self, url: str, key: str = KEY) -> None:
        self._url, self._key = url, key

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            async def main() -> Any:
                async with AsyncClient(self._url, self._key, retry=FAST) as client:
                    answer = getattr(client, name)(*args, **kwargs)
                    return [item async for item in answer] if hasattr(answer, "__aiter__") else await answer

            return anyio.run(main)

        return call


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[Script], tuple[Any, Scripted]]]:
    """A client and the scripted server it talks to."""
    with ExitStack() as stack:

        def make(script: Script) -> tuple[Any, Scripted]:
            server = stack.enter_context(Scripted(script))
            if request.param == "async":
                return Blocking(server.url), server
            return stack.enter_context(Client(server.url, KEY, retry=FAST)), server

        yield make

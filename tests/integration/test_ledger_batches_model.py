"""Random command sequences on batches: whatever happens to items, counts hold, turns go on and nothing is left over."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from draftmill.batches import BatchSpec
from draftmill.formats import Format
from draftmill.jobs import RepoSource
from draftmill.problems import ProblemError
from draftmill.states import DONE, JobState, Outcome, Reason
from draftmill_service.ledger import Claim, LeaseLost, Ledger, WorkerLedger
from draftmill_service.ledger import batches as ledger_batches

HELD = {JobState.RUNNING, JobState.CANCELING}
MAX_LOST = 2


class BatchMachine(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.redis = redis.Redis.from_url(self.url, decode_responses=True)
        self.redis.flushall()
        self.loop = asyncio.new_event_loop()
        self.ledger = Ledger.connect(self.url)
        self.worker = WorkerLedger.connect(self.url)
        self.batches: list[str] = []
        self.claims: list[Claim] = []

    def teardown(self) -> None:
        self.loop.run_until_complete(self.ledger.close())
        self.loop.close()
        self.worker.close()
        self.redis.close()

    def do(self, asked: Any) -> Any:
        return self.loop.run_until_complete(asked)

    def allowed(self, asked: Any) -> None:
        """What may be in conflict with the state."""
        with contextlib.suppress(ProblemError):
            self.do(asked)

    def key(self, batch: str, *rest: str) -> str:
        return ":".join(("draftmill:batch", batch, *rest))

    def items(self, batch: str) -> dict[str, JobState]:
        ids = self.redis.lrange(self.key(batch, "items"), 0, -1)
        return {each: JobState(self.redis.hget(f"draftmill:job:{each}", "state")) for each in ids}

    def item(self, batch: int, index: int) -> str | None:
        items = list(self.items(self.batches[batch % len(self.batches)]))
        return items[index % len(items)] if items else None

    any_index = st.integers(min_value=0, max_value=11)
    lease = st.sampled_from([0.0, 60.0])
    has_batches = precondition(lambda self: self.batches)
    has_claims = precondition(lambda self: self.claims)

    @precondition(lambda self: len(self.batches) < 3)
    @rule(
        sources=st.integers(1, 4),
        cap=st.integers(1, 3),
        budget=st.sampled_from([None, 0, 1]),
        whole=st.booleans(),
    )
    def submit(self, sources: int, cap: int, budget: int | None, whole: bool) -> None:
        repos = tuple(RepoSource(repo=f"org/d{number}") for number in range(sources))
        spec = BatchSpec(sources=repos, formats=(Format.FP8, Format.NVFP4), max_failures=budget)
        batch, _ = self.do(self.ledger.submit_batch(spec, owner="tests", cap=cap))
        self.batches.append(batch)
        if whole:
            self.do(self.ledger.work_on(batch))

    @has_batches
    @rule(index=any_index)
    def one_step(self, index: int) -> None:
        """A request that dies after it."""
        batch = self.batches[index % len(self.batches)]
        step = self.do(self.ledger._run("batch_step", batch, 2))
        if step[0] == "expand":
            self.do(self.ledger._expand(batch, self.do(self.ledger.get_batch(batch)).spec, step[1]))

    @rule()
    def all_steps(self) -> None:
        for batch in self.do(self.ledger.batches_todo(0)):
            self.do(self.ledger.work_on(batch))

    @has_batches
    @rule(batch=any_index, index=any_index, lease=lease)
    def claim(self, batch: int, index: int, lease: float) -> None:
        job = self.item(batch, index)
        if job is not None and (claim := self.worker.claim(job, "w", lease)) is not None:
            self.claims.append(claim)

    @has_claims
    @rule(index=any_index, outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED]))
    def finish(self, index: int, outcome: Outcome) -> None:
        reason = Reason.INTERNAL if outcome is Outcome.FAILED else None
        self.worker.finish(self.claims[index % len(self.claims)], outcome, reason)

    @has_claims
    @rule(index=any_index)
    def hand_back(self, index: int) -> None:
        with contextlib.suppress(LeaseLost):
            self.worker.hand_back(self.claims[index % len(self.claims)])

    @has_batches
    @rule(batch=any_index, index=any_index)
    def cancel_item(self, batch: int, index: int) -> None:
        if (job := self.item(batch, index)) is not None:
            self.allowed(self.ledger.cancel(job))

    @has_batches
    @rule(batch=any_index, index=any_index)
    def retry_item(self, batch: int, index: int) -> None:
        if (job := self.item(batch, index)) is not None:
            self.allowed(self.ledger.retry(job))

    @has_batches
    @rule(index=any_index, verb=st.sampled_from(["batch_cancel", "batch_retry"]))
    def mark(self, index: int, verb: str) -> None:
        """A request that dies before its first step."""
        self.do(self.ledger._run(verb, self.batches[index % len(self.batches)]))

    @has_batches
    @rule(index=any_index, cancel=st.booleans())
    def whole(self, index: int, cancel: bool) -> None:
        batch = self.batches[index % len(self.batches)]
        self.allowed(self.ledger.cancel_batch(batch) if cancel else self.ledger.retry_batch(batch))

    @rule()
    def reap(self) -> None:
        self.do(self.ledger.reap(MAX_LOST))

    @invariant()
    def counts_are_those_of_the_items(self) -> None:
        for each in self.batches:
            batch = self.do(self.ledger.get_batch(each))
            found = Counter(self.items(each).values())
            found[JobState.QUEUED] += batch.total - batch.made
            assert batch.counts == {state: found[state] for state in JobState}

    @invariant()
    def every_item_is_in_one_place_and_turns_go_on(self) -> None:
        rung = set(self.redis.zrange("draftmill:queued:batches", 0, -1))
        queued_and_out: set[str] = set()
        for each in self.batches:
            items = self.items(each)
            waiting = set(self.redis.zrange(self.key(each, "waiting"), 0, -1))
            out = self.redis.smembers(self.key(each, "out"))
            assert not waiting & out
            assert waiting | out == {job for job, state in items.items() if state not in DONE}
            assert all(items[job] is JobState.QUEUED for job in waiting)
            queued_and_out |= {job for job in out if items[job] is JobState.QUEUED}
            cap, stopped = self.redis.hmget(self.key(each), "cap", "stopped")
            assert len(out) <= int(cap)
            assert stopped or not waiting or len(out) == int(cap)
        assert rung == queued_and_out
        assert not self.redis.exists("draftmill:queued", "draftmill:line")

    @invariant()
    def the_state_follows(self) -> None:
        todo = set(self.redis.zrange("draftmill:batches:todo", 0, -1))
        for each in self.batches:
            batch = self.do(self.ledger.get_batch(each))
            states = set(self.items(each).values())
            if each not in todo:
                assert batch.done == (states <= DONE)
                assert batch.reason is None or not self.redis.exists(self.key(each, "waiting"))
            if batch.done:
                # Whoever watches it must not leave before the retry that was asked for.
                assert not self.redis.hexists(self.key(each), "retry_at")
                stopped = batch.reason == "canceled_by_user" and JobState.CANCELED in states
                order = (JobState.FAILED, JobState.EXPIRED, JobState.CANCELED, JobState.SUCCEEDED)
                assert batch.state is (JobState.CANCELED if stopped else next(s for s in order if s in states))
            else:
                assert batch.state in {JobState.QUEUED, JobState.RUNNING, JobState.CANCELING}


def test_any_sequence_of_commands(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_batches, "STEP", 3)
    machine = type("Machine", (BatchMachine,), {"url": redis_url})
    wanted = settings(
        max_examples=20,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=wanted)

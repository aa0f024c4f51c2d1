"""Random command sequences on a real Redis, step by step against a model that knows only the state table."""

import asyncio
from dataclasses import dataclass, field

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from draftmill.formats import Format
from draftmill.jobs import Job, JobSpec, RepoSource
from draftmill.problems import ProblemError
from draftmill.states import DONE, TRANSITIONS, JobState, Outcome, Reason
from draftmill_service.ledger import Claim, Filters, LeaseLost, Ledger, Signal, WorkerLedger, scripts

MAX_LOST = 2
SPEC = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8, labels={"team": "x"})


@dataclass
class Model:
    """One job as it should be."""

    state: JobState = JobState.QUEUED
    past: list[JobState] = field(default_factory=lambda: [JobState.QUEUED])
    outcomes: list[str | None] = field(default_factory=list)
    lost: int = 0
    dead: bool = False
    """The lease has run out."""

    def enter(self, state: JobState) -> None:
        assert state in TRANSITIONS[self.state], f"the model itself goes from {self.state} to {state}"
        self.state = state
        self.past.append(state)

    def end(self, outcome: str, state: JobState) -> None:
        self.outcomes[-1] = outcome
        self.enter(state)


class LedgerMachine(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
        self.loop = asyncio.new_event_loop()
        self.ledger = Ledger.connect(self.url)
        self.worker = WorkerLedger.connect(self.url)
        self.jobs: dict[str, Model] = {}
        self.claims: list[Claim] = []

    def teardown(self) -> None:
        self.loop.run_until_complete(self.ledger.close())
        self.loop.close()
        self.worker.close()

    def _job(self, index: int) -> str:
        return list(self.jobs)[index % len(self.jobs)]

    def _claim(self, index: int) -> tuple[Claim, Model, bool]:
        """A claim, its job's model, and whether the claim still holds the job."""
        claim = self.claims[index % len(self.claims)]
        model = self.jobs[claim.job.id]
        newest = len(model.outcomes) == claim.attempt
        return claim, model, newest and model.state in {JobState.RUNNING, JobState.CANCELING}

    any_index = st.integers(min_value=0, max_value=20)
    lease = st.sampled_from([0.0, 60.0])
    has_jobs = precondition(lambda self: self.jobs)
    has_claims = precondition(lambda self: self.claims)

    @rule()
    def submit(self) -> None:
        job, created = self.loop.run_until_complete(self.ledger.submit(SPEC, owner="tests"))
        assert created
        self.jobs[job.id] = Model()

    @has_jobs
    @rule(index=any_index, lease=lease)
    def claim(self, index: int, lease: float) -> None:
        job_id = self._job(index)
        model = self.jobs[job_id]
        claim = self.worker.claim(job_id, "w", lease)
        assert (claim is not None) == (model.state is JobState.QUEUED)
        if claim is not None:
            model.enter(JobState.RUNNING)
            model.outcomes.append(None)
            model.dead = lease == 0
            assert claim.attempt == len(model.outcomes)
            assert all(claim.fence > other.fence for other in self.claims if other.job.id == job_id)
            self.claims.append(claim)

    @has_claims
    @rule(index=any_index, lease=lease)
    def renew(self, index: int, lease: float) -> None:
        claim, model, held = self._claim(index)
        signal = self.worker.renew(claim, lease)
        if not held:
            assert signal is Signal.LOST
        else:
            assert signal is (Signal.CANCEL if model.state is JobState.CANCELING else Signal.CONTINUE)
            model.dead = lease == 0

    @has_claims
    @rule(index=any_index, outcome=st.sampled_from([Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CANCELED]))
    def finish(self, index: int, outcome: Outcome) -> None:
        claim, model, held = self._claim(index)
        if held and model.state is JobState.RUNNING and outcome is Outcome.CANCELED:
            with pytest.raises(redis.ResponseError, match="ILLEGAL"):
                self.worker.finish(claim, outcome)
            return
        before = model.state
        counted = self.worker.finish(claim, outcome, Reason.INTERNAL if outcome is Outcome.FAILED else None)
        if held:
            assert counted
            canceled = before is JobState.CANCELING and outcome is not Outcome.FAILED
            end = JobState.CANCELED if canceled else JobState(outcome.value)
            model.end(end.value, end)
        elif counted:
            # Only the same ending, said again.
            assert model.state in DONE
            assert len(model.outcomes) == claim.attempt

    @has_claims
    @rule(index=any_index)
    def hand_back(self, index: int) -> None:
        claim, model, held = self._claim(index)
        if held:
            self.worker.hand_back(claim)
            model.end("interrupted", JobState.CANCELED if model.state is JobState.CANCELING else JobState.QUEUED)
        elif model.outcomes[claim.attempt - 1] != "interrupted" or len(model.outcomes) != claim.attempt:
            with pytest.raises(LeaseLost):
                self.worker.hand_back(claim)

    @has_claims
    @rule(index=any_index)
    def log(self, index: int) -> None:
        claim, _, held = self._claim(index)
        try:
            self.worker.log(claim, "info", "line")
        except LeaseLost:
            assert not held
        else:
            assert held

    @has_jobs
    @rule(index=any_index)
    def cancel(self, index: int) -> None:
        job_id = self._job(index)
        model = self.jobs[job_id]
        try:
            job = self.loop.run_until_complete(self.ledger.cancel(job_id))
        except ProblemError:
            assert model.state in DONE - {JobState.CANCELED}
            return
        if model.state is JobState.QUEUED:
            model.enter(JobState.CANCELED)
        elif model.state is JobState.RUNNING:
            model.enter(JobState.CANCELING)
        assert job.state is model.state

    @has_jobs
    @rule(index=any_index)
    def retry(self, index: int) -> None:
        job_id = self._job(index)
        model = self.jobs[job_id]
        try:
            self.loop.run_until_complete(self.ledger.retry(job_id))
        except ProblemError:
            assert model.state not in {JobState.FAILED, JobState.CANCELED, JobState.EXPIRED}
            return
        model.enter(JobState.QUEUED)
        model.lost = 0

    @rule()
    def reap(self) -> None:
        reaped = self.loop.run_until_complete(self.ledger.reap(MAX_LOST))
        for job_id, model in self.jobs.items():
            if model.state not in {JobState.RUNNING, JobState.CANCELING} or not model.dead:
                assert not any(job_id in ids for ids in reaped)
            elif model.state is JobState.CANCELING:
                assert job_id in reaped.canceled
                model.end("lost", JobState.CANCELED)
            else:
                model.lost += 1
                failed = model.lost >= MAX_LOST
                assert job_id in (reaped.failed if failed else reaped.queued)
                model.end("lost", JobState.FAILED if failed else JobState.QUEUED)

    @invariant()
    def records_agree(self) -> None:
        for job_id, model in self.jobs.items():
            job = self.loop.run_until_complete(self.ledger.get(job_id))
            assert isinstance(job, Job)
            assert job.state is model.state
            assert [attempt.outcome for attempt in job.attempts] == model.outcomes
            assert set(job.timestamps) == set(model.past)
            events = self.loop.run_until_complete(self.ledger.events(job_id)).items
            assert [event.data["state"] for event in events if event.kind == "state"] == model.past

    @invariant()
    def indexes_agree(self) -> None:
        for state in JobState:
            page = self.loop.run_until_complete(self.ledger.list(Filters(state=state, labels=("team=x",)), limit=200))
            assert [job.id for job in page.items] == [
                job_id for job_id, model in reversed(self.jobs.items()) if model.state is state
            ]

    @invariant()
    def waiting_lists_agree(self) -> None:
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            queued, leased = client.zrange("draftmill:queued", 0, -1), client.zrange("draftmill:leases", 0, -1)
        states = {job_id: model.state for job_id, model in self.jobs.items()}
        assert set(queued) == {job_id for job_id, state in states.items() if state is JobState.QUEUED}
        running = {JobState.RUNNING, JobState.CANCELING}
        assert set(leased) == {job_id for job_id, state in states.items() if state in running}


def test_any_sequence_of_commands(redis_url: str) -> None:
    machine = type("Machine", (LedgerMachine,), {"url": redis_url})
    wanted = settings(
        max_examples=25,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=wanted)


def test_scripts_know_the_state_table(clean_redis: str) -> None:
    """Each pair of states, legal or not, through the one function that changes a state."""
    source = scripts.load("resign").rpartition("-- prefix, token.")[0]
    with redis.Redis.from_url(clean_redis) as client:
        enter = client.register_script(source + "enter(ARGV[2], ARGV[3], now()) return 1")
        for start in JobState:
            for end in JobState:
                client.hset("draftmill:job:x", mapping={"state": start, "attempt": 0})
                args = ["draftmill", "x", end]
                if end in TRANSITIONS[start]:
                    assert enter(args=args) == 1
                    continue
                with pytest.raises(redis.ResponseError, match="illegal transition"):
                    enter(args=args)
                assert client.hget("draftmill:job:x", "state") == start.encode()

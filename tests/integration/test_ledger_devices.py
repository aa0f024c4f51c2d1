"""Devices on a real Redis: one claim each, all or nothing, in order, gone with the claim."""

import asyncio
from dataclasses import dataclass

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from draftmill.formats import Format
from draftmill.jobs import Attempt, DeviceWait, JobSpec, RepoSource, StageRecord
from draftmill.reports import EventKind
from draftmill.states import Outcome, Stage, StageState
from draftmill_service.ledger import Claim, Granted, LeaseLost, Ledger, Waiting, Wanted, WorkerLedger

SPEC = JobSpec(source=RepoSource(repo="org/drafter"), format=Format.FP8)
GPUS = ("gpu0", "gpu1", "gpu2")
BENCH = Stage.BENCH


async def claimed(ledger: Ledger, worker: WorkerLedger, lease: float = 60.0) -> Claim:
    job, _ = await ledger.submit(SPEC, owner="tests")
    claim = worker.claim(job.id, "w", lease)
    assert claim is not None
    return claim


async def attempt(ledger: Ledger, claim: Claim) -> Attempt:
    job = await ledger.get(claim.job.id)
    assert job is not None
    return job.attempts[claim.attempt - 1]


def of(need: int, devices: tuple[str, ...] = GPUS[:2], machine: str = "m") -> Wanted:
    return Wanted(machine, devices, need)


async def test_a_device_is_of_one_claim_until_it_is_released(ledger: Ledger, worker: WorkerLedger) -> None:
    first, second = [await claimed(ledger, worker) for _ in range(2)]
    assert worker.devices.ask(first, BENCH, of(2)) == Granted(("gpu0", "gpu1"))
    assert worker.devices.ask(second, BENCH, of(1)) == Waiting(1)
    # Asked again after a lost reply.
    assert worker.devices.ask(first, BENCH, of(2)) == Granted(("gpu0", "gpu1"))
    # The same name on another machine is another device.
    assert worker.devices.ask(second, BENCH, of(1, machine="other")) == Granted(("gpu0",))
    worker.devices.release(first, "m")
    assert worker.devices.ask(second, BENCH, of(1)) == Granted(("gpu0",))


async def test_who_waits_shows_and_so_does_who_has(ledger: Ledger, worker: WorkerLedger) -> None:
    first, second = [await claimed(ledger, worker) for _ in range(2)]
    worker.devices.ask(first, BENCH, of(1, ("cpu",)))
    worker.stage(first, StageRecord(name=BENCH, state=StageState.RUNNING))
    for _ in range(3):
        worker.devices.ask(second, BENCH, of(1, ("cpu",)))
    (has,) = (await attempt(ledger, first)).stages
    assert (has.state, has.devices, has.waiting) == (StageState.RUNNING, ("cpu",), None)
    (waits,) = (await attempt(ledger, second)).stages
    assert (waits.state, waits.waiting) == (StageState.PENDING, DeviceWait(place=1, devices=1))
    assert waits.started_at is None
    events = (await ledger.events(second.job.id)).items
    told = [event.data for event in events if event.kind is EventKind.STAGE]
    waiting = {"place": 1, "devices": 1}
    assert told == [{"attempt": 1, "stage": "bench", "state": "pending", "waiting": waiting}], (
        "told once, not each time"
    )
    worker.devices.release(first, "m")
    worker.devices.ask(second, BENCH, of(1, ("cpu",)))
    worker.stage(second, StageRecord(name=BENCH, state=StageState.RUNNING))
    (has,) = (await attempt(ledger, second)).stages
    assert (has.waiting, has.devices) == (None, ("cpu",))
    (had,) = (await attempt(ledger, first)).stages
    assert had.devices == ("cpu",), "where it ran stays on record"


async def test_a_request_for_two_is_not_passed_by_requests_for_one(ledger: Ledger, worker: WorkerLedger) -> None:
    one, two, late = [await claimed(ledger, worker) for _ in range(3)]
    assert worker.devices.ask(one, BENCH, of(1)) == Granted(("gpu0",))
    assert worker.devices.ask(two, BENCH, of(2)) == Waiting(1)
    assert worker.devices.ask(late, BENCH, of(1)) == Waiting(2)
    # What the waiting ones cannot use is given at once.
    other = await claimed(ledger, worker)
    assert worker.devices.ask(other, BENCH, of(1, ("cpu",))) == Granted(("cpu",))
    worker.devices.release(one, "m")
    assert worker.devices.ask(late, BENCH, of(1)) == Waiting(2)
    assert worker.devices.ask(two, BENCH, of(2)) == Granted(("gpu0", "gpu1"))
    worker.devices.release(two, "m")
    assert worker.devices.ask(late, BENCH, of(1)) == Granted(("gpu0",))


@pytest.mark.parametrize("ending", ["finish", "hand back", "reaped", "canceled", "released"])
async def test_devices_and_places_go_with_the_claim(ledger: Ledger, worker: WorkerLedger, ending: str) -> None:
    lease = 0.0 if ending == "reaped" else 60.0
    holder, waiter = [await claimed(ledger, worker, lease) for _ in range(2)]
    last = await claimed(ledger, worker)
    worker.devices.ask(holder, BENCH, of(2))
    assert worker.devices.ask(waiter, BENCH, of(2)) == Waiting(1)
    assert worker.devices.ask(last, BENCH, of(2)) == Waiting(2)
    for claim in (holder, waiter):
        match ending:
            case "finish":
                worker.finish(claim, Outcome.SUCCEEDED)
            case "hand back":
                worker.hand_back(claim)
            case "canceled":
                await ledger.cancel(claim.job.id)
                worker.finish(claim, Outcome.CANCELED)
            case "released":
                worker.devices.release(claim, "m")
    if ending == "reaped":
        assert set((await ledger.reap(3)).queued) == {holder.job.id, waiter.job.id}
    assert worker.devices.ask(last, BENCH, of(2)) == Granted(("gpu0", "gpu1"))
    if ending == "released":
        return
    (stage,) = (await attempt(ledger, waiter)).stages
    assert stage.state not in {StageState.PENDING, StageState.RUNNING}
    assert stage.waiting is None
    for claim in (holder, waiter):
        with pytest.raises(LeaseLost):
            worker.devices.ask(claim, BENCH, of(1))


async def test_a_lost_attempt_does_not_keep_the_next_one_waiting(ledger: Ledger, worker: WorkerLedger) -> None:
    """And what the lost one still asks or frees is not the next one's."""
    first = await claimed(ledger, worker, 0.0)
    worker.devices.ask(first, BENCH, of(2))
    await ledger.reap(3)
    second = worker.claim(first.job.id, "w2", 60.0)
    assert second is not None
    assert worker.devices.ask(second, BENCH, of(2)) == Granted(("gpu0", "gpu1"))
    worker.devices.release(first, "m")
    other = await claimed(ledger, worker)
    assert worker.devices.ask(other, BENCH, of(1)) == Waiting(1)


async def test_the_next_stage_gets_its_own(ledger: Ledger, worker: WorkerLedger) -> None:
    """Although the release of the stage before was lost."""
    claim = await claimed(ledger, worker)
    worker.devices.ask(claim, Stage.QUANTIZE, of(1))
    assert worker.devices.ask(claim, BENCH, of(2)) == Granted(("gpu0", "gpu1"))


async def test_more_than_there_is_would_wait_for_ever(ledger: Ledger, worker: WorkerLedger) -> None:
    claim = await claimed(ledger, worker)
    for wanted in (of(3), of(2, ("gpu0", "gpu0")), of(0)):
        with pytest.raises(ValueError, match="devices"):
            worker.devices.ask(claim, BENCH, wanted)


@dataclass
class Asker:
    claim: Claim
    wanted: Wanted
    has: tuple[str, ...] = ()
    waits: bool = False
    over: bool = False
    dead: bool = False
    """Its lease has run out: over at the next reaping."""


class DeviceMachine(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
        self.loop = asyncio.new_event_loop()
        self.ledger = Ledger.connect(self.url)
        self.worker = WorkerLedger.connect(self.url)
        self.askers: list[Asker] = []
        self.line: list[Asker] = []
        """Who waits, in order of the first asking."""

    def teardown(self) -> None:
        self._everybody_gets_through()
        self.loop.run_until_complete(self.ledger.close())
        self.loop.close()
        self.worker.close()

    def _everybody_gets_through(self) -> None:
        """No set of requests blocks itself: as holders end, the waiting ones are served in their order."""
        for _ in range(len(self.askers) + 1):
            for asker in [one for one in self.askers if one.has]:
                self.release(self.askers.index(asker))
            for asker in list(self.line):
                self._ask(asker)
        assert not self.line

    index = st.integers(min_value=0, max_value=20)
    some = precondition(lambda self: self.askers)

    @rule(
        need=st.integers(1, 3), devices=st.permutations(GPUS), shown=st.integers(1, 3), lease=st.sampled_from([0, 60])
    )
    def arrive(self, need: int, devices: list[str], shown: int, lease: int) -> None:
        claim = self.loop.run_until_complete(claimed(self.ledger, self.worker, lease))
        wanted = of(min(need, shown), tuple(devices[:shown]))
        self.askers.append(Asker(claim, wanted, dead=lease == 0))
        self._ask(self.askers[-1])

    @some
    @rule(index=index)
    def ask(self, index: int) -> None:
        self._ask(self.askers[index % len(self.askers)])

    def _ask(self, asker: Asker) -> None:
        if asker.over:
            with pytest.raises(LeaseLost):
                self.worker.devices.ask(asker.claim, BENCH, asker.wanted)
            return
        answer = self.worker.devices.ask(asker.claim, BENCH, asker.wanted)
        if asker.has:
            assert answer == Granted(asker.has)
            return
        if not asker.waits:
            asker.waits = True
            self.line.append(asker)
        before = self.line[: self.line.index(asker)]
        rivals = [one for one in before if set(one.wanted.devices) & set(asker.wanted.devices)]
        free = set(asker.wanted.devices) - {device for one in self.askers for device in one.has}
        if isinstance(answer, Waiting):
            assert answer.place == len(rivals) + 1
            assert rivals or len(free) < asker.wanted.need, "it waits for nothing"
            return
        assert len(set(answer.devices)) == asker.wanted.need
        assert set(answer.devices) <= free
        for rival in rivals:
            left = set(rival.wanted.devices) - set(answer.devices) - {one for a in self.askers for one in a.has}
            could = set(rival.wanted.devices) - {one for a in self.askers for one in a.has}
            assert len(could) < rival.wanted.need or len(left) >= rival.wanted.need, "it took an earlier one's turn"
            assert len(could) >= rival.wanted.need or not set(answer.devices) & could, "it keeps an earlier one waiting"
        asker.has, asker.waits = answer.devices, False
        self.line.remove(asker)

    @some
    @rule(index=index)
    def release(self, index: int) -> None:
        asker = self.askers[index % len(self.askers)]
        self.worker.devices.release(asker.claim, "m")
        self._without(asker)

    def _without(self, asker: Asker) -> None:
        asker.has, asker.waits = (), False
        if asker in self.line:
            self.line.remove(asker)

    @some
    @rule(index=index)
    def end(self, index: int) -> None:
        asker = self.askers[index % len(self.askers)]
        assert self.worker.finish(asker.claim, Outcome.SUCCEEDED) or asker.dead
        asker.over = True
        self._without(asker)

    @rule()
    def reap(self) -> None:
        self.loop.run_until_complete(self.ledger.reap(3))
        for asker in self.askers:
            if asker.dead and not asker.over:
                asker.over = True
                self._without(asker)

    @invariant()
    def nothing_is_had_twice(self) -> None:
        had = [device for asker in self.askers for device in asker.has]
        assert len(had) == len(set(had))


def test_any_sequence_of_requests(redis_url: str) -> None:
    machine = type("Machine", (DeviceMachine,), {"url": redis_url})
    wanted = settings(
        max_examples=40,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=wanted)

"""SIGTERM while a stage has yet enough of its grace: it ends well, and the job with it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from draftmill.states import JobState, Stage
from draftmill_service.keyring import Keyring, Scope
from draftmill_worker import process
from tests.integration.offices import office, redis_server
from tests.integration.test_drain import PATIENCE, SMALL, each_stage, outcomes, spec, terminate
from tests.integration.test_resilience import process as service_process
from tests.integration.worker_process import Office, Worker
from tests.integration.worker_stages.behave import HERE
from tests.redis_server import RedisServer, free_port
from tests.support import eventually

__all__ = ["office", "redis_server"]


@pytest.fixture(scope="module")
def patient(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker(tmp_path_factory.mktemp("worker"), redis_server.url, SMALL, DRAFTMILL_DRAIN_SECONDS="60")
    worker.start()
    yield worker
    worker.close()


def _running(office: Office, worker: Worker, stage: Stage, act: str) -> tuple[str, psutil.Process]:
    job_id = office.submit(spec(**{stage.value: act}))
    office.reach(job_id, stage, timeout=PATIENCE)
    eventually((worker.data / "jobs" / job_id / "1" / stage.value / HERE).exists, timeout=PATIENCE)
    return job_id, worker.stage_processes()[0]


@pytest.mark.parametrize("stage", each_stage(Stage.VERIFY))
@pytest.mark.parametrize("victim", [pytest.param("jobs", marks=pytest.mark.slow), "supervisor", "template"])
def test_the_stage_ends_and_the_job_goes_on(office: Office, patient: Worker, victim: str, stage: Stage) -> None:
    job_id, running = _running(office, patient, stage, "until-let-go")
    target = terminate(patient, victim)
    running.send_signal(signal.SIGUSR1)
    job = office.done(job_id, PATIENCE)
    assert job.state is JobState.SUCCEEDED
    assert outcomes(job) == ["succeeded"]
    eventually(lambda: not process.alive(target), timeout=PATIENCE)
    # Its successor takes jobs.
    assert office.done(office.submit(), PATIENCE).state is JobState.SUCCEEDED


@pytest.mark.slow
def test_an_engine_that_is_stopped_with_its_worker_fails_no_job(office: Office, patient: Worker) -> None:
    job_id, running = _running(office, patient, Stage.BENCH, "engine-stopped-once")
    stops = patient.log().count("Warm shutdown")
    patient.jobs.terminate()
    eventually(lambda: patient.log().count("Warm shutdown") > stops, timeout=PATIENCE)
    running.send_signal(signal.SIGUSR1)
    assert outcomes(office.done(job_id, PATIENCE)) == ["interrupted", "succeeded"]


@pytest.mark.parametrize("stage", each_stage(Stage.PULL))
def test_the_service_stops_and_the_job_goes_on(
    office: Office, patient: Worker, redis_server: RedisServer, tmp_path: Path, stage: Stage
) -> None:
    port = free_port()
    token = Keyring(tmp_path / "keys.json").create("tests", set(Scope))[1]
    url, headers = f"http://127.0.0.1:{port}", {"Authorization": f"Bearer {token}"}

    def state(job_id: str) -> str | None:
        try:
            return str(httpx.get(f"{url}/v1/jobs/{job_id}", headers=headers).json()["state"])
        except httpx.TransportError:
            return None

    with service_process(redis_server.url, tmp_path, port) as service:
        job_id, running = _running(office, patient, stage, "until-let-go")
        eventually(lambda: state(job_id) == "running", timeout=PATIENCE)
        service.terminate()
        assert service.wait(PATIENCE) == 0
    running.send_signal(signal.SIGUSR1)
    assert outcomes(office.done(job_id, PATIENCE)) == ["succeeded"]
    with service_process(redis_server.url, tmp_path, port):
        eventually(lambda: state(job_id) == "succeeded", timeout=PATIENCE)

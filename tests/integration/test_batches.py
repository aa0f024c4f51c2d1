"""A batch through the running service, two real workers and the Hub stand-in; one worker dies in the middle."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors import safe_open

from draftmill import Batch, BatchReport, BatchSpec, Client, Format, Job, JobSpec, RepoSource
from draftmill.states import JobState, Stage
from tests.conftest import ServedHub
from tests.fixtures.synthetic import Layout, build
from tests.integration.live import live_service
from tests.integration.worker_process import Worker
from tests.redis_server import RedisServer
from tests.support import eventually

HELD = "tests.integration.worker_stages.held"
SINGLE = "org/single"
FORMATS = (Format.FP8, Format.NVFP4, Format.FP8_PC_PT, Format.W4A16_NVFP4)


@dataclass(frozen=True)
class Shop:
    """Two workers over one data directory."""

    client: Client
    workers: tuple[Worker, Worker]
    data: Path

    def holder(self, job: Job) -> Worker:
        """The worker that holds the job."""
        pid = int(job.attempts[-1].worker.rpartition(":")[2])
        return next(worker for worker in self.workers if worker.supervisor.pid == pid)


@contextmanager
def shop(redis_url: str, hub: ServedHub, folder: Path) -> Iterator[Shop]:
    data = folder / "data"
    with ExitStack() as stack:
        live = stack.enter_context(live_service(redis_url, data, reap_seconds=0.3, ring_seconds=1.0))
        client = stack.enter_context(Client(live.url, live.token))
        workers = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            settings = {"DRAFTMILL_DATA_DIR": str(data), "DRAFTMILL_HUB_ENDPOINT": hub.url}
            workers.append(Worker(folder / name, redis_url, HELD, **settings))
            stack.callback(workers[-1].close)
            workers[-1].start()
        yield Shop(client, (workers[0], workers[1]), data)


def drafters(hub: ServedHub, folder: Path, count: int) -> dict[str, Path]:
    folders = {f"org/d{number}": folder / f"d{number}" for number in range(count)} | {SINGLE: folder / "single"}
    for seed, (repo, path) in enumerate(folders.items()):
        hub.add(repo, build(path, "eagle3", Layout(seed=seed)))
    return folders


def weights(folder: Path) -> int:
    """Bytes of the tensors in a checkpoint, as safetensors reads them."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            total += sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118 -- no mapping
    return total


def finished(client: Client, batch: Batch, count: int) -> bool:
    return client.get_batch(batch).counts[JobState.SUCCEEDED] >= count


def check_pulls(hub: ServedHub, folders: dict[str, Path]) -> None:
    """One listing and one download of each file per source; what is read by range are headers, before the download."""
    for repo, folder in folders.items():
        assert len(hub.log.find(repo=repo, kind="tree")) == 1
        whole = [request for request in hub.log.downloads(repo) if request.range is None]
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert sorted((request.path, request.sent) for request in whole) == sorted(sizes.items()), repo


def check_runs(jobs: list[Job], killed: str) -> None:
    """Every item ran once, the one of the killed worker once more, and nobody's work was another's."""
    for job in jobs:
        outcomes = [attempt.outcome for attempt in job.attempts]
        assert outcomes == (["lost", "succeeded"] if job.id == killed else ["succeeded"]), job.id
        assert not job.cached
        assert job.summary is not None
        assert job.summary.checks_failed == 0
    variants = {job.resolved_spec.variant for job in jobs if job.resolved_spec}
    assert len(variants) == len(jobs)


def check_report(report: BatchReport, jobs: list[Job], folders: dict[str, Path], data: Path) -> None:
    assert [row.job for row in report.rows] == [job.id for job in jobs]
    for row, job in zip(report.rows, jobs, strict=True):
        assert isinstance(row.source, RepoSource)
        assert job.resolved_spec is not None
        variant = data / "variants" / job.resolved_spec.variant
        assert (row.source_bytes, row.variant_bytes) == (weights(folders[row.source.repo]), weights(variant))
        assert (row.state, row.format, row.family) == (JobState.SUCCEEDED, job.spec.format, "eagle3")
        assert (row.commit, row.pareto) == (job.resolved_spec.source.commit, None)


def sweep(shop: Shop, hub: ServedHub, folders: dict[str, Path], formats: tuple[Format, ...]) -> None:
    client = shop.client
    sources = tuple(RepoSource(repo=repo) for repo in folders if repo != SINGLE)
    held = sources[len(sources) // 2]
    labels = {"hold": "pull:after", "hold_item": f"{held.repo} {formats[0]}"}
    batch = client.submit_batch(BatchSpec(sources=sources, formats=formats, labels=labels))
    (item,) = client.batch_items(batch, source=len(sources) // 2, format=formats[0])
    assert item.job is not None

    # In the middle one worker holds an item for good; the other one goes on.
    eventually((shop.data / "jobs" / item.job / "1" / Stage.PULL / "held").exists, timeout=600)
    before = client.get_batch(batch).counts[JobState.SUCCEEDED]
    single = client.submit(JobSpec(source=RepoSource(repo=SINGLE), format=Format.FP8))
    shop.holder(client.get(item.job)).kill()
    single = eventually(lambda: job if (job := client.get(single)).done else None, timeout=300) or single
    during = client.get_batch(batch)
    assert single.state is JobState.SUCCEEDED, single.problem
    # Two workers may each have taken one item before they looked again.
    assert during.counts[JobState.SUCCEEDED] - before <= 3
    assert not during.done

    eventually(lambda: client.get_batch(batch).done, timeout=900, interval=0.2)
    ended = client.get_batch(batch)
    assert (ended.state, ended.counts[JobState.SUCCEEDED]) == (JobState.SUCCEEDED, batch.total)
    jobs = [client.get(str(each.job)) for each in client.batch_items(batch)]
    check_pulls(hub, folders)
    check_runs(jobs, item.job)
    check_report(client.batch_report(batch), jobs, folders, shop.data)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("count", "formats"), [(6, 2), pytest.param(50, 4, marks=pytest.mark.slow)])
def test_a_batch_on_two_workers_of_which_one_dies(
    durable_redis: RedisServer, hub: ServedHub, tmp_path: Path, count: int, formats: int
) -> None:
    folders = drafters(hub, tmp_path / "drafters", count)
    with shop(durable_redis.url, hub, tmp_path) as working:
        sweep(working, hub, folders, FORMATS[:formats])

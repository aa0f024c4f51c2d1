"""Plan, verify report and files of a job, read from the data directory as a worker leaves it."""

import hashlib
import http.client
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from draftmill.benchmarks import Verdict
from draftmill.formats import Format
from draftmill.jobs import QuantizeOptions, ResolvedSource, ResolvedSpec
from draftmill.plans import Family, Fate, Head, OutputTensor, Plan, TensorPlan
from draftmill.problems import URN, Offender, ProblemError
from draftmill.reports import Artifacts, Check, CheckStatus, Manifest, ManifestFile, VerifyReport
from draftmill.states import Outcome, Reason
from draftmill_service.ledger import WorkerLedger
from tests.fixtures import verdicts
from tests.integration.live import Live
from tests.integration.test_api import claim, problem, submit

WEIGHTS = bytes(range(256)) * 1000
VARIANT = "ab" * 32
TENSOR = TensorPlan(
    name="norm.weight",
    dtype="BF16",
    shape=(8,),
    file="model.safetensors",
    fate=Fate.KEPT,
    reason="1-D",
    outputs=(OutputTensor(name="norm.weight", dtype="BF16", shape=(8,)),),
)
PLAN = Plan(
    family=Family.EAGLE3,
    dialect="flat",
    head=Head.OWN,
    format=Format.FP8,
    scales="fused",
    dtype="bfloat16",
    tensors=(TENSOR,),
    ignore=("lm_head",),
    source_bytes=16,
    variant_bytes=16,
)
REPORT = VerifyReport(passed=True, checks=(Check(id="names", status=CheckStatus.PASS, proves="names in = names out"),))
FAILED = VerifyReport(passed=False, checks=(Check(id="names", status=CheckStatus.FAIL, proves="names in = names out"),))
RESOLVED = ResolvedSpec(
    source=ResolvedSource(repo="org/drafter", commit="0" * 40, manifest_sha256="cd" * 32),
    format=Format.FP8,
    quantize=QuantizeOptions(),
    family="eagle3",
    quantizer="test",
    variant=VARIANT,
)


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def report(live: Live, job_id: str, verdict: VerifyReport) -> None:
    path = live.data_dir / "evidence" / VARIANT / job_id / "verify.json"
    write(path, verdict.model_dump_json(by_alias=True).encode())


@pytest.fixture
def variant(live: Live) -> Iterator[Path]:
    """A sealed variant with its manifest; the manifest also names what the store must not give."""
    folder = live.data_dir / "variants" / VARIANT
    write(folder / "model.safetensors", WEIGHTS)
    write(folder / "nested" / "modeling.py", b"class Drafter: ...")
    write(folder / "plan.json", PLAN.model_dump_json(by_alias=True).encode())
    listed = ["model.safetensors", "nested/modeling.py", "plan.json"]
    files = [
        ManifestFile(path=path, size=len(data), sha256=hashlib.sha256(data).hexdigest())
        for path in listed
        for data in [(folder / path).read_bytes()]
    ]
    escapes = ["../secret.json", "link.json"]
    write(folder.parent / "secret.json", b"secret")
    if not (folder / "link.json").is_symlink():
        (folder / "link.json").symlink_to(folder.parent / "secret.json")
    files += [ManifestFile(path=path, size=6, sha256="0" * 64) for path in escapes]
    manifest = Manifest(files=tuple(sorted(files, key=lambda file: file.path)))
    write(live.data_dir / "evidence" / VARIANT / "manifest.json", manifest.model_dump_json().encode())
    write(folder / "unlisted.txt", b"not in the manifest")
    report(live, "j0" + "0" * 25, REPORT)
    yield folder
    shutil.rmtree(live.data_dir / "evidence")


@pytest.fixture
def succeed(api: httpx.Client, worker: WorkerLedger) -> Callable[[], str]:
    def run() -> str:
        job_id = submit(api)
        held = claim(worker, job_id)
        worker.resolve(held, RESOLVED, "eagle3")
        assert worker.finish(held, Outcome.SUCCEEDED)
        return job_id

    return run


def test_artifacts_of_a_job(api: httpx.Client, variant: Path, succeed: Callable[[], str]) -> None:
    job_id = succeed()
    listed = Artifacts.model_validate_json(api.get(f"/v1/jobs/{job_id}/artifacts").content)
    assert listed.variant == VARIANT
    assert api.get("/v1/jobs", params={"family": "eagle3"}).json()["items"][0]["id"] == job_id
    for file in listed.files:
        if file.sha256 == "0" * 64:
            continue
        response = api.get(f"/v1/jobs/{job_id}/artifacts/{file.path}")
        assert response.status_code == 200
        assert hashlib.sha256(response.content).hexdigest() == file.sha256
        assert response.headers["etag"] == f'"{file.sha256}"'
        assert int(response.headers["content-length"]) == file.size
        head = api.head(f"/v1/jobs/{job_id}/artifacts/{file.path}")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == str(file.size)


def test_ranges(api: httpx.Client, variant: Path, succeed: Callable[[], str]) -> None:
    path = f"/v1/jobs/{succeed()}/artifacts/model.safetensors"
    etag = api.get(path).headers["etag"]
    part = api.get(path, headers={"Range": "bytes=1000-1999", "If-Range": etag})
    assert (part.status_code, part.content) == (206, WEIGHTS[1000:2000])
    assert part.headers["content-range"] == f"bytes 1000-1999/{len(WEIGHTS)}"
    rest = api.get(path, headers={"Range": f"bytes={len(WEIGHTS) - 5}-"})
    assert (rest.status_code, rest.content) == (206, WEIGHTS[-5:])
    changed = api.get(path, headers={"Range": "bytes=1000-1999", "If-Range": '"other"'})
    assert (changed.status_code, changed.content) == (200, WEIGHTS)
    beyond = api.get(path, headers={"Range": f"bytes={len(WEIGHTS)}-"})
    problem(beyond, "range-not-satisfiable")
    assert beyond.headers["content-range"] == f"bytes */{len(WEIGHTS)}"
    # RFC 9110, 14.2: what is no range of a known unit is ignored.
    for malformed in ("bytes=5-2", "lines=1-2", "rubbish"):
        whole = api.get(path, headers={"Range": malformed})
        assert (whole.status_code, whole.content) == (200, WEIGHTS)


@pytest.mark.parametrize(
    "path",
    [
        "../secret.json",
        "%2e%2e/secret.json",
        "..%2fsecret.json",
        "link.json",
        "unlisted.txt",
        "nested",
        "",
        "%2fetc%2fpasswd",
        "nested/../plan.json",
        "plan.json%00",
    ],
)
def test_nothing_but_listed_files_inside_the_variant(
    live: Live, variant: Path, succeed: Callable[[], str], path: str
) -> None:
    # httpx would tidy the dots away.
    connection = http.client.HTTPConnection(live.settings.host, live.settings.port)
    headers = {"Authorization": f"Bearer {live.token}"}
    connection.request("GET", f"/v1/jobs/{succeed()}/artifacts/{path}", headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    assert (response.status, json.loads(body)["type"]) == (404, URN + "not-found")


def test_no_artifacts_before_the_end(api: httpx.Client, worker: WorkerLedger, variant: Path) -> None:
    job_id = submit(api)
    for _ in range(2):
        problem(api.get(f"/v1/jobs/{job_id}/artifacts"), "not-ready")
        problem(api.get(f"/v1/jobs/{job_id}/artifacts/model.safetensors"), "not-ready")
        worker.claim(job_id, "w1", 60)


def test_failed_variant_is_not_served_and_its_report_is(
    live: Live, api: httpx.Client, worker: WorkerLedger, variant: Path
) -> None:
    job_id = submit(api)
    held = claim(worker, job_id)
    worker.resolve(held, RESOLVED, "eagle3")
    failed = ProblemError("verify-failed", "names differ").problem
    report(live, job_id, FAILED)
    assert worker.finish(held, Outcome.FAILED, Reason.VERIFY_FAILED, failed)
    problem(api.get(f"/v1/jobs/{job_id}/artifacts"), "not-ready")
    problem(api.get(f"/v1/jobs/{job_id}/artifacts/model.safetensors"), "not-ready")
    assert VerifyReport.model_validate_json(api.get(f"/v1/jobs/{job_id}/verify").content) == FAILED


def test_plan_of_a_running_job_comes_from_its_attempt(live: Live, api: httpx.Client, worker: WorkerLedger) -> None:
    job_id = submit(api)
    problem(api.get(f"/v1/jobs/{job_id}/plan"), "not-ready")
    claim(worker, job_id)
    result = {"value": {"plan": PLAN.model_dump(mode="json", by_alias=True)}, "seconds": 1.0}
    write(live.data_dir / "jobs" / job_id / "1" / "plan" / "result.json", json.dumps(result).encode())
    assert Plan.model_validate_json(api.get(f"/v1/jobs/{job_id}/plan").content) == PLAN


def test_plan_and_report_of_a_sealed_variant(
    live: Live, api: httpx.Client, variant: Path, succeed: Callable[[], str]
) -> None:
    job_id = succeed()
    assert Plan.model_validate_json(api.get(f"/v1/jobs/{job_id}/plan").content) == PLAN
    # A job answered from the store has no report of its own, and shows the variant's.
    assert VerifyReport.model_validate_json(api.get(f"/v1/jobs/{job_id}/verify").content) == REPORT
    own = VerifyReport(passed=True, checks=())
    report(live, job_id, own)
    assert VerifyReport.model_validate_json(api.get(f"/v1/jobs/{job_id}/verify").content) == own


def test_variant_that_failed_later_is_not_served(
    live: Live, api: httpx.Client, variant: Path, succeed: Callable[[], str]
) -> None:
    job_id = succeed()
    assert api.get(f"/v1/jobs/{job_id}/artifacts").status_code == 200
    report(live, "jz" + "z" * 25, FAILED)
    problem(api.get(f"/v1/jobs/{job_id}/artifacts"), "verify-failed")
    problem(api.get(f"/v1/jobs/{job_id}/artifacts/model.safetensors"), "verify-failed")


def test_variant_without_evidence_is_not_served(
    live: Live, api: httpx.Client, variant: Path, succeed: Callable[[], str]
) -> None:
    (live.data_dir / "evidence" / VARIANT / ("j0" + "0" * 25) / "verify.json").unlink()
    problem(api.get(f"/v1/jobs/{succeed()}/artifacts"), "verify-failed")


def test_variant_that_was_removed_is_gone(api: httpx.Client, succeed: Callable[[], str]) -> None:
    job_id = succeed()
    for what in ("artifacts", "verify"):
        problem(api.get(f"/v1/jobs/{job_id}/{what}"), "expired")


def test_files_say_the_newest_verdict(api: httpx.Client, live: Live, variant: Path, succeed: Callable[[], str]) -> None:
    """A job that succeeded before its variant was found wanting does not hide it."""
    job_id = succeed()
    path = f"/v1/jobs/{job_id}/artifacts"
    assert Artifacts.model_validate_json(api.get(path).content).acceptance is None
    assert api.get(f"{path}/plan.json").headers["draftmill-gate"] == "none"
    verdicts.write(live.data_dir, VARIANT, "j1" + "0" * 25, Verdict.FAILED)
    found = Artifacts.model_validate_json(api.get(path).content).acceptance
    assert found is not None
    assert (found.job, found.verdict, found.failures) == ("j1" + "0" * 25, Verdict.FAILED, (verdicts.FAILURE,))
    for asked in (api.get, api.head):
        assert asked(f"{path}/plan.json").headers["draftmill-gate"] == "failed"
    part = api.get(f"{path}/plan.json", headers={"Range": "bytes=0-3"})
    assert (part.status_code, part.headers["draftmill-gate"]) == (206, "failed")
    verdicts.write(live.data_dir, VARIANT, "j2" + "0" * 25, Verdict.PASSED)
    assert api.get(f"{path}/plan.json").headers["draftmill-gate"] == "passed"


def test_a_job_that_failed_its_gate_gives_no_files(
    api: httpx.Client, live: Live, variant: Path, worker: WorkerLedger
) -> None:
    job_id = submit(api)
    held = claim(worker, job_id)
    worker.resolve(held, RESOLVED, "eagle3")
    why = ProblemError("gate-failed", "the gate of another job", [Offender(where="receipt", message="b0")]).problem
    worker.finish(held, Outcome.FAILED, Reason.GATE_FAILED, why)
    for path in ("artifacts", "artifacts/plan.json"):
        refused = problem(api.get(f"/v1/jobs/{job_id}/{path}"), "gate-failed")
        assert "accept_failed_gate" in refused["detail"]
        assert [offender["where"] for offender in refused["offenders"]] == ["receipt"]
    # What was found is there to read.
    verdicts.write(live.data_dir, VARIANT, "j1" + "0" * 25, Verdict.FAILED)
    assert api.get(f"/v1/jobs/{job_id}/acceptance").json()["gate"]["verdict"] == "failed"

"""A head rewritten and a draft vocabulary cut through the whole service: REST, ledger, worker, store, download."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from draftmill.client import Client
from draftmill.jobs import Job, JobSpec
from draftmill.problems import ProblemError
from draftmill.reports import CheckStatus
from draftmill.states import JobState, Reason, Stage, StageState
from tests.e2e.conftest import World
from tests.e2e.embedded import Up
from tests.fixtures.heads import target
from tests.unit.heads import layouts

STAGES = [Stage.PULL, Stage.CAPTURE, Stage.PLAN, Stage.HEADS, Stage.VERIFY, Stage.SEAL]
pytestmark = pytest.mark.timeout(900)


def _ids(world: World, ids: list[int]) -> dict[str, str]:
    path = world.folder / f"ids-{len(ids)}-{sum(ids)}.json"
    path.write_text(json.dumps(ids))
    return {"path": str(path)}


def _run(client: Client, spec: dict[str, object]) -> Job:
    return client.wait(client.submit(JobSpec.model_validate({"format": "keep", **spec})))


@pytest.fixture(scope="module")
def source(world: World) -> Path:
    return layouts.streamed(world.folder / "heads-mtp")


@pytest.fixture(scope="module")
def repo(world: World, source: Path) -> str:
    return world.hub.add("org/mtp", source).id


def test_a_head_and_a_draft_vocabulary_through_the_service(
    up: Up, world: World, source: Path, repo: str, tmp_path: Path
) -> None:
    ids = list(range(1000, 0, -7))
    spec = {
        "source": {"repo": repo},
        "head": {"bits": 8, "method": "rtn", "mtp": 8},
        "draft_vocab": {"ids": _ids(world, ids)},
    }
    with up.client() as client:
        job = _run(client, spec)
        assert job.state is JobState.SUCCEEDED, job.problem
        assert [stage.name for stage in job.attempts[-1].stages] == STAGES
        assert all(stage.state is StageState.SUCCEEDED for stage in job.attempts[-1].stages)
        found = client.head(job)
        assert [(group.name, group.bits) for group in found.groups] == [("draftmill_head", 8), ("draftmill_mtp", 8)]
        assert found.draft_vocab is not None
        assert (found.draft_vocab.size, found.draft_vocab.native) == (len(ids), False)
        report = client.verify(job)
        assert {check.status for check in report.checks} == {CheckStatus.PASS}
        client.download(job, tmp_path / "out")
        tensors = layouts.tensors(tmp_path / "out")
        assert tensors["mtp.draft_vocab_ids"].tolist() == sorted(ids)
        for part in ("weight_packed", "weight_scale"):
            assert torch.equal(tensors[f"mtp.draft_lm_head.{part}"], tensors[f"lm_head.{part}"][sorted(ids)])
        assert torch.equal(
            tensors["model.norm.weight"], layouts.load_file(source / "model.safetensors")["model.norm.weight"]
        )
        assert job.summary is not None
        assert (job.summary.variant_bytes, job.summary.checks_failed) == (found.variant_bytes, 0)
        with pytest.raises(ProblemError, match="no plan of tensors"):
            client.plan(job)
        log = (up.data_dir / "jobs" / job.id / "1" / "verify" / "log.jsonl").read_text()
        assert "PASS head-bits: " in log
        # The same request again is answered from the store, and another source's weights are still its own.
        again = _run(client, spec)
        assert again.cached
        assert again.resolved_spec == job.resolved_spec
        other = _run(client, {**spec, "head": {"bits": 4, "method": "rtn"}})
        assert other.resolved_spec is not None
        assert job.resolved_spec is not None
        assert other.resolved_spec.variant != job.resolved_spec.variant
    # The store's weights are the source's own, until something rewrote them.
    folder = up.data_dir / "variants" / job.resolved_spec.variant
    assert {path.name: path.stat().st_nlink > 1 for path in folder.glob("*.safetensors")} == dict.fromkeys(
        sorted(found.linked), True
    ) | {path.name: False for path in folder.glob("*.safetensors") if path.name not in found.linked}


def test_the_commands_show_it(up: Up, world: World, repo: str) -> None:
    spec = {"source": {"repo": repo}, "draft_vocab": {"ids": _ids(world, [5, 9, 11])}}
    with up.client() as client:
        job = _run(client, spec)
        assert job.state is JobState.SUCCEEDED, job.problem
    said = up.run("jobs", "head", job.id)
    assert "draft vocabulary: 3 tokens, a draft head for the MTP block" in said.stdout, said.stderr


@pytest.mark.parametrize(
    ("ids", "slug", "reason"),
    [([1, 1], "draft-vocab-invalid", Reason.CAPTURE_FAILED), ([1024], "draft-vocab-invalid", Reason.CAPTURE_FAILED)],
)
def test_wrong_ids_are_refused_before_anything_is_built(
    up: Up, world: World, repo: str, ids: list[int], slug: str, reason: Reason
) -> None:
    with up.client() as client:
        job = _run(client, {"source": {"repo": repo}, "draft_vocab": {"ids": _ids(world, ids)}})
        assert (job.state, job.reason) == (JobState.FAILED, reason)
        assert job.problem is not None
        assert job.problem.slug == slug
        with pytest.raises(ProblemError):
            client.head(job)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"format": "keep"}, "goes with `head` or `draft_vocab`"),
        ({"format": "fp8", "head": {"method": "rtn"}}, "goes with `head` or `draft_vocab`"),
        ({"format": "keep", "head": {}}, "needs a `capture`"),
        ({"format": "keep", "draft_vocab": {"own_outputs": True, "size": 9}}, "needs a `capture`"),
        ({"format": "fp8", "capture": {}}, "goes with `format: keep`"),
        ({"format": "keep", "draft_vocab": {}}, "exactly one of"),
        ({"format": "keep", "draft_vocab": {"own_outputs": True}}, "`size` goes with counting"),
        (
            {
                "format": "keep",
                "head": {"method": "rtn"},
                "benchmark": {"target": {"repo": "a/b"}, "num_speculative_tokens": 1},
            },
            "does not benchmark",
        ),
    ],
)
def test_specs_that_say_two_things_are_refused(spec: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JobSpec.model_validate({"source": {"repo": "a/b"}, **spec})


@pytest.mark.slow
@pytest.mark.vllm
def test_a_captured_head_through_the_service(up: Up, world: World, tmp_path: Path) -> None:
    folder = target.build(world.folder / "captured", exact=True, tied=True)
    target.write_tokenizer(folder)
    repo = world.hub.add("org/captured", folder).id
    spec = {
        "source": {"repo": repo},
        "head": {"bits": 4, "method": "gptq"},
        "draft_vocab": {"own_outputs": True, "size": 600},
        "capture": {"texts": {"max_tokens": 32}},
    }
    with up.client() as client:
        job = _run(client, spec)
        assert job.state is JobState.SUCCEEDED, job.problem
        found = client.head(job).report
        assert found is not None
        assert found.rtn is not None
        assert found.gptq is not None
        assert found.gptq.kl <= 0.6 * found.rtn.kl
        vocabulary = client.head(job).draft_vocab
        assert vocabulary is not None
        assert [one.size for one in vocabulary.coverage][:4] == [75, 150, 300, 600]
        assert vocabulary.coverage[-1].covered == 1.0
        client.download(job, tmp_path / "out")
        assert layouts.tensors(tmp_path / "out")["mtp.draft_vocab_ids"].shape == (600,)

"""The capture stage: what it refuses before an engine boots, and when none needs to."""

import json
from pathlib import Path
from typing import Any

import pytest

from draftmill.jobs import JobSpec
from draftmill.problems import ProblemError
from draftmill.states import Stage
from draftmill_worker.checkpoint.manifest import make_manifest
from draftmill_worker.heads.capture import CaptureManifest
from draftmill_worker.settings import StageSettings
from draftmill_worker.stage import StageRequest
from draftmill_worker.stages import capture as module
from tests.fixtures.heads import target
from tests.unit.heads import captured, layouts


class _Reporter:
    def progress(self, done: int, total: int, unit: str) -> None:
        return None

    def log(self, level: str, message: str) -> None:
        return None


def _request(tmp_path: Path, source: Path, spec: dict[str, Any], **pulled: Any) -> StageRequest:
    manifest = make_manifest(source).model_dump(mode="json")
    given = {"folder": str(source), "repo": "org/t", "commit": None, "manifest": manifest}
    extra = {"capture_target": None, "capture_texts": None, "draft_corpus": None, "draft_ids": None}
    request = StageRequest(
        job="j",
        attempt=1,
        stage=Stage.CAPTURE,
        data_dir=tmp_path,
        spec=JobSpec.model_validate({"source": {"repo": "org/t"}, "format": "keep", **spec}),
        previous={Stage.PULL: given | extra | pulled},
        settings=StageSettings(),
    )
    request.scratch.mkdir(parents=True)
    return request


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    def boot(*_: object, **__: object) -> None:
        raise AssertionError("an engine was booted")

    monkeypatch.setattr(module, "capture", boot)


@pytest.mark.usefixtures("never")
def test_a_repositorys_code_runs_only_where_the_operator_allows_it(tmp_path: Path) -> None:
    source = layouts.streamed(tmp_path / "source")
    spec = {"head": {}, "capture": {"engine_args": {"trust_remote_code": True}}}
    with pytest.raises(ProblemError) as caught:
        module.run(_request(tmp_path, source, spec), _Reporter())
    assert caught.value.problem.slug == "remote-code-refused"
    assert caught.value.problem.offenders[0].where == "capture.target"


def test_what_was_captured_stays_with_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = layouts.streamed(tmp_path / "source")
    manifest = CaptureManifest(
        sha256="0" * 64,
        rows=9,
        columns=256,
        texts=3,
        calibration_rows=8,
        held_out_rows=1,
        texts_sha256="1" * 64,
        own_outputs=True,
        engine="vllm-cpu-0",
        engine_args={},
        environment={},
        runner="r",
        model="m",
        norm="n",
    )
    seen: list[Path] = []

    def capture(target: Path, *_: object, **__: object) -> CaptureManifest:
        seen.append(target)
        return manifest

    monkeypatch.setattr(module, "capture", capture)
    request = _request(tmp_path, source, {"head": {}, "capture": {}})
    request.folder.mkdir(parents=True)
    assert module.run(request, _Reporter())["rows_sha256"] == manifest.sha256
    assert seen == [source]
    assert CaptureManifest.model_validate_json((request.folder / "capture.json").read_bytes()) == manifest


@pytest.mark.usefixtures("never")
def test_a_corpus_is_counted_without_an_engine(tmp_path: Path) -> None:
    source = target.build(tmp_path / "source", exact=True, shape=captured.SHAPE)
    target.write_tokenizer(source, captured.SHAPE.vocab)
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("\n".join(json.dumps({"text": f"return self.value_{number}"}) for number in range(50)))
    spec = {"draft_vocab": {"count_over": {}, "size": 64}, "capture": {"target": {"repo": "org/t"}}}
    other = {"folder": str(source), "repo": "org/t", "commit": None, "manifest": {"files": []}}
    request = _request(tmp_path, source, spec, draft_corpus=str(corpus), capture_target=other)
    found = module.run(request, _Reporter())
    assert found["rows_sha256"] is None
    ids = json.loads((request.scratch / "capture" / "ids.json").read_bytes())
    assert (len(ids), ids) == (64, sorted(set(ids)))
    assert found["coverage"][-1]["covered"] == 1.0

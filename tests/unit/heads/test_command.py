"""`draftmill head`: from words to a job."""

import pytest

from draftmill.cli import head as module
from draftmill.cli.request import UsageProblemError
from draftmill.jobs import Job, JobSpec


class _Submitted(Exception):
    pass


def _spec(monkeypatch: pytest.MonkeyPatch, *words: str) -> JobSpec:
    """What the command line would submit."""
    import typer

    seen: list[JobSpec] = []

    class Client:
        def __enter__(self) -> "Client":
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def submit(self, spec: JobSpec) -> Job:
            seen.append(spec)
            raise _Submitted

    monkeypatch.setattr(module, "Client", Client)
    app = typer.Typer()
    app.command()(module.head)
    with pytest.raises(_Submitted):
        app(list(words), standalone_mode=False)
    return seen[0]


def test_gptq_comes_with_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = _spec(monkeypatch, "org/target", "--method", "gptq", "--rows", "4096", "--draft-tokens", "40960")
    assert spec.head is not None
    assert (spec.head.method, spec.head.bits) == ("gptq", 4)
    assert spec.capture is not None
    assert spec.capture.max_rows == 4096
    assert spec.draft_vocab is not None
    assert (spec.draft_vocab.size, spec.draft_vocab.own_outputs) == (40960, True)


def test_rounding_and_given_ids_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        "/m/target",
        "--method",
        "rtn",
        "--bits",
        "8",
        "--mtp-bits",
        "8",
        "--draft-ids",
        "/d/ids.json",
        "--community",
    )
    spec = _spec(monkeypatch, *words)
    assert spec.capture is None
    assert spec.head is not None
    assert (spec.head.bits, spec.head.mtp) == (8, 8)
    assert spec.draft_vocab is not None
    assert spec.draft_vocab.ids is not None
    assert (spec.draft_vocab.ids.path, spec.draft_vocab.layout) == ("/d/ids.json", "community")


def test_a_corpus_is_counted_with_another_models_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("org/eagle3", "--draft-tokens", "32000", "--corpus", "/d/c.jsonl", "--target", "org/target")
    spec = _spec(monkeypatch, *words)
    assert spec.head is None
    assert spec.draft_vocab is not None
    assert spec.draft_vocab.count_over is not None
    assert spec.capture is not None
    assert spec.capture.target is not None


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"head": {"bits": 5}}, "--bits"),
        ({"head": {"method": "awq"}}, "--method"),
        ({"draft_vocab": {"size": 0, "own_outputs": True}}, "--draft-tokens"),
        ({}, "command"),
    ],
)
def test_what_is_wrong_is_named_by_its_option(fields: dict[str, object], where: str) -> None:
    with pytest.raises(UsageProblemError) as caught:
        module._spec({"source": {"repo": "a/b"}, "format": "keep", **fields})
    assert where in {offender.where for offender in caught.value.problem.offenders}

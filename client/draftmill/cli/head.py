"""`draftmill head`: a job that rewrites a head or cuts a draft vocabulary."""

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from draftmill.cli import text
from draftmill.cli.options import Json, Revision, Source, Wait
from draftmill.cli.output import Output
from draftmill.cli.request import UsageProblemError, is_path, mistaken
from draftmill.cli.watching import watch
from draftmill.client import Client
from draftmill.jobs import JobSpec
from draftmill.problems import Offender

_OPTIONS = {
    "source": "REPO|PATH",
    "bits": "--bits",
    "method": "--method",
    "mtp": "--mtp-bits",
    "embeddings": "--embedding-bits",
    "size": "--draft-tokens",
    "ids": "--draft-ids",
    "count_over": "--corpus",
    "max_rows": "--rows",
    "texts": "--texts",
    "target": "--target",
    "layout": "--community",
}


def head(
    source: Source,
    *,
    revision: Revision = None,
    method: Annotated[
        str | None, typer.Option(metavar="gptq|gptq_mse|rtn", help="Store lm_head in integers, by this method.")
    ] = None,
    bits: Annotated[int | None, typer.Option(metavar="4|8", help="Bits of lm_head.  [default: 4]")] = None,
    mtp_bits: Annotated[int | None, typer.Option(metavar="8", help="Round the MTP block too.")] = None,
    embedding_bits: Annotated[int | None, typer.Option(metavar="8", help="Round the input embedding too.")] = None,
    draft_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Draft from the N most frequent tokens alone.")
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="JSON lines that tokens are counted over, instead of the target's answers."),
    ] = None,
    draft_ids: Annotated[str | None, typer.Option(metavar="PATH", help="A JSON list of the tokens to draft.")] = None,
    community: Annotated[
        bool, typer.Option("--community", help="Add the file that a published vLLM patch reads.")
    ] = False,
    target: Annotated[
        str | None, typer.Option(metavar="REPO|PATH", help="The model whose hidden states are captured, if another.")
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="JSON lines that the target reads.  [default: the shipped prompts]"),
    ] = None,
    rows: Annotated[int | None, typer.Option(metavar="N", help="Tokens captured at most.  [default: 32768]")] = None,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Queue a job that stores a head in four or eight bits, cuts a draft vocabulary, or both; the rest is kept.

    \b
    Examples:
      draftmill head org/target --method gptq --wait
      draftmill head org/target --method gptq --draft-tokens 40960
      draftmill head org/eagle3 --draft-tokens 32000 --corpus /data/chats.jsonl --target org/target
      draftmill head ./target --method rtn --bits 8 --mtp-bits 8 --draft-ids /data/ids.json
    """
    asked = {
        "head": _said({"method": method, "bits": bits, "mtp": mtp_bits, "embeddings": embedding_bits}),
        "draft_vocab": _vocabulary(draft_tokens, corpus, draft_ids, community=community),
    }
    wanted = method not in (None, "rtn") or (asked["draft_vocab"] or {}).get("own_outputs")
    capture = _said({"target": _source(target, None), "max_rows": rows, "texts": _file(texts)})
    if wanted or capture is not None:
        asked["capture"] = capture or {}
    spec = _spec({"source": _source(source, revision), "format": "keep", **asked})
    output = Output(json)
    for note in mistaken(source, target):
        output.note(note)
    with Client() as client:
        job = client.submit(spec)
        if not wait:
            output.result(job, f"{job.id} {job.state}")
            output.note(f"Watch it: draftmill jobs watch {job.id}")
            return
        output.note(f"{job.id} {job.state}")
        ended, code = watch(client, job, output, json_lines=False)
    if ended is not None:
        output.result(ended, *text.job_lines(ended))
    raise typer.Exit(code)


def _said(values: dict[str, Any]) -> dict[str, Any] | None:
    return {name: value for name, value in values.items() if value is not None} or None


def _vocabulary(size: int | None, corpus: str | None, ids: str | None, *, community: bool) -> dict[str, Any] | None:
    if size is None and corpus is None and ids is None:
        return None
    return _said(
        {
            "size": size,
            "count_over": _file(corpus),
            "ids": None if ids is None else _path(ids),
            "own_outputs": corpus is None and ids is None,
            "layout": "community" if community else None,
        }
    )


def _file(words: str | None) -> dict[str, Any] | None:
    return None if words is None else {"path": _path(words)}


def _path(words: str) -> dict[str, str]:
    return {"path": str(Path(words).expanduser().resolve())}


def _source(words: str | None, revision: str | None) -> dict[str, str] | None:
    if words is None:
        return None
    if is_path(words):
        return _path(words)
    return {"repo": words, "revision": revision or "main"}


def _spec(fields: dict[str, Any]) -> JobSpec:
    """Raises UsageProblemError with every option that is wrong."""
    try:
        return JobSpec.model_validate(fields)
    except ValidationError as error:
        offenders = []
        for fault in error.errors(include_url=False):
            names = [str(part) for part in fault["loc"]]
            where = next((_OPTIONS[name] for name in reversed(names) if name in _OPTIONS), ".".join(names) or "command")
            value = fault["input"] if isinstance(fault["input"], str | int | float) else None
            offenders.append(Offender(where=where, message=fault["msg"], value=value))
        raise UsageProblemError("the command line does not make a job", offenders) from error

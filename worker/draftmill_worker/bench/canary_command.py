"""`draftmill canary`."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from draftmill.benchmarks import PromptSet
from draftmill.cli.options import Json
from draftmill.cli.output import Output, dump
from draftmill.cli.request import UsageProblemError
from draftmill.formats import FORMATS, Format
from draftmill.plans import Family
from draftmill.problems import Offender

_ROOT = Path(__file__).parents[3]
PAIRS = (Path(__file__).with_name("pair"), _ROOT / "tests" / "fixtures" / "models")
"""Where the pair lies: in the installed package, or in the repository."""


class _Lines:
    """Reports on standard error."""

    def progress(self, done: int, total: int, unit: str) -> None:
        del done, total, unit

    def log(self, level: str, message: str) -> None:
        sys.stderr.write(f"{level}: {message}\n")


def canary(
    *,
    family: Annotated[list[str], typer.Option(metavar="FAMILY", help="Only this one. May be repeated.")] = [],  # noqa: B006
    format: Annotated[list[str], typer.Option("--format", "-f", metavar="FORMAT", help="Only this one.")] = [],  # noqa: B006
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Prompts of draftmill-1 to run.")] = 40,
    max_tokens: Annotated[int, typer.Option(metavar="N", min=2, help="Tokens per answer, at most.")] = 64,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Receipts and tables.  [default: `canary` in the data directory]")
    ] = None,
    json: Json = False,
) -> None:
    """Measure what the engine on this machine can do: every drafter family in every format, on a small pair that ships.

    \b
    Example:
      draftmill canary --json > capabilities.json
    """
    from draftmill_worker.bench.canary import DRAFTED, Canary, lines

    families, formats = _chosen(family, format, tuple(DRAFTED))
    pair = next((path for path in PAIRS if (path / "target").is_dir()), None)
    if pair is None:
        looked = ", ".join(map(str, PAIRS))
        offender = Offender(where="pair", message=f"nothing at {looked}; install with `make install` from a clone")
        raise UsageProblemError("the trained pair is part of the repository, not of this installation", [offender])
    root = Path(os.environ.get("DRAFTMILL_DATA_DIR", "~/.local/share/draftmill")).expanduser()
    prompt_set = PromptSet(builtin="draftmill-1", limit=limit, max_tokens=max_tokens)
    table = Canary(pair, data_dir or root / "canary", prompt_set, _Lines()).run(families, formats)
    if json:
        print(dump([row.model_dump(mode="json") for row in table.rows]))  # noqa: T201
        return
    problems = (f"{name}: {why}" for name, why in table.problems.items())
    Output(False).result(table, *lines(table.rows), *problems)


def _chosen(
    families: list[str], formats: list[str], known: tuple[Family, ...]
) -> tuple[tuple[Family, ...], tuple[Format, ...]]:
    offenders = [
        Offender(where="--family", message=f"must be one of {', '.join(known)}", value=name)
        for name in families
        if name not in known
    ]
    offenders += [
        Offender(where="--format", message=f"must be one of {', '.join(FORMATS)}", value=name)
        for name in formats
        if name not in FORMATS
    ]
    if offenders:
        raise UsageProblemError("the command line names what there is not", offenders)
    return (
        tuple(Family(name) for name in families) or known,
        tuple(Format(name) for name in formats) or tuple(FORMATS),
    )

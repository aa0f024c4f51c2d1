"""Options that several commands share."""

from typing import Annotated

import typer

from draftmill.formats import FORMATS

_FORMATS = ", ".join(FORMATS)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document (or JSON lines) instead of text.")]
Wait = Annotated[bool, typer.Option("--wait", help="Watch the job to its end; the exit code is its outcome.")]
JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.")]
_SOURCE = typer.Argument(
    metavar="REPO|PATH",
    help="A Hub repository (org/drafter), or a checkpoint folder on the service's machine (starts with / . or ~).",
)
_FORMAT = typer.Option("--format", "-f", metavar="FORMAT", help=f"One of {_FORMATS}.")
_FORMAT_OR_AUTO = typer.Option("--format", "-f", metavar="FORMAT", help=f"One of {_FORMATS}; or auto, within a budget.")
Source = Annotated[str, _SOURCE]
OptionalSource = Annotated[str | None, _SOURCE]
"""A recipe may name it."""
FormatName = Annotated[str, _FORMAT]
OptionalFormat = Annotated[str | None, _FORMAT_OR_AUTO]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of the repository.  [default: main]")]
Exclude = Annotated[
    list[str], typer.Option(metavar="PATTERN", help="Keep tensors whose names match, such as '*fc*'. May be repeated.")
]
LmHead = Annotated[bool, typer.Option("--lm-head", help="Quantize the drafter's own lm_head too.")]
Merge = Annotated[
    bool, typer.Option("--merge", help="Take a drafter that is quantized in part, in this format: quantize the rest.")
]
ScaleSearch = Annotated[
    bool,
    typer.Option(
        "--nvfp4-scale-search",
        help="Choose NVFP4 block scales by least weight error (nvfp4, w4a16_nvfp4): slower to make, served the same.",
    ),
]
Scales = Annotated[
    str,
    typer.Option(
        metavar="fused|reference", help="`fused` shares a scale among siblings that engines fuse; `reference` does not."
    ),
]
Dtype = Annotated[str, typer.Option(metavar="bfloat16|float16|keep", help="What kept floating tensors are cast to.")]

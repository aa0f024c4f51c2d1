"""Options of the benchmark, and of recipes."""

from typing import Annotated, Any

import typer

_PANEL = "Benchmark"


def _option(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=_PANEL)


Target = Annotated[
    str | None, _option("Measure acceptance length with this target model.", "--target", metavar="REPO|PATH")
]
TargetRevision = Annotated[
    str | None, _option("Branch, tag or commit of the target.  [default: main]", "--target-revision")
]
Tokens = Annotated[int | None, _option("Draft tokens per step.", "--num-speculative-tokens", "-k", metavar="N")]
MaxDrop = Annotated[
    float | None,
    _option(
        "Fail when accepted tokens per draft may have fallen by more than this share.  [default: 0.05]",
        "--max-al-drop",
        metavar="SHARE",
    ),
]
MinLength = Annotated[float | None, _option("Fail below this acceptance length.", "--min-al", metavar="AL")]
MinControl = Annotated[
    float | None, _option("Fail when the unquantized drafter is below this.", "--min-control-al", metavar="AL")
]
Prompts = Annotated[
    str | None,
    _option(
        "`draftmill-1`, which ships, or a file of JSON lines on the service's machine.", "--prompts", metavar="SET|PATH"
    ),
]
Categories = Annotated[list[str], _option("Only prompts of this category. May be repeated.", "--category")]
PromptLimit = Annotated[int | None, _option("At most this many prompts.", "--prompt-limit", metavar="N")]
MaxTokens = Annotated[int | None, _option("Tokens per answer, at most.  [default: 128]", "--max-tokens", metavar="N")]
Recipe = Annotated[
    str | None, typer.Option("--recipe", metavar="FILE", help="A job spec as YAML or JSON; other options win over it.")
]

"""Options of `--format auto`."""

from typing import Annotated, Any

import typer

_PANEL = "With --format auto"


def _option(help: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, rich_help_panel=_PANEL)


MaxSize = Annotated[
    float | None,
    _option("Choose within this share of the source's weight bytes.", "--max-size", metavar="SHARE"),
]
BudgetDrop = Annotated[
    float | None,
    _option(
        "Choose the smallest whose accepted tokens per draft may have fallen by no more than this share."
        " Needs --target.",
        "--budget-al-drop",
        metavar="SHARE",
    ),
]
AutoFormats = Annotated[
    list[str], _option("Choose among these formats. May be repeated.", "--auto-format", metavar="FORMAT")
]
AutoBoots = Annotated[int | None, _option("Engine boots at most.  [default: 12]", "--auto-boots", metavar="N")]

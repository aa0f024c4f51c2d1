"""What `format: auto` weighed, as lines of text."""

from draftmill.benchmarks import Interval
from draftmill.choices import Candidate, Choice
from draftmill.cli.output import columns, plain


def choice_lines(found: Choice) -> list[str]:
    candidates = [_candidate(found, number, one) for number, one in enumerate(found.candidates)]
    units = [
        (plain(one.unit), one.saved_bytes, f"{one.weight_error:.4f}", _change(one.change))
        for one in found.sensitivities
    ]
    control = "" if found.control_al is None else f", control AL {found.control_al:.3f}"
    return [
        f"modules of {found.base}, the costliest by byte first{control}",
        *columns([("MODULE", "BYTES SAVED", "WEIGHT ERROR", "ALONE"), *units], right=frozenset({1, 2})),
        "",
        *columns(
            [("", "FORMAT", "KEPT", "OF SOURCE", "WEIGHT ERROR", "AL", "CHANGE"), *candidates],
            right=frozenset({2, 3, 4, 5}),
        ),
        *(f"refused: {one.format}: {plain(one.detail)}" for one in found.refused),
        "",
        f"chosen: {found.choice.format}, {len(found.choice.kept)} modules kept: {found.why}",
    ]


def _candidate(found: Choice, number: int, one: Candidate) -> tuple[object, ...]:
    return (
        "*" if number == found.chosen else "",
        one.format,
        len(one.kept),
        f"{one.variant_bytes / max(1, found.source_bytes):.1%}",
        f"{one.weight_error:.4f}",
        "-" if one.al is None else f"{one.al:.3f}",
        _change(one.change),
    )


def _change(change: Interval | None) -> str:
    return "-" if change is None else f"{change.value:+.1%} [{change.low:+.1%}, {change.high:+.1%}]"

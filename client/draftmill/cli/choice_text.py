"""What `format: auto` weighed, as lines of text."""

from draftmill.benchmarks import Interval
from draftmill.choices import Baseline, Candidate, Choice, Comparison
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
            right=frozenset({2, 3, 4}),
        ),
        *(f"refused: {one.format}: {plain(one.detail)}" for one in found.refused),
        "",
        f"chosen: {_format(found.choice)}, {len(found.choice.kept)} modules kept: {found.why}",
        *([] if found.baseline is None else _baseline(found, found.baseline)),
    ]


_SAYS = {
    Comparison.BEATS: "the chosen variant beats plain nvfp4 at no more bytes",
    Comparison.MORE_FOR_MORE: "the chosen variant has more acceptance length than plain nvfp4, at more bytes",
    Comparison.NOT_SHOWN: "it is not shown that the chosen variant beats plain nvfp4: the interval holds 0",
    Comparison.WORSE: "the chosen variant has less acceptance length than plain nvfp4",
    Comparison.SAME: "the chosen variant is plain nvfp4",
}


def _baseline(found: Choice, baseline: Baseline) -> list[str]:
    """The chosen and plain nvfp4 beside each other, and what their difference says."""
    if baseline.says is Comparison.SAME:
        return ["", f"{baseline.says}: {_SAYS[baseline.says]}"]
    rows = [
        (name, f"{one.variant_bytes / max(1, found.source_bytes):.1%}", _al(one))
        for name, one in (("chosen", found.choice), ("plain nvfp4", baseline.variant))
    ]
    gain = baseline.gain
    told = f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] at {gain.confidence:.4g} confidence"
    among = f", which holds for all {baseline.compared} that were compared" if baseline.compared > 1 else ""
    return [
        "",
        *columns([("", "OF SOURCE", "AL"), *rows], right=frozenset({1})),
        f"AL of the chosen less plain nvfp4's, paired over prompts: {told}{among}",
        f"{baseline.says}: {_SAYS[baseline.says]}",
    ]


def _format(one: Candidate) -> str:
    return f"{one.format}, scale search" if one.scale_search else one.format


def _al(one: Candidate) -> str:
    if one.al_interval is None:
        return "-" if one.al is None else f"{one.al:.3f}"
    return f"{one.al_interval.value:.3f} [{one.al_interval.low:.3f}, {one.al_interval.high:.3f}]"


def _candidate(found: Choice, number: int, one: Candidate) -> tuple[object, ...]:
    return (
        "*" if number == found.chosen else "",
        _format(one),
        len(one.kept),
        f"{one.variant_bytes / max(1, found.source_bytes):.1%}",
        f"{one.weight_error:.4f}",
        _al(one),
        _change(one.change),
    )


def _change(change: Interval | None) -> str:
    return "-" if change is None else f"{change.value:+.1%} [{change.low:+.1%}, {change.high:+.1%}]"

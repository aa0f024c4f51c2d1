"""A rewritten head and its draft vocabulary, as lines of text."""

from draftmill.cli.output import columns, plain, size
from draftmill.heads import Divergence, HeadPlan, HeadReport


def head_lines(found: HeadPlan) -> list[str]:
    lines = [f"{size(found.source_bytes)} before, {size(found.variant_bytes)} after; {len(found.linked)} files linked"]
    lines += [f"{group.name}: {group.bits} bits, {', '.join(map(plain, group.modules))}" for group in found.groups]
    if found.report is not None:
        lines += _report(found.report)
    if (vocab := found.draft_vocab) is not None:
        kind = "the drafter's own head" if vocab.native else "a draft head for the MTP block"
        lines.append(f"draft vocabulary: {vocab.size} tokens, {kind}, layout {vocab.layout}")
        rows = [(one.size, f"{one.covered:.2%}") for one in vocab.coverage]
        lines += columns([("TOKENS", "OF HELD-OUT TEXT"), *rows], right=frozenset({0, 1})) if rows else []
    return lines


def _report(report: HeadReport) -> list[str]:
    lines = [f"head: {report.rows} x {report.columns} from {plain(report.source)}"]
    found = [("rtn", report.rtn), (report.method, report.gptq)]
    rows = [_row(name, one) for name, one in found if one is not None]
    if not rows:
        return [*lines, "nothing was captured: how far the head is from its original is not known"]
    heads = ("METHOD", "KL", "SAME TOP TOKEN", "WEIGHTED ERROR")
    return [
        *lines,
        f"on {report.held_out_rows} held-out rows:",
        *columns([heads, *rows], right=frozenset({1, 2, 3})),
    ]


def _row(name: str, found: Divergence) -> tuple[str, ...]:
    return name, f"{found.kl:.3g}", f"{found.top1:.2%}", f"{found.weighted_error:.3g}"

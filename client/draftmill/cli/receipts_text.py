"""Receipts as lines of text."""

import json
from collections.abc import Iterator

from draftmill.archive import ArchiveReport
from draftmill.cli.output import columns, plain
from draftmill.cli.text import moment
from draftmill.receipts import Checkpointed, EngineView, Receipt, ReceiptDiff, ReceiptSummary

MAX_VALUE = 100


def rows(boots: list[ReceiptSummary]) -> list[str]:
    head = ("BOOT", "STATE", "ARM", "JOB", "DRAFTER", "AL", "OPENED", "NOTE")
    return columns([head, *map(_row, boots)])


def _row(boot: ReceiptSummary) -> tuple[object, ...]:
    broken = f"broken: {', '.join(boot.failed_rules)}" if boot.failed_rules else ""
    note = broken or ("emulated" if boot.emulated else "")
    counts = boot.counts
    al = f"{1 + counts.accepted / counts.drafts:.3f}" if counts and counts.drafts else "-"
    # A variant goes by its source's name and its own digest.
    drafter = boot.drafter if boot.variant is None else f"{boot.drafter} as {boot.variant[:12]}"
    known = (boot.arm or "-", boot.job or "-", drafter or "-")
    return (boot.boot, boot.state, *known, al, moment(boot.opened_at), note)


def lines(receipt: Receipt) -> list[str]:
    """What a person asks about one boot; --json has the rest."""
    return [
        f"boot       {receipt.boot}",
        f"job        {receipt.job or '-'}, attempt {receipt.attempt or '-'}, arm {receipt.arm}",
        f"engine     {receipt.engine_build}" + (", emulated kernels" if receipt.emulated else ""),
        f"host       {plain(receipt.host.cpu)} x {receipt.host.cpu_count}, {', '.join(receipt.host.gpus) or 'no GPU'}",
        f"target     {_model(receipt.target)}",
        f"drafter    {_model(receipt.drafter) if receipt.drafter else 'none'}",
        *_counts(receipt),
        *(_engine(receipt.view) if receipt.view else ()),
        *(f"plugin     {plain(plugin)}" for plugin in receipt.plugins),
        *(f"warning    {plain(warning)}" for warning in receipt.warnings),
        *_rules(receipt),
        f"chain      {receipt.chain.writer}, entry {receipt.chain.sequence}",
    ]


def _model(model: Checkpointed) -> str:
    commit = f"@{model.commit}" if model.commit else ""
    variant = f", variant {model.variant}" if model.variant else ""
    return plain(f"{model.source}{commit}{variant}, {len(model.files)} files")


def _counts(receipt: Receipt) -> Iterator[str]:
    if (counts := receipt.counts) is not None:
        positions = " ".join(map(str, counts.accepted_per_position))
        yield f"drafts     {counts.drafts}, {counts.accepted} of {counts.draft_tokens} tokens accepted ({positions})"
    yield f"output     {receipt.output_sha256 or '-'}"


def _engine(view: EngineView) -> Iterator[str]:
    yield f"runner     {plain(view.runner)}, {plain(view.proposer)}, {plain(view.drafter_class or 'no drafter')}"
    head = ("MODULE", "METHOD", "KERNEL", "DTYPE", "SHAPE")
    table = [
        (module.name, module.method or "-", module.kernel or "-", module.weight_dtype or "-", list(module.weight_shape))
        for module in view.modules
    ]
    if table:
        yield from columns([head, *table])


def _rules(receipt: Receipt) -> Iterator[str]:
    failed = [rule for rule in receipt.rules if not rule.passed]
    yield f"rules      {len(receipt.rules) - len(failed)} kept, {len(failed)} broken"
    for rule in failed:
        yield f"  {rule.rule}: {plain(rule.detail)}"
        yield from (f"    {plain(bad.where)}: {plain(bad.message)}" for bad in rule.offenders)


def changes(found: ReceiptDiff) -> list[str]:
    if not found.changes:
        return ["no difference"]
    table = [(change.path, _value(change.a), _value(change.b)) for change in found.changes]
    return columns([("WHERE", found.a, found.b), *table])


def _value(value: object) -> str:
    text = "-" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."


def report_lines(report: ArchiveReport) -> list[str]:
    ended = f"{report.sealed} sealed, {report.failed} failed, {len(report.incomplete)} incomplete"
    compared = "compared with the ledger" if report.heads_checked else "NOT compared with the ledger"
    return [
        *columns([("FINDING", "WHERE", "WHAT"), *((item.kind, item.where, item.message) for item in report.findings)])[
            0 if report.findings else 1 :
        ],
        *(f"note: {plain(note)}" for note in report.notes),
        *(f"incomplete: {boot}" for boot in report.incomplete),
        f"{len(report.chains)} chains {compared}; boots: {ended}",
        "passed" if report.passed else f"FAILED: {len(report.findings)} findings",
    ]

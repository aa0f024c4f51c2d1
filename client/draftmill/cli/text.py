"""Jobs, plans and reports as lines of text."""

from collections import Counter
from datetime import datetime

from draftmill.cli.acceptance_text import summary_lines
from draftmill.cli.output import columns, plain, size
from draftmill.formats import FORMATS
from draftmill.jobs import Attempt, Job, PathSource, RepoSource, StageRecord
from draftmill.plans import Fate, Plan, ScaleSearch
from draftmill.problems import Problem
from draftmill.reports import CheckStatus, Event, EventKind, VerifyReport
from draftmill.states import JobState


def moment(time: datetime) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def source(value: RepoSource | PathSource) -> str:
    return value.path if isinstance(value, PathSource) else f"{value.repo}@{value.revision}"


def job_rows(jobs: list[Job]) -> list[str]:
    head = ("JOB", "STATE", "FORMAT", "FAMILY", "SOURCE", "CREATED", "NOTE")
    rows = [
        (
            job.id,
            job.state,
            job.spec.format,
            job.resolved_spec.family if job.resolved_spec else "-",
            source(job.spec.source),
            moment(job.created_at or min(job.timestamps.values())),
            job.reason or ("from the store" if job.cached else ""),
        )
        for job in jobs
    ]
    return columns([head, *rows])


def problem_lines(problem: Problem) -> list[str]:
    return [
        f"problem    {problem.slug}: {plain(problem.detail)}",
        *(f"           {plain(offender.where)}: {plain(offender.message)}" for offender in problem.offenders),
    ]


def _stage(record: StageRecord) -> str:
    seconds = ""
    if record.started_at and record.ended_at:
        seconds = f" {(record.ended_at - record.started_at).total_seconds():.2f} s"
    if record.waiting is not None:
        return f"{record.name} {_waits(record.waiting.devices, record.waiting.place)}"
    return f"{record.name} {record.state}{seconds}"


def _waits(devices: object, place: object) -> str:
    return f"waits for {devices} device{'' if devices == 1 else 's'}, place {place} in line"


def _attempt(attempt: Attempt) -> str:
    stages = ", ".join(map(_stage, attempt.stages)) or "no stage yet"
    return f"attempt {attempt.number:<2} {attempt.outcome or 'running'} on {plain(attempt.worker)}: {stages}"


def _variant(job: Job, digest: str) -> list[str]:
    # The address is known before there is anything at it.
    return [f"variant    {digest}"] if job.state is JobState.SUCCEEDED else []


def job_lines(job: Job) -> list[str]:
    """Everything a person asks about one job."""
    reason = f" ({job.reason})" if job.reason else ""
    lines = [f"job        {job.id}", f"state      {job.state}{reason}"]
    if job.queue_position is not None:
        lines.append(f"position   {job.queue_position} in line")
    lines += [f"source     {source(job.spec.source)}", f"format     {job.spec.format}"]
    if job.spec.labels:
        lines.append("labels     " + plain(" ".join(f"{key}={value}" for key, value in job.spec.labels.items())))
    if (resolved := job.resolved_spec) is not None:
        where = f"commit {resolved.source.commit}" if resolved.source.commit else f"path {resolved.source.path}"
        lines += [f"resolved   {resolved.family}, {where}", *_variant(job, resolved.variant)]
    if job.cached:
        lines.append("cached     yes: this variant was sealed before and is answered from the store")
    if (summary := job.summary) is not None:
        lines += [
            f"weights    {size(summary.source_bytes)} before, {size(summary.variant_bytes)} after"
            f" ({summary.variant_bytes / max(1, summary.source_bytes):.1%})",
            f"tensors    {summary.tensors_quantized} quantized, {summary.tensors_kept} kept",
            f"checks     {summary.checks_passed} passed, {summary.checks_warned} warned,"
            f" {summary.checks_failed} failed",
        ]
    if job.summary is not None and job.summary.scale_search is not None:
        lines.append(scale_search_line(job.summary.scale_search))
    if job.summary is not None and job.summary.acceptance is not None:
        lines += summary_lines(job.summary.acceptance, job.id)
    if job.problem is not None:
        lines += problem_lines(job.problem)
    lines += map(_attempt, job.attempts)
    if job.created_at is not None:
        lines.append(f"created    {moment(job.created_at)}")
    lines += [f"{state:<10} {moment(time)}" for state, time in sorted(job.timestamps.items(), key=lambda item: item[1])]
    return lines


def plan_lines(plan: Plan) -> list[str]:
    """The plan in counts: how many tensors have which fate, and why."""
    counts: Counter[tuple[Fate, str]] = Counter((tensor.fate, tensor.reason) for tensor in plan.tensors)
    if plan.untouched:
        counts[Fate.KEPT, "target: files without MTP tensors"] = sum(file.tensors for file in plan.untouched)
    rows = [(fate, count, reason) for (fate, reason), count in sorted(counts.items(), key=lambda item: item[0])]
    return [
        f"{plan.family} ({plan.dialect}), {plan.head} head",
        f"{plan.format}, {plan.scales} scales, other tensors {plan.dtype}"
        + (", block scales searched by weight error" if plan.nvfp4_scale_search else ""),
        f"weights {size(plan.source_bytes)} before, {size(plan.variant_bytes)} after"
        f" ({plan.variant_bytes / max(1, plan.source_bytes):.1%})",
        *columns([("FATE", "TENSORS", "REASON"), *rows], right=frozenset({1})),
        *(f"warning: {plain(warning)}" for warning in plan.warnings),
    ]


def scale_search_line(search: ScaleSearch) -> str:
    return (
        f"weight error {search.relative_mse:.3e} with searched block scales, {search.plain_relative_mse:.3e} with plain"
        " max (mean of squares, relative to the weights)"
    )


def verify_lines(report: VerifyReport) -> list[str]:
    counts = Counter(check.status for check in report.checks)
    rows = [(check.status, check.id, check.proves) for check in report.checks]
    lines = columns([("STATUS", "CHECK", "PROVES"), *rows])
    for check in report.checks:
        if check.status in (CheckStatus.FAIL, CheckStatus.WARN):
            lines += [f"{check.id}: {plain(bad.where)}: {plain(bad.message)}" for bad in check.offenders]
    verdict = "passed" if report.passed else "FAILED"
    return [
        *lines,
        f"{verdict}: " + ", ".join(f"{counts[status]} {status}" for status in CheckStatus if counts[status]),
    ]


def format_lines() -> list[str]:
    rows = [
        (
            spec.name,
            spec.bits,
            spec.group or "-",
            spec.activation,
            spec.quant_algo,
            f"sm_{spec.native_capability}",
            spec.good_for,
        )
        for spec in FORMATS.values()
    ]
    return columns([("FORMAT", "BITS", "GROUP", "ACTIVATIONS", "ENGINE NAME", "NATIVE FROM", "GOOD FOR"), *rows])


def event_line(event: Event) -> str:
    """One event as one line: time, kind and what it says."""
    data = event.data
    time = event.time.astimezone().strftime("%H:%M:%S")
    match event.kind:
        case EventKind.STATE:
            what = f"{data.get('state')}" + (f" ({data['reason']})" if data.get("reason") else "")
        case EventKind.STAGE:
            waiting = data.get("waiting") or {}
            state = _waits(waiting.get("devices"), waiting.get("place")) if waiting else data.get("state")
            what = f"{data.get('stage')} {state}"
        case EventKind.PROGRESS:
            progress = data.get("progress") or {}
            what = f"{data.get('stage')} {progress.get('done')} of {progress.get('total')} {progress.get('unit')}"
        case EventKind.LOG:
            what = f"{data.get('level')}: {data.get('message')}"
        case EventKind.ATTEMPT:
            what = f"{data.get('attempt')} " + (data.get("outcome") or f"on {data.get('worker')}")
    return plain(f"{time} {event.kind:<8} {what}")

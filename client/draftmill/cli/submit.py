"""`draftmill submit` and `draftmill preflight`."""

from typing import Annotated

import typer

from draftmill.cli import text
from draftmill.cli.auto_options import AutoBoots, AutoFormats, BudgetDrop, MaxSize
from draftmill.cli.benchmark_options import (
    Categories,
    MaxDrop,
    MaxTokens,
    MinControl,
    MinLength,
    PromptLimit,
    Prompts,
    Recipe,
    Target,
    TargetRevision,
    Tokens,
)
from draftmill.cli.exits import ExitCode
from draftmill.cli.options import (
    Dtype,
    Exclude,
    FormatName,
    Json,
    LmHead,
    Merge,
    OptionalFormat,
    OptionalSource,
    Revision,
    Scales,
    ScaleSearch,
    Source,
    Wait,
)
from draftmill.cli.output import Output, size
from draftmill.cli.request import AutoWords, BenchmarkWords, Request, job_spec, mistaken
from draftmill.cli.watching import watch
from draftmill.client import Client
from draftmill.problems import ProblemError


def submit(
    source: OptionalSource = None,
    *,
    format: OptionalFormat = None,
    revision: Revision = None,
    exclude: Exclude = [],  # noqa: B006 -- typer copies it
    lm_head: LmHead = False,
    scales: Scales = "fused",
    dtype: Dtype = "bfloat16",
    merge: Merge = False,
    nvfp4_scale_search: ScaleSearch = False,
    label: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="A label to find the job by. May be repeated.")
    ] = [],  # noqa: B006
    deadline: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="The job expires when it is not done by then: 30m, 2h, 1d, or a time with zone."
        ),
    ] = None,
    target: Target = None,
    target_revision: TargetRevision = None,
    num_speculative_tokens: Tokens = None,
    max_al_drop: MaxDrop = None,
    min_al: MinLength = None,
    min_control_al: MinControl = None,
    prompts: Prompts = None,
    category: Categories = [],  # noqa: B006
    prompt_limit: PromptLimit = None,
    max_tokens: MaxTokens = None,
    recipe: Recipe = None,
    accept_failed_gate: Annotated[
        bool,
        typer.Option("--accept-failed-gate", help="Take the variant even if it failed the gate of an earlier job."),
    ] = False,
    max_size: MaxSize = None,
    budget_al_drop: BudgetDrop = None,
    auto_format: AutoFormats = [],  # noqa: B006
    auto_boots: AutoBoots = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key again gives the same job, not another.")
    ] = None,
    wait: Wait = False,
    json: Json = False,
) -> None:
    """Queue a job that quantizes a drafter, and measures it where a target is named.

    \b
    Examples:
      draftmill submit org/drafter --format fp8_pc_pt --wait
      draftmill submit org/drafter -f nvfp4 --revision v2 --exclude '*fc*' --label team=serving
      draftmill submit ./outputs/run-7 -f fp8 --deadline 2h --json
      draftmill submit org/drafter -f nvfp4 --target org/target --num-speculative-tokens 7 --max-al-drop 0.05
      draftmill submit org/drafter -f auto --max-size 0.4 --target org/target --num-speculative-tokens 7
      draftmill submit --recipe recipes/dspark-qwen3-8b.yaml --wait
    """
    output = Output(json)
    benchmark = BenchmarkWords(
        target,
        target_revision,
        num_speculative_tokens,
        max_al_drop,
        min_al,
        min_control_al,
        prompts,
        tuple(category),
        prompt_limit,
        max_tokens,
    )
    spec = job_spec(
        Request(
            source,
            format,
            revision,
            tuple(exclude),
            lm_head,
            scales,
            dtype,
            tuple(label),
            deadline,
            benchmark,
            recipe,
            accept_failed_gate,
            AutoWords(max_size, budget_al_drop, tuple(auto_format), auto_boots),
            merge,
            nvfp4_scale_search,
        )
    )
    for note in mistaken(source, target):
        output.note(note)
    with Client() as client:
        job = client.submit(spec, idempotency_key=idempotency_key)
        if not wait:
            output.result(job, f"{job.id} {job.state}")
            output.note(f"Watch it: draftmill jobs watch {job.id}")
            return
        output.note(f"{job.id} {job.state}")
        ended, code = watch(client, job, output, json_lines=False)
    if ended is not None:
        output.result(ended, *text.job_lines(ended))
    raise typer.Exit(code)


def preflight(
    source: Source,
    *,
    format: FormatName,
    revision: Revision = None,
    exclude: Exclude = [],  # noqa: B006 -- typer copies it
    lm_head: LmHead = False,
    scales: Scales = "fused",
    dtype: Dtype = "bfloat16",
    merge: Merge = False,
    nvfp4_scale_search: ScaleSearch = False,
    json: Json = False,
) -> None:
    """Say what a job would do, from the repository's headers alone; no weights are downloaded.

    \b
    Example:
      draftmill preflight org/drafter --format nvfp4
    """
    output = Output(json)
    request = Request(source, format, revision, tuple(exclude), lm_head, scales, dtype, merge=merge)
    spec = job_spec(request._replace(scale_search=nvfp4_scale_search))
    for note in mistaken(source):
        output.note(note)
    with Client() as client:
        answer = client.preflight(spec.source, spec.fixed_format, spec.quantize)
    if answer.problem is not None:
        if json:
            output.result(answer)
        output.complain(ProblemError.from_problem(answer.problem))
        raise typer.Exit(ExitCode.PROBLEM)
    lines = [] if answer.commit is None else [f"commit {answer.commit}"]
    if answer.download_bytes is not None:
        lines.append(f"a job downloads {size(answer.download_bytes)}")
    output.result(answer, *lines, *(text.plan_lines(answer.plan) if answer.plan else []))

"""From one boot's counts to an arm of the report."""

from collections import defaultdict
from collections.abc import Sequence

from draftmill.benchmarks import Arm, ArmName, Counts, PromptResult
from draftmill.digests import digest
from draftmill.receipts import Receipt
from draftmill_worker.bench import counting
from draftmill_worker.bench.wire import EngineResult


def output_sha256(prompts: Sequence[PromptResult]) -> str:
    """Of all outputs, prompt by prompt."""
    return digest([[prompt.id, prompt.output_sha256] for prompt in prompts])


def make_arm(name: ArmName, receipt: Receipt, result: EngineResult, seconds: float) -> Arm:
    """`seconds` is the engine process's whole time. Speed is left blank where kernels were emulated."""
    run = result.timings["run"]
    tokens = sum(prompt.output_tokens for prompt in result.prompts)
    return Arm(
        name=name,
        receipt=receipt.boot,
        prompts=result.prompts,
        groups=result.groups,
        counts=result.counts,
        al=counting.acceptance_length(result.counts),
        al_by_category=_by_category(result),
        conditional_acceptance=counting.conditional(result.counts),
        output_sha256=output_sha256(result.prompts),
        emulated=receipt.emulated,
        runner="" if receipt.view is None else receipt.view.runner,
        boot_seconds=seconds - run,
        run_seconds=run,
        tokens_per_second=None if receipt.emulated or run <= 0 else tokens / run,
    )


def _by_category(result: EngineResult) -> dict[str, float]:
    counted: dict[str, list[Counts]] = defaultdict(list)
    for one in result.groups or result.prompts:
        if one.counts is not None:
            counted[one.category].append(one.counts)
    lengths = {name: counting.acceptance_length(counting.total(counts)) for name, counts in counted.items()}
    return {name: length for name, length in lengths.items() if length is not None}


def compared(arm: Arm, none: Arm | None) -> Arm:
    """The arm, with the prompts whose output is not that of the target alone."""
    if none is None:
        return arm.model_copy(update={"parts_from_none": None})
    outputs = {prompt.id: prompt.output_sha256 for prompt in none.prompts}
    parts = tuple(prompt.id for prompt in arm.prompts if outputs.get(prompt.id) != prompt.output_sha256)
    return arm.model_copy(update={"parts_from_none": parts})

"""A benchmark: its arms in order, what they say together, and the gate's verdict."""

from dataclasses import dataclass
from pathlib import Path

from draftmill.benchmarks import Acceptance, Arm, ArmName, Benchmark
from draftmill_worker.bench import gate, prompts, statistics
from draftmill_worker.bench.arm import compared
from draftmill_worker.bench.arms import Arms, Place
from draftmill_worker.bench.engine_args import check_remote_code, window
from draftmill_worker.bench.pair import check_pair
from draftmill_worker.bench.speculative import check_length
from draftmill_worker.bench.subject import Subject
from draftmill_worker.stage import Reporter


@dataclass(frozen=True)
class Question:
    subject: Subject
    benchmark: Benchmark
    prompts_file: Path | None
    """None for a set that ships."""
    trusted: tuple[str, ...] = ()
    """Repositories whose own code may run."""


def bench(question: Question, place: Place, report: Reporter) -> Acceptance:
    """Measure, or take what was measured, and judge. The verdict is in the answer; a failed gate raises nothing.

    ProblemError for what cannot be measured: prompts-invalid, pair-mismatch, draft-length-refused,
    remote-code-refused, engine-unavailable, boot-failed, no-drafts, receipt-invalid, bench-failed,
    receipt-chain-broken.
    """
    subject, benchmark = question.subject, question.benchmark
    check_remote_code(benchmark, {"target": subject.target.repo, "source": subject.source.repo}, question.trusted)
    check_pair(subject)
    check_length(subject.drafter, benchmark.num_speculative_tokens)
    chosen = prompts.load(benchmark.prompts, question.prompts_file)
    runs = int(benchmark.no_speculation) + benchmark.repeats + 1
    sha256 = prompts.sha256(chosen, benchmark.prompts)
    arms = Arms(subject, benchmark, chosen, sha256, place, report, total=runs * len(chosen))
    none = arms.run(ArmName.NONE)[0] if benchmark.no_speculation else None
    controls = tuple(compared(arm, none) for arm in arms.run(ArmName.CONTROL, benchmark.repeats))
    variant = compared(arms.run(ArmName.VARIANT)[0], none)
    return _conclude(arms, none, controls, variant)


def _conclude(arms: Arms, none: Arm | None, controls: tuple[Arm, ...], variant: Arm) -> Acceptance:
    benchmark, control = arms.benchmark, controls[0]
    change = statistics.relative_change(variant, control, benchmark.gate.confidence)
    return Acceptance(
        benchmark=benchmark,
        prompts_sha256=arms.prompts_sha256,
        control_key=arms.key(arms.choose(ArmName.CONTROL)),
        none=none,
        control=control,
        control_repeats=controls[1:],
        variant=variant,
        change=change,
        control_spread=statistics.spread(controls),
        gate=gate.judge(benchmark.gate, variant, control, change),
        notes={
            "counted": "per prompt" if benchmark.concurrency == 1 else f"per {benchmark.concurrency} prompts in flight",
            "max_model_len": arms.args.get("max_model_len"),
            "drafter_window": window(arms.subject.drafter.config),
            "speed": "not comparable: emulated kernels" if variant.emulated else "measured",
        },
    )


def profile(acceptance: Acceptance) -> dict[str, object]:
    """Acceptance by position, per arm: what a serving team reads before it chooses how many tokens to draft."""
    arms = {arm.name.value: arm for arm in (acceptance.control, acceptance.variant)}
    return {
        "schema": "draftmill.profile/v1",
        "num_speculative_tokens": acceptance.benchmark.num_speculative_tokens,
        "arms": {
            name: {
                "al": arm.al,
                "al_by_category": arm.al_by_category,
                "drafts": arm.counts.drafts if arm.counts else 0,
                "accepted_per_position": arm.counts.accepted_per_position if arm.counts else (),
                "conditional_acceptance": arm.conditional_acceptance,
                "receipt": arm.receipt,
            }
            for name, arm in arms.items()
        },
    }

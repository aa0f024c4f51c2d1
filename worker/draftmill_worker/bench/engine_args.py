"""Arguments of the engine: what the job says, and what it leaves to us."""

from collections.abc import Mapping
from typing import Any

from draftmill.benchmarks import Benchmark
from draftmill.heads import CaptureOptions
from draftmill.plans import Family
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.drafter import Drafter


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of a configuration."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def window(config: Mapping[str, Any]) -> int | None:
    """Tokens a model was made for; None where its configuration does not say."""
    value = text_config(config).get("max_position_embeddings")
    return value if type(value) is int and value > 0 else None


def engine_args(benchmark: Benchmark, target: Mapping[str, Any], drafter: Drafter, *, cpu: bool) -> dict[str, Any]:
    """The same for every arm, so that arms differ in the drafter alone.

    Left open, max_model_len is the shorter window of the two models, since drafts beyond a drafter's window fail; a job
    may name a longer one. Graphs are off on a CPU, where compiling takes longer than measuring, and with DSpark.
    """
    args = benchmark.engine_args.model_dump(exclude_none=True)
    windows = [length for config in (target, drafter.config) if (length := window(config)) is not None]
    if "max_model_len" not in args and windows:
        args["max_model_len"] = min(windows)
    args.setdefault("max_num_seqs", benchmark.concurrency)
    args.setdefault("enforce_eager", cpu or drafter.family is Family.DSPARK)
    return args


def check_remote_code(
    benchmark: Benchmark | CaptureOptions, repos: Mapping[str, str | None], allowed: tuple[str, ...]
) -> None:
    """`repos` by role; None for a local folder. ProblemError("remote-code-refused") unless the operator allows each."""
    if not benchmark.engine_args.trust_remote_code:
        return
    offenders = [
        Offender(where=role, message="is not in DRAFTMILL_TRUST_REMOTE_CODE_REPOS", value=repo)
        for role, repo in repos.items()
        if repo not in allowed
    ]
    if offenders:
        raise ProblemError("remote-code-refused", "trust_remote_code runs a repository's own code", offenders)

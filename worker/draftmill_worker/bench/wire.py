"""What an engine process is asked, and what it answers. Both are files: the engine's own output stays raw."""

from pathlib import Path
from typing import Any

from pydantic import Field

from draftmill._model import Model
from draftmill.benchmarks import Counts, GroupResult, PromptResult
from draftmill.problems import Problem
from draftmill.receipts import EngineView, PhaseRecord
from draftmill_worker.bench.prompts import Prompt


class EngineRequest(Model):
    target: Path
    engine_args: dict[str, Any]
    """Of `vllm.LLM`, beside those that are the same for every boot."""
    speculative_config: dict[str, Any] | None
    prompts: tuple[Prompt, ...]
    warm_up: Prompt
    """Run first and not counted."""
    chat_template: bool
    """Apply the target's, where it has one."""
    max_tokens: int
    temperature: float
    seed: int
    concurrency: int


class Answer(Model):
    """What an engine process writes at its end."""

    problem: Problem | None = None
    """Why there is nothing else. What follows is then empty."""


class EngineResult(Answer):
    phases: tuple[PhaseRecord, ...] = ()
    view: EngineView | None = None
    engine_config: dict[str, Any] = Field(default_factory=dict)
    """As resolved, through `receipts.describe`."""
    plugins: tuple[str, ...] = ()
    prompts: tuple[PromptResult, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    counts: Counts | None = None
    timings: dict[str, float] = Field(default_factory=dict)
    """Seconds: `load`, `run`."""

"""One boot of an engine: `python -m draftmill_worker.bench.engine_main REQUEST RESULT PARENT PROGRESS`.

REQUEST and RESULT are files; PARENT is the process to die with; PROGRESS a descriptor that takes the number of prompts
done, a line each. Standard output and standard error are the engine's own. Exit code 0 means that RESULT is there.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftmill.benchmarks import Counts, GroupResult, PromptResult
from draftmill.problems import Offender, ProblemError
from draftmill.receipts import EngineView, Phase, PhaseRecord
from draftmill_worker import process
from draftmill_worker.bench import counting
from draftmill_worker.bench.prompts import Prompt, groups
from draftmill_worker.bench.wire import EngineRequest, EngineResult
from draftmill_worker.files import write_atomic
from draftmill_worker.receipts.describe import describe

FIXED: dict[str, Any] = {
    # One prompt's cached keys would skip drafting for the next.
    "enable_prefix_caching": False,
    # The counters are part of the statistics.
    "disable_log_stats": False,
    "worker_extension_cls": "draftmill_worker.bench.engine_extension.Extension",
}
"""Engine arguments that no job chooses."""


class Bench:
    """A loaded engine and the prompts it is to answer."""

    def __init__(self, request: EngineRequest, progress: int) -> None:
        from vllm import LLM

        self._request = request
        self._progress = progress
        self._engine: Any = LLM(
            model=str(request.target), speculative_config=request.speculative_config, **FIXED, **request.engine_args
        )
        self._tokenizer: Any = self._engine.get_tokenizer()

    def describe(self) -> tuple[EngineView, dict[str, Any], tuple[str, ...]]:
        view = EngineView.model_validate(self._engine.collective_rpc("draftmill_view")[0])
        plugins = self._engine.collective_rpc("draftmill_plugins")[0]
        return view, describe(self._engine.llm_engine.vllm_config), tuple(plugins)

    def check_window(self) -> None:
        """ProblemError("prompts-invalid") for prompts whose answer could leave the window of target or drafter."""
        window = self._engine.llm_engine.vllm_config.model_config.max_model_len
        offenders = []
        for prompt in (self._request.warm_up, *self._request.prompts):
            longest = sum(len(self._ids([{"role": "user", "content": turn}])) for turn in prompt.turns) or len(
                self._ids([message.model_dump() for message in prompt.messages])
            )
            needed = longest + self._request.max_tokens * max(1, len(prompt.turns))
            if needed > window:
                message = f"needs {needed} tokens with its answer; the window has {window}"
                offenders.append(Offender(where=f"prompt {prompt.id}", message=message))
        if offenders:
            raise ProblemError("prompts-invalid", f"{len(offenders)} prompts do not fit", offenders[:100])

    def warm_up(self) -> None:
        self._answer([self._request.warm_up])

    def run(self) -> tuple[list[PromptResult], list[GroupResult]]:
        prompts, counted = list[PromptResult](), list[GroupResult]()
        before = counting.read(self._engine.get_metrics())
        for group in groups(self._request.prompts, self._request.concurrency):
            answers = self._answer(group)
            after = counting.read(self._engine.get_metrics())
            counts, before = counting.difference(after, before), after
            if self._request.speculative_config is None:
                counts = None
            prompts += [_result(*answer, counts if len(group) == 1 else None) for answer in answers]
            if self._request.concurrency > 1:
                ids = tuple(prompt.id for prompt in group)
                counted.append(GroupResult(ids=ids, category=group[0].category, counts=counts))
            os.write(self._progress, f"{len(prompts)}\n".encode())
        # In the order they were asked for: groups go by category.
        order = {prompt.id: place for place, prompt in enumerate(self._request.prompts)}
        return sorted(prompts, key=lambda result: order[result.id]), counted

    def _answer(self, group: Sequence[Prompt]) -> list[tuple[Prompt, int, list[int]]]:
        """Each prompt with the tokens it put and the tokens it got, over all its turns."""
        talks = [[message.model_dump() for message in prompt.messages] for prompt in group]
        put, got = [0] * len(group), [list[int]() for _ in group]
        for turn in range(max(max(len(prompt.turns), 1) for prompt in group)):
            places = [place for place, prompt in enumerate(group) if turn < max(len(prompt.turns), 1)]
            for place in places:
                if group[place].turns:
                    talks[place].append({"role": "user", "content": group[place].turns[turn]})
            asked = [self._ids(talks[place]) for place in places]
            for place, ids, answer in zip(places, asked, self._generate(asked), strict=True):
                put[place] += len(ids)
                got[place] += answer.token_ids
                talks[place].append({"role": "assistant", "content": answer.text})
        return [(prompt, put[place], got[place]) for place, prompt in enumerate(group)]

    def _generate(self, asked: list[list[int]]) -> list[Any]:
        from vllm import SamplingParams

        request = self._request
        sampling = SamplingParams(temperature=request.temperature, max_tokens=request.max_tokens, seed=request.seed)
        prompts = [{"prompt_token_ids": ids} for ids in asked]
        return [answer.outputs[0] for answer in self._engine.generate(prompts, sampling, use_tqdm=False)]

    def _ids(self, messages: list[dict[str, Any]]) -> list[int]:
        if self._request.chat_template and self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            # The template writes what special tokens there are.
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return list(self._tokenizer.encode("\n".join(message["content"] for message in messages)))


def _result(prompt: Prompt, put: int, got: list[int], counts: Counts | None) -> PromptResult:
    return PromptResult(
        id=prompt.id,
        category=prompt.category,
        prompt_tokens=put,
        output_tokens=len(got),
        output_sha256=hashlib.sha256(json.dumps(got).encode()).hexdigest(),
        counts=counts,
    )


def measure(request: EngineRequest, progress: int) -> EngineResult:
    """ProblemError for prompts that do not fit; whatever the engine raises."""
    phases = []

    def reached(phase: Phase) -> None:
        phases.append(PhaseRecord(name=phase, at=datetime.now(UTC)))

    started = time.monotonic()
    bench = Bench(request, progress)
    reached(Phase.LOADED)
    loaded = time.monotonic()
    view, config, plugins = bench.describe()
    if request.speculative_config is not None:
        reached(Phase.SHARED)
    bench.check_window()
    bench.warm_up()
    begun = time.monotonic()
    prompts, counted = bench.run()
    ended = time.monotonic()
    reached(Phase.MEASURED)
    counts = [result.counts for result in (counted or prompts) if result.counts is not None]
    return EngineResult(
        phases=tuple(phases),
        view=view,
        engine_config=config,
        plugins=plugins,
        prompts=tuple(prompts),
        groups=tuple(counted),
        counts=counting.total(counts),
        timings={"load": loaded - started, "run": ended - begun},
    )


def main() -> None:
    request_path, result_path, parent, progress = sys.argv[1:]
    process.die_with_parent(int(parent))
    os.set_inheritable(int(progress), False)
    request = EngineRequest.model_validate_json(Path(request_path).read_bytes())
    try:
        result = measure(request, int(progress))
    except ProblemError as error:
        result = EngineResult(problem=error.problem)
    write_atomic(Path(result_path), result.model_dump_json().encode())


if __name__ == "__main__":
    main()

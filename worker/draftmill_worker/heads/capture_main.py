"""One boot that captures: `python -m draftmill_worker.heads.capture_main REQUEST RESULT PARENT PROGRESS`.

As `bench.engine_main`: REQUEST and RESULT are files, PARENT is the process to die with, PROGRESS takes the number of
texts done, a line each.
"""

import os
import sys
from pathlib import Path
from typing import Any

from draftmill.problems import Offender, ProblemError
from draftmill_worker import process
from draftmill_worker.files import write_atomic
from draftmill_worker.heads import rows
from draftmill_worker.heads.capture_wire import CaptureRequest, CaptureResult

FIXED: dict[str, Any] = {
    # Cached keys would leave tokens without a row.
    "enable_prefix_caching": False,
    # A compiled graph does not call hooks.
    "enforce_eager": True,
    "worker_extension_cls": "draftmill_worker.heads.capture_extension.Extension",
}
"""Engine arguments that no job chooses."""


class Capture:
    def __init__(self, request: CaptureRequest, engine: Any, progress: int) -> None:
        self._request = request
        self._engine = engine
        self._progress = progress
        self._tokenizer: Any = engine.get_tokenizer()

    def run(self) -> CaptureResult:
        """ProblemError("capture-silent"), ("capture-short"), ("prompts-invalid")."""
        found = self._engine.collective_rpc("draftmill_capture_model")[0]
        if found["norm"] is None:
            raise ProblemError("capture-silent", f"{found['model']} has no final norm that is known by name")
        texts = self._texts()
        info = rows.allocate(self._request.out, texts, found["columns"])
        total = info.shape[0]
        sink = (str(self._request.out), info.start, total, found["columns"])
        self._engine.collective_rpc("draftmill_capture_start", args=sink)
        self._read(texts, f"{found['runner']} running {found['model']}")
        self._engine.collective_rpc("draftmill_capture_stop")
        return CaptureResult(
            runner=found["runner"], model=found["model"], norm=found["norm"], rows=total, texts=len(texts)
        )

    def _read(self, texts: list[list[int]], who: str) -> None:
        """One text per call: rows of two that are batched together cannot be told apart."""
        expected = 0
        for number, text in enumerate(texts):
            self._generate([text], 1)
            expected += len(text)
            seen = int(self._engine.collective_rpc("draftmill_capture_rows")[0])
            if seen == 0:
                message = (
                    f"the hook on the final norm never fired in {who}; VLLM_USE_V2_MODEL_RUNNER=0 selects the other"
                )
                raise ProblemError("capture-silent", message, [Offender(where="runner", message=who)])
            if seen != expected:
                offender = Offender(where=f"text {number}", message=f"{expected} rows expected so far", value=seen)
                raise ProblemError("capture-short", f"{who} gave {seen} rows for {expected} tokens", [offender])
            os.write(self._progress, f"{number + 1}\n".encode())

    def _texts(self) -> list[list[int]]:
        """Token ids, until `max_rows` are reached."""
        request = self._request
        read = [self._ids(text) for text in request.texts]
        if request.own_outputs:
            room = request.max_length - 1
            asked = [ids[:room] for ids in read]
            answers = self._generate(asked, request.max_tokens)
            read = [[*ids, *answer.token_ids] for ids, answer in zip(asked, answers, strict=True)]
        texts, total = [], 0
        for ids in read:
            kept = ids[: min(request.max_length, request.max_rows - total)]
            total += len(kept)
            if kept:
                texts.append(kept)
        if not texts:
            raise ProblemError("prompts-invalid", "the texts have no tokens")
        return texts

    def _ids(self, text: Any) -> list[int]:
        messages = [{"role": "user", "content": turn} for turn in text.turns] or [
            message.model_dump() for message in text.messages
        ]
        if self._request.chat_template and self._tokenizer.chat_template:
            written = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            return list(self._tokenizer.encode(written, add_special_tokens=False))
        return list(self._tokenizer.encode("\n".join(message["content"] for message in messages)))

    def _generate(self, asked: list[list[int]], max_tokens: int) -> list[Any]:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        prompts = [{"prompt_token_ids": ids} for ids in asked]
        return [answer.outputs[0] for answer in self._engine.generate(prompts, sampling, use_tqdm=False)]


def _engine(request: CaptureRequest) -> Any:
    from vllm import LLM

    return LLM(model=str(request.target), **{**request.engine_args, **FIXED})


def main() -> None:
    request_path, result_path, parent, progress = sys.argv[1:]
    process.die_with_parent(int(parent))
    os.set_inheritable(int(progress), False)
    request = CaptureRequest.model_validate_json(Path(request_path).read_bytes())
    try:
        result = Capture(request, _engine(request), int(progress)).run()
    except ProblemError as error:
        result = CaptureResult(problem=error.problem)
    from draftmill_worker.bench.vllm_plugin import APPLIED

    write_atomic(Path(result_path), result.model_copy(update={"plugins": tuple(APPLIED)}).model_dump_json().encode())


if __name__ == "__main__":
    main()

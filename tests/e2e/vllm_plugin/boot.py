"""One engine in this process: `python -m tests.e2e.vllm_plugin.boot`, a Request as JSON in, a Result as JSON out."""

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.e2e.vllm_plugin.triton_cpu import masks

_COUNTERS = {
    "vllm:spec_decode_num_drafts": "drafts",
    "vllm:spec_decode_num_accepted_tokens": "accepted",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "by_position",
}


@dataclass(frozen=True)
class Request:
    target: str
    prompts: list[list[int]]
    tokens: int
    method: str | None = None
    """None runs without speculation."""
    drafter: str | None = None
    drafted: int = 0
    temperature: float = 0.0
    draft_sample_method: str = "greedy"
    dtype: str = "bfloat16"
    max_num_seqs: int = 8
    record: bool = False
    """Keep every row that a block drafter proposed."""


@dataclass(frozen=True)
class Row:
    """What was drafted after `ids[position]` of a request, which is `anchor`."""

    request: int
    position: int
    anchor: int
    drafted: list[int]


@dataclass(frozen=True)
class Result:
    outputs: list[list[int]]
    output_sha256: str
    drafts: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    applied: list[str] = field(default_factory=list)
    runner: str = ""
    proposer: str = ""
    methods: dict[str, list[str | None]] = field(default_factory=dict)
    """Per quantized or quantizable module of the drafter: its method and kernel."""

    @property
    def acceptance_length(self) -> float:
        assert self.drafts > 0, "nothing was drafted: there is no acceptance length"
        return 1 + self.accepted / self.drafts


def parse(text: str) -> Result:
    fields = json.loads(text)
    return Result(**{**fields, "rows": [Row(**row) for row in fields["rows"]]})


def _engine(request: Request) -> Any:
    from vllm import LLM

    speculative = None
    if request.method is not None:
        speculative = {
            "method": request.method,
            "model": request.drafter,
            "num_speculative_tokens": request.drafted,
            "draft_sample_method": request.draft_sample_method,
        }
    return LLM(
        model=request.target,
        dtype=request.dtype,
        max_model_len=256,
        max_num_seqs=request.max_num_seqs,
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculative,
        seed=0,
    )


def _runner(engine: Any) -> Any:
    return engine.llm_engine.model_executor.driver_worker.worker.model_runner


def _record(runner: Any, rows: list[Row]) -> None:
    """Keep what the proposer of `runner` (V1, a block drafter) returns, with where each row stands."""
    proposer, propose = runner.drafter, runner.drafter.propose

    def recording(*args: Any, **kwargs: Any) -> Any:
        drafted = propose(*args, **kwargs)
        batch = len(drafted)
        # DFlash's block holds the anchor beside the drafted tokens, DSpark's holds it among them.
        size = kwargs["num_speculative_tokens"] + (type(proposer).__name__ == "DFlashProposer")
        queries = proposer.positions[: batch * size].view(batch, size)
        anchors = kwargs["next_token_ids"].tolist()
        for index, (name, anchor, tokens) in enumerate(
            zip(runner.input_batch.req_ids, anchors, drafted.tolist(), strict=False)
        ):
            rows.append(Row(int(name.partition("-")[0]), int(queries[index, 0]), anchor, tokens))
        return drafted

    proposer.propose = recording


def _counters(engine: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"drafts": 0, "accepted": 0, "by_position": []}
    for metric in engine.get_metrics():
        if metric.name in _COUNTERS:
            found[_COUNTERS[metric.name]] = getattr(metric, "values", None) or int(metric.value)
    return found


def _drafter(runner: Any) -> tuple[str, Any]:
    """The proposer's class and the drafter's model, V1 or V2."""
    proposer = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    return type(proposer).__name__, getattr(proposer, "model", None)


def _methods(model: Any) -> dict[str, list[str | None]]:
    found = {}
    for name, module in model.named_modules() if model is not None else ():
        method = getattr(module, "quant_method", None)
        if method is not None:
            # compressed-tensors keeps the kernel with the layer's scheme.
            kernel = _kernel(getattr(module, "scheme", None)) or _kernel(method)
            found[name] = [type(method).__name__, None if kernel is None else type(kernel).__name__]
    return found


def _kernel(holder: Any) -> Any:
    return getattr(holder, "kernel", None) or getattr(holder, "fp8_linear", None)


def run(request: Request) -> Result:
    from vllm import SamplingParams

    from draftmill_worker.bench import vllm_plugin

    if os.environ.get("TRITON_INTERPRET") == "1":
        masks.mend()
    engine = _engine(request)
    runner, rows = _runner(engine), list[Row]()
    if request.record:
        _record(runner, rows)
    sampling = SamplingParams(temperature=request.temperature, max_tokens=request.tokens, ignore_eos=True, seed=7)
    answers = engine.generate([{"prompt_token_ids": ids} for ids in request.prompts], sampling, use_tqdm=False)
    outputs = [list(answer.outputs[0].token_ids) for answer in answers]
    proposer, model = _drafter(runner)
    return Result(
        outputs=outputs,
        output_sha256=hashlib.sha256(json.dumps(outputs).encode()).hexdigest(),
        rows=rows,
        applied=list(vllm_plugin.APPLIED),
        runner=f"{type(runner).__module__}.{type(runner).__name__}",
        proposer=proposer,
        methods=_methods(model),
        **(_counters(engine) if request.method is not None else {}),
    )


if __name__ == "__main__":
    answer = run(Request(**json.loads(sys.stdin.readline())))
    print("\n" + json.dumps(asdict(answer)), flush=True)

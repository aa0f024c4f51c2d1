"""That a draft head which was quantized on loading is what was asked for, and that nothing else was touched.

They judge where DRAFTMILL_FP8_DRAFT_HEAD was set. `draft-head-complete` wants every value recorded; the others judge
what was, so that each fails for its own reason.
"""

import math

from draftmill.receipts import DraftHeadRecord
from draftmill_worker.receipts.expected import UNQUANTIZED
from draftmill_worker.receipts.rule import Case, Found, one_of, rule

SPEC = "fp8_per_tensor_static"
CONDITIONS = frozenset(
    {
        "online_spec",
        "role",
        "drafter",
        "quantization",
        "tied",
        "ordered",
        "head_dtype",
        "tensor_parallel",
        "kernel",
        "class",
        "prefix",
        "method",
    }
)
"""Those of `bench.vllm_plugin.fp8_draft_head`."""
METHOD = "draftmill_worker.bench.vllm_plugin.fp8_draft_head_model.Fp8DraftHeadMethod"
CPU_KERNELS = frozenset({"Fp8TensorEmulationKernel"})
GPU_KERNELS = frozenset(
    {
        "FlashInferFP8ScaledMMLinearKernel",
        "CutlassFP8ScaledMMLinearKernel",
        "B12xTensorFP8ScaledMMLinearKernel",
        "PerTensorTorchFP8ScaledMMLinearKernel",
        "ChannelWiseTorchFP8ScaledMMLinearKernel",
    }
)
"""Of vLLM 0.32, those that leave the weight as it was quantized."""
FLOAT8 = "float8_e4m3fn"
MODEL_DTYPE = "bfloat16"
PADDING = 64
"""vLLM pads vocabularies to multiples of it."""


def _look(case: Case) -> tuple[Found, DraftHeadRecord | None]:
    if not case.draft_head_asked:
        return Found("no draft head was to be quantized on loading"), None
    head = None if case.receipt.view is None else case.receipt.view.draft_head
    return Found("not recorded" if head is None else f"{head.class_name}, {head.method}, {head.kernel}"), head


@rule("draft-head-complete", proves="of a draft head quantized on loading everything was recorded that is judged")
def complete(case: Case) -> Found:
    found, head = _look(case)
    if not case.draft_head_asked:
        return found
    if head is None:
        found.blame("view.draft_head", "was asked for, and nothing was recorded of it")
        return found
    for name, value in head:
        # An empty list of one value or more is one that was not read.
        found.require(value is not None and value not in ("", ()), f"view.draft_head.{name}", "was not recorded")
    for name in sorted(CONDITIONS - head.conditions.keys()):
        found.blame(f"view.draft_head.conditions.{name}", "was not recorded")
    return found


@rule("draft-head-eligible", proves="each condition held under which a draft head may be quantized on loading")
def eligible(case: Case) -> Found:
    found, head = _look(case)
    if head is None:
        return found
    for name, holds in sorted(head.conditions.items()):
        found.require(holds, f"view.draft_head.conditions.{name}", "did not hold")
    return found


@rule("draft-head-on-one-rank", proves="the draft head lies on one rank: tensor parallel size 1")
def on_one_rank(case: Case) -> Found:
    found, head = _look(case)
    size = None if head is None else head.tensor_parallel_size
    found.require(size in (None, 1), "view.draft_head.tensor_parallel_size", "must be 1", size)
    return found


@rule("draft-head-dims", proves="the head was built for the drafter's own vocabulary, padded to 64, and hidden size")
def dims(case: Case) -> Found:
    found, head = _look(case)
    if head is None or head.vocab_size is None or head.hidden_size is None or not head.partition:
        return found
    wanted = (-(-head.vocab_size // PADDING) * PADDING, head.hidden_size)
    message = f"must be {wanted[0]} x {wanted[1]}"
    found.require(head.partition == wanted, "view.draft_head.partition", message, head.partition)
    return found


@rule("draft-head-class", proves="it is the engine's own head: a ParallelLMHead, placed as lm_head")
def class_of_head(case: Case) -> Found:
    found, head = _look(case)
    if head is None:
        return found
    name, prefix = head.class_name, head.prefix
    is_head = name is None or name.endswith(".ParallelLMHead")
    found.require(is_head, "view.draft_head.class_name", "must end in .ParallelLMHead", name)
    placed = not prefix or prefix.rpartition(".")[2] == "lm_head"
    found.require(placed, "view.draft_head.prefix", "must end in lm_head", prefix)
    return found


@rule("draft-head-method", proves="it runs the plugin's method, by vLLM's per-tensor spec, on a kernel that is known")
def method(case: Case) -> Found:
    found, head = _look(case)
    if head is None:
        return found
    kernels = GPU_KERNELS if case.receipt.host.gpus else CPU_KERNELS
    found.require(head.method in (None, METHOD), "view.draft_head.method", f"must be {METHOD}", head.method)
    found.require(head.spec in (None, SPEC), "view.draft_head.spec", f"must be {SPEC}", head.spec)
    known = head.kernel is None or head.kernel in kernels
    found.require(known, "view.draft_head.kernel", f"must be {one_of(kernels)}", head.kernel)
    return found


@rule("draft-head-weight", proves="its weight is FP8, hidden size by the rows of its partition")
def weight(case: Case) -> Found:
    found, head = _look(case)
    if head is None:
        return found
    dtype, shape = head.weight_dtype, head.weight_shape
    found.require(dtype in (None, FLOAT8), "view.draft_head.weight_dtype", f"must be {FLOAT8}", dtype)
    if shape and head.partition:
        wanted = head.partition[::-1]
        found.require(shape == wanted, "view.draft_head.weight_shape", f"must be {wanted}", shape)
    return found


@rule("draft-head-scale", proves="it has one scale, finite and positive")
def scale(case: Case) -> Found:
    found, head = _look(case)
    if head is None or not head.scale:
        return found
    where, values = "view.draft_head.scale", head.scale
    found.require(len(values) == 1, where, "must be one value", len(values))
    for value in values:
        found.require(math.isfinite(value) and value > 0, where, "must be finite and positive", value)
    return found


@rule("draft-head-alone", proves="its weight is no embedding's, by storage: neither the drafter's nor the target's")
def alone(case: Case) -> Found:
    found, head = _look(case)
    if head is None:
        return found
    for whose, shared in (("draft", head.shares_draft_embedding), ("target", head.shares_target_embedding)):
        where = f"view.draft_head.shares_{whose}_embedding"
        found.require(shared is not True, where, f"its weight is the {whose} embedding's")
    return found


@rule("draft-embedding-borrowed", proves="beside such a head the drafter reads its tokens in the target's embedding")
def embedding_borrowed(case: Case) -> Found:
    found, head = _look(case)
    shared = None if head is None else head.draft_embedding_shares_target
    found.require(shared is not False, "view.draft_head.draft_embedding_shares_target", "is not the target's storage")
    return found


@rule("draft-head-dtypes", proves="beside such a head the draft embedding and the target's head are bfloat16")
def dtypes(case: Case) -> Found:
    found, head = _look(case)
    if head is None:
        return found
    for name, dtype in (("draft_embedding", head.draft_embedding_dtype), ("target_head", head.target_head_dtype)):
        message = f"must be {MODEL_DTYPE}"
        found.require(dtype in (None, MODEL_DTYPE), f"view.draft_head.{name}_dtype", message, dtype)
    return found


@rule("draft-head-target", proves="beside such a head the target's is not quantized")
def target_head(case: Case) -> Found:
    found, head = _look(case)
    name = None if head is None else head.target_head_method
    plain = name is None or name.rpartition(".")[2] in UNQUANTIZED
    found.require(plain, "view.draft_head.target_head_method", "the target's head is quantized", name)
    return found

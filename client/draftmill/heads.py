"""Heads: what a job asks for when a head is quantized or a draft vocabulary is cut, and what was found."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from draftmill._model import Model
from draftmill.benchmarks import EngineArgs, EngineEnv, PromptSet
from draftmill.plans import OutputTensor
from draftmill.sources import PathSource, RepoSource, Sha256


class CaptureOptions(Model):
    """Hidden states of the target, taken in a real engine: what GPTQ is calibrated with, and every head judged by."""

    target: RepoSource | PathSource | None = None
    """The model that runs; the job's own source when none is named."""
    texts: PromptSet = PromptSet(builtin="draftmill-1")
    """What it reads. Lines of a file may have `text` beside what a benchmark's have. `max_tokens` is an answer's."""
    own_outputs: bool = True
    """Let the target answer each text first, greedy, and read question and answer."""
    max_rows: Annotated[int, Field(ge=2, le=4_194_304)] = 32_768
    """Tokens in all. A row takes twice the hidden size in bytes."""
    engine_args: EngineArgs = EngineArgs()
    engine_env: dict[EngineEnv, Annotated[str, Field(max_length=256)]] = Field(default_factory=dict)


class HeadOptions(Model):
    """lm_head in integers, group 128, symmetric, as compressed-tensors' pack-quantized."""

    bits: Literal[4, 8] = 4
    method: Literal["rtn", "gptq", "gptq_mse"] = "gptq"
    """`rtn` rounds; `gptq` minimises what captured hidden states see of it; `gptq_mse` clips scales as well."""
    damp: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Of the Hessian's mean diagonal, added to it."""
    embeddings: Literal[8] | None = None
    """Bits of the input embedding, rounded; None leaves it."""
    mtp: Literal[8] | None = None
    """Bits of the MTP block's linears, rounded; None leaves them."""


class DraftVocabOptions(Model):
    """A vocabulary for drafting alone: given ids, or the most frequent of a corpus."""

    ids: PathSource | None = None
    """A JSON list of token ids."""
    count_over: PromptSet | None = None
    """A corpus whose tokens are counted, with the target's tokenizer."""
    own_outputs: bool = False
    """Count the tokens of the job's capture."""
    size: Annotated[int, Field(ge=1, le=16_777_216)] | None = None
    """Rows of the draft head. Left out only with `ids`."""
    layout: Literal["native", "community"] = "native"
    """`community` adds the files that a published vLLM patch reads."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum((self.ids is not None, self.count_over is not None, self.own_outputs)) != 1:
            raise PydanticCustomError("draft_vocab_way", "must have exactly one of `ids`, `count_over`, `own_outputs`")
        if (self.size is None) != (self.ids is not None):
            raise PydanticCustomError("draft_vocab_size", "`size` goes with counting, and not with `ids`")
        return self


class Coverage(Model):
    """Share of a held-out tenth of the tokens that a draft vocabulary of `size` has."""

    size: int
    covered: float


class Divergence(Model):
    kl: float
    """Mean over held-out rows of KL(head || quantized head), in nats."""
    top1: float
    """Share of held-out rows whose most likely token is the same."""
    weighted_error: float
    """tr((W - Q) H (W - Q)ᵀ) / tr(W H Wᵀ), over the held-out rows' second moments H."""


class HeadReport(Model):
    """What was found of a quantized head."""

    bits: int
    method: Literal["rtn", "gptq", "gptq_mse"]
    source: str
    """Where the unquantized head was: file and tensor."""
    rows: int
    columns: int
    calibration_rows: int | None = None
    held_out_rows: int | None = None
    rtn: Divergence | None = None
    """None where nothing was captured."""
    gptq: Divergence | None = None


class HeadGroup(Model):
    """Modules that were rewritten, and the compressed-tensors group that tells an engine so."""

    name: str
    targets: tuple[str, ...]
    bits: int
    modules: tuple[str, ...]


class DraftVocab(Model):
    size: int
    sha256: Sha256
    """Of the ids as little-endian int64."""
    layout: Literal["native", "community"]
    native: bool
    """The drafter's family knows draft vocabularies; False for an MTP block, which needs a draft head beside it."""
    coverage: tuple[Coverage, ...] = ()
    """By size; empty for ids that were given."""


class HeadPlan(Model):
    """`head.json`: what a variant with a rewritten head is, beside its source."""

    schema_: Literal["draftmill.head/v1"] = Field(default="draftmill.head/v1", alias="schema")
    source_tensor: str | None = None
    """File and tensor of the unquantized head; None where it was left alone."""
    tied: bool = False
    """The source's head is its embedding; the variant has one of its own."""
    groups: tuple[HeadGroup, ...] = ()
    draft_vocab: DraftVocab | None = None
    removed: tuple[str, ...]
    """Tensors of the source that the variant has in no file."""
    added: tuple[OutputTensor, ...]
    """Tensors that the source does not have, or not so."""
    linked: tuple[str, ...]
    """Weight files that are the source's own, by hard link."""
    kept: int
    """Tensors of the source that the variant has as they are."""
    source_bytes: int
    variant_bytes: int
    report: HeadReport | None = None
    """What was found of the quantized head."""

"""Named problems: RFC 9457 documents with a stable `type`, and the exception that carries one."""

from typing import Any, NamedTuple, Self

from pydantic import Field, JsonValue

from draftmill._model import Model
from draftmill.errors import DraftmillError

URN = "urn:draftmill:problem:"


class Kind(NamedTuple):
    title: str
    status: int
    """HTTP status where the API answers with it."""


class Offender(Model):
    """One thing that is wrong. A problem lists them all."""

    where: str
    """JSON path of a field, name of a tensor, or path of a file relative to the checkpoint."""
    message: str
    value: JsonValue = None


class Problem(Model):
    """An `application/problem+json` document."""

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
    offenders: tuple[Offender, ...] = Field(default=())

    @property
    def slug(self) -> str:
        return self.type.removeprefix(URN)


class ProblemError(DraftmillError):
    """Bad input or a refused operation, with everything a caller needs to mend it."""

    problem: Problem

    def __init__(self, slug: str, detail: str, offenders: "tuple[Offender, ...] | list[Offender]" = ()) -> None:
        kind = KINDS[slug]
        self.problem = Problem(
            type=URN + slug, title=kind.title, status=kind.status, detail=detail, offenders=tuple(offenders)
        )
        super().__init__(f"{slug}: {detail}")

    @classmethod
    def from_problem(cls, problem: Problem) -> Self:
        """The exception for a document that arrived; a newer service may send a type that KINDS lacks."""
        error = cls.__new__(cls, f"{problem.slug}: {problem.detail}")
        error.problem = problem
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).from_problem, (self.problem,))


KINDS: dict[str, Kind] = {
    # The request.
    "invalid-request": Kind("The request does not fit the schema", 422),
    "field-not-supported": Kind("This build does not do what the field asks for", 422),
    "unauthenticated": Kind("A valid API key is required", 401),
    "forbidden": Kind("The API key lacks the scope", 403),
    "not-found": Kind("No such resource", 404),
    "method-not-allowed": Kind("The resource has no such method", 405),
    "expired": Kind("The resource existed and was removed by retention", 410),
    "conflict": Kind("The job's state does not allow this", 409),
    "idempotency-mismatch": Kind("The Idempotency-Key was used with another request", 409),
    "not-ready": Kind("The artifact does not exist yet", 409),
    "range-not-satisfiable": Kind("The byte range lies outside the file", 416),
    "payload-too-large": Kind("The request body is too large", 413),
    "invalid-cursor": Kind("The cursor belongs to another query or is damaged", 422),
    "preflight-timeout": Kind("No worker answered in time", 504),
    "ledger-unavailable": Kind("The ledger cannot be reached", 503),
    "internal": Kind("A fault of Draftmill's own", 500),
    # Pull.
    "not-found-or-private": Kind("The repository does not exist, or the token may not see it", 422),
    "gated-not-accepted": Kind("The repository is gated and its terms were not accepted", 422),
    "token-scope": Kind("The token may not read this gated repository", 422),
    "token-invalid": Kind("The Hub does not accept the token", 422),
    "revision-not-found": Kind("The repository has no such revision", 422),
    "hub-unavailable": Kind("The Hub cannot be reached or keeps failing", 424),
    "rate-limited": Kind("The Hub refuses more requests for now", 424),
    "download-corrupt": Kind("Downloaded bytes differ from the repository's listing", 424),
    "download-stalled": Kind("The download made no progress", 424),
    "listing-refused": Kind("The repository's file listing is malformed or beyond bounds", 422),
    "disk-budget": Kind("The files do not fit in the disk budget", 507),
    "path-not-allowed": Kind("The path is not under an allowed root", 422),
    "path-not-found": Kind("There is no checkpoint at the path", 422),
    "pickle-refused": Kind("The weights are published as pickle only", 422),
    "no-weights": Kind("There are no safetensors weights", 422),
    # Checkpoint.
    "malformed-safetensors": Kind("A weight file is not a valid safetensors file", 422),
    "malformed-config": Kind("A configuration file cannot be read", 422),
    "incomplete-checkpoint": Kind("The index names files or tensors that are not there", 422),
    "duplicate-tensor": Kind("A tensor is stored in more than one file", 422),
    "unlisted-weights": Kind("A weight file holds tensors the index does not name", 422),
    "too-many-tensors": Kind("The drafter has more tensors than a plan holds", 422),
    "promised-layers-missing": Kind("The configuration promises draft layers that are not in the weights", 422),
    "unsafe-path": Kind("A path in the checkpoint leaves its folder", 422),
    "already-quantized": Kind("The checkpoint is quantized already", 422),
    "merge-refused": Kind("What is quantized already and what is to be cannot be one configuration", 422),
    # Plan.
    "unknown-family": Kind("No drafter family fits the tensors and configuration", 422),
    "family-not-quantizable": Kind("The engine does not read quantized weights of this family", 422),
    "head-ambiguous": Kind("The drafter's head is neither its own, borrowed nor tied", 422),
    "tied-head-mismatch": Kind("Tied embeddings have another shape than the head", 422),
    "target-layers-missing": Kind("The configuration does not name the target layers", 422),
    "shape-mismatch": Kind("Tensor shapes contradict the configuration", 422),
    "missing-tensors": Kind("Tensors the family needs are not in the checkpoint", 422),
    "lm-head-refused": Kind("This drafter's lm_head cannot be served quantized", 422),
    "shape-not-divisible": Kind("A dimension does not divide as the format needs", 422),
    "mixed-fused-group": Kind("Parts of a fused layer would get different schemes", 422),
    "target-depth-unknown": Kind("The engine's names of kept layers need the target's layer count", 422),
    "scale-search-refused": Kind("The scale search needs an NVFP4 format and shared scales", 422),
    "nothing-to-quantize": Kind("The plan leaves no tensor to quantize", 422),
    "unused-exclude": Kind("An exclude pattern matches no tensor", 422),
    "budget-unreachable": Kind("No variant keeps within the budget", 422),
    # Receipts.
    "receipt-damaged": Kind("A receipt is not what its manifest says", 500),
    "receipt-chain-broken": Kind("The chain of receipts is not as it was left", 500),
    # Quantize to seal.
    "non-finite-weights": Kind("A weight holds NaN or Inf", 422),
    "all-zero-weight": Kind("A weight to quantize is all zero", 422),
    "source-changed": Kind("The source files changed during the job", 409),
    "verify-failed": Kind("The variant failed its checks", 422),
    "variant-differs": Kind("A rebuild gave other bytes than the sealed variant", 500),
    # Bench.
    "prompts-invalid": Kind("The prompts cannot be read or do not fit the models' window", 422),
    "pair-mismatch": Kind("Drafter and target do not belong together", 422),
    "draft-length-refused": Kind("The drafter does not draft this many tokens", 422),
    "remote-code-refused": Kind("The operator does not allow this repository's code to run", 422),
    "engine-unavailable": Kind("This worker has no engine, or no memory for one", 503),
    "boot-failed": Kind("The engine did not start, or died", 500),
    "bench-failed": Kind("The benchmark's arms cannot be compared", 422),
    "no-drafts": Kind("Nothing was drafted: there is no acceptance length", 422),
    "receipt-invalid": Kind("A receipt breaks its rules: what ran is not what was asked for", 422),
    "gate-failed": Kind("The variant failed the gate", 422),
    # Heads.
    "capture-silent": Kind("The engine ran and no hidden state was seen", 422),
    "capture-short": Kind("A capture does not hold the rows it should", 422),
    "capture-invalid": Kind("Captured hidden states cannot be used", 422),
    "capture-dead-columns": Kind("Columns of the hidden state are always zero", 422),
    "head-source-missing": Kind("There is no unquantized head to start from", 422),
    "head-refused": Kind("This head cannot be rewritten as asked", 422),
    "head-gate-failed": Kind("The quantized head failed its gate", 422),
    "draft-vocab-invalid": Kind("The draft vocabulary cannot be used", 422),
    # The job.
    "stage-timeout": Kind("A stage ran past its deadline", 504),
    "stage-crashed": Kind("A stage process died", 500),
    "worker-lost": Kind("The workers that ran the job were lost", 500),
    "canceled": Kind("The job was canceled", 409),
    "deadline-exceeded": Kind("The job's deadline passed", 422),
}
"""Every problem there is, by slug. The README's table and the API's documentation are made from it."""

"""Gemma4's assistants, recognised so that they can be refused by name: docs/adr/0086 has what was read in vLLM 0.32."""

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import Checkpoint

_TYPES = ("gemma4_assistant", "gemma4_unified_assistant")
_REASON = (
    "a Gemma4 assistant: its layers hold no keys and values, which are the target's, and its head is its embedding. "
    "This build does not plan it; serve it as it is, or with its head in FP8 on loading (docs/heads.md)"
)
_ORDERED = "the engine reads rows of the head as they are stored: with these no head of it can be quantized at all"


def refuse_gemma4_assistant(checkpoint: Checkpoint) -> None:
    """Raises `unknown-family`. The configuration may be of any shape."""
    config = checkpoint.config
    if config.get("model_type") not in _TYPES:
        return
    offenders = [Offender(where="config.json: model_type", message=_REASON, value=str(config["model_type"]))]
    if config.get("use_ordered_embeddings") is True:
        offenders.append(Offender(where="config.json: use_ordered_embeddings", message=_ORDERED, value=True))
    raise ProblemError("unknown-family", _REASON, offenders)

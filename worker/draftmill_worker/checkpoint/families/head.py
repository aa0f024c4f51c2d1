"""Whose lm_head a drafter uses: its own, the target's, or its own embedding. Never a guess."""

from draftmill.plans import Head
from draftmill_worker.checkpoint.drafter import Module
from draftmill_worker.checkpoint.families.reading import Reading

LM_HEAD = "lm_head.weight"


def draft_head(reading: Reading, vocab: int, draft_vocab: int | None) -> Head:
    """The head of a drafter that may borrow its target's. What cannot be told is noted as `head-ambiguous`."""
    own, tied = LM_HEAD in reading.tensors, reading.settings.flag("tie_word_embeddings") is True
    if tied and _tied_mismatch(reading, vocab, draft_vocab):
        return Head.TIED
    _check_declared(reading, own)
    if own:
        if tied:
            reading.warnings.append("tie_word_embeddings is true, yet lm_head.weight is stored: the engine loads it")
        return Head.OWN
    fault = _borrowing_fault(reading, vocab, draft_vocab, tied)
    if fault is not None:
        reading.findings.add("head-ambiguous", LM_HEAD, fault)
    return Head.BORROWED


def model_head(reading: Reading, vocab: int) -> Head:
    """The head of a whole language model, which has no target to borrow from."""
    if reading.settings.flag("tie_word_embeddings"):
        _tied_mismatch(reading, vocab, None)
        return Head.TIED
    if LM_HEAD not in reading.tensors:
        message = "is not stored and tie_word_embeddings is not true: the engine would serve a head of random weights"
        reading.findings.add("head-ambiguous", LM_HEAD, message)
    return Head.OWN


def head_module(reading: Reading, head: Head, keep: str | None, runtime: str = "lm_head") -> Module:
    """lm_head as the engine builds it, stored or not: even a borrowed one is built before it is replaced.

    `keep`: why the engine cannot read a quantized one, if so.
    """
    members = ("lm_head",) if LM_HEAD in reading.tensors else ()
    if head is not Head.OWN:
        keep = f"lm_head: the head is {head.value}"
    return Module("lm_head", members, (runtime,), keep=keep, opt_in=keep is None)


def embedding_module(reading: Reading) -> Module:
    """embed_tokens as the engine builds it, stored or borrowed from the target."""
    members = ("embed_tokens",) if "embed_tokens.weight" in reading.tensors else ()
    return Module("embed_tokens", members, ("model.embed_tokens",), keep="embedding")


def _tied_mismatch(reading: Reading, vocab: int, draft_vocab: int | None) -> bool:
    stored = reading.tensors.get(LM_HEAD)
    rows = draft_vocab or vocab if stored is None or len(stored.shape) != 2 else stored.shape[0]
    if rows == vocab:
        return False
    message = (
        f"tie_word_embeddings is true, yet the head has {rows} rows and the embedding {vocab}. "
        "Set tie_word_embeddings to false: the flag was likely copied from the target"
    )
    reading.findings.add("tied-head-mismatch", "config.json: tie_word_embeddings", message)
    return True


def _check_declared(reading: Reading, own: bool) -> None:
    for key in ("has_lm_head", "has_own_lm_head"):
        declared = reading.settings.flag(key)
        # has_own_lm_head: false beside a stored head only says that the engine need not quantize it.
        if declared is None or declared == own or (own and key == "has_own_lm_head"):
            continue
        state = "is" if own else "is not"
        reading.findings.add("head-ambiguous", LM_HEAD, f"{state} stored, yet the configuration says {key}: {declared}")


def _borrowing_fault(reading: Reading, vocab: int, draft_vocab: int | None, tied: bool) -> str | None:
    if draft_vocab is not None and draft_vocab != vocab:
        return f"is not stored, and the target's head of {vocab} rows cannot serve a vocabulary of {draft_vocab}"
    if tied and any(name.endswith("embed_tokens.weight") for name in reading.tensors):
        return "is not stored: tied to the stored embedding, or the target's? Store it, or drop tie_word_embeddings"
    if draft_vocab is not None and not tied and reading.settings.flag("has_lm_head") is None:
        return (
            "is not stored, yet draft_vocab_size announces a head: some engines allocate one of random weights. "
            "Store it, or drop draft_vocab_size where the target's head is meant"
        )
    return None

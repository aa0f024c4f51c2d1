"""Tables over a vocabulary: embedding, head, and the map of a trimmed draft vocabulary."""

from draftmill_worker.checkpoint.families.head import LM_HEAD
from draftmill_worker.checkpoint.families.reading import Reading
from draftmill_worker.checkpoint.families.settings import Sizes

_INTEGERS = ("I64", "I32")


def check_vocabulary(reading: Reading, sizes: Sizes, draft_vocab: int | None) -> None:
    """Notes wrong rows of embed_tokens and lm_head, and a trimmed vocabulary without its integer map `d2t`.

    Without the map the engine drafts token k for row k, silently: nothing is accepted.
    """
    reading.expect_rows("embed_tokens.weight", sizes.vocab, sizes.hidden, "vocab_size", required=False)
    rows, setting = (draft_vocab, "draft_vocab_size") if draft_vocab else (sizes.vocab, "vocab_size")
    reading.expect_rows(LM_HEAD, rows, sizes.hidden, setting, required=False)
    if draft_vocab is None or draft_vocab == sizes.vocab:
        return
    reading.expect("d2t", (draft_vocab,))
    d2t = reading.tensors.get("d2t")
    if d2t is not None and d2t.dtype not in _INTEGERS:
        message = f"is {d2t.dtype}; a map of token ids is I64. Floats do not hold token ids"
        reading.findings.add("shape-mismatch", "d2t", message)

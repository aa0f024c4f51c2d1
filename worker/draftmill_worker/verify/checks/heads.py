"""Vocabulary maps and heads: what silently turns every draft into another token."""

from typing import TYPE_CHECKING

from draftmill.plans import TensorPlan
from draftmill.reports import CheckStatus
from draftmill_worker.verify.registry import Result, check, skipped
from draftmill_worker.verify.view import View

if TYPE_CHECKING:
    import torch

EMBEDDINGS = ("embed_tokens.weight", "model.embed_tokens.weight")


@check(
    "draft-vocabulary-maps",
    reads="d2t and t2d, config.json",
    after=("integers-identical",),
    proves="d2t gives each draft id one target id inside the vocabulary, and t2d marks exactly those",
)
def draft_vocabulary_maps(view: View) -> Result:
    vocab, draft = view.settings.get("vocab_size"), view.settings.get("draft_vocab_size")
    d2t, t2d = _find(view, "d2t"), _find(view, "t2d")
    if d2t is None and t2d is None:
        if isinstance(vocab, int) and isinstance(draft, int) and draft < vocab:
            result = Result(evidence={"vocab_size": vocab, "draft_vocab_size": draft})
            result.blame("d2t", "missing: engines would take the identity, and draft other tokens than are meant")
            return result
        return skipped("the drafter has the whole vocabulary")
    result = Result(evidence={"vocab_size": vocab, "draft_vocab_size": draft})
    targets = None if d2t is None else _targets(view, result, d2t, vocab, draft)
    if t2d is not None:
        _compare_t2d(view, result, t2d, targets, vocab)
    return result


def _find(view: View, name: str) -> TensorPlan | None:
    return next((tensor for tensor in view.plan.tensors if tensor.name.rpartition(".")[2] == name), None)


def _targets(view: View, result: Result, plan: TensorPlan, vocab: object, draft: object) -> "torch.Tensor | None":
    """Target ids of the draft ids; None where the map itself is no map."""
    import torch

    if plan.dtype != "I64" or len(plan.shape) != 1 or (isinstance(draft, int) and plan.shape[0] != draft):
        result.blame(plan.name, f"I64 [{draft}] expected", f"{plan.dtype} {list(plan.shape)}")
        return None
    offsets = view.after(plan, plan.name)
    targets = offsets + torch.arange(len(offsets))
    beyond = int(((targets < 0) | (targets >= (vocab if isinstance(vocab, int) else 0))).sum())
    repeated = len(targets) - len(torch.unique(targets))
    result.evidence["entries"] = len(targets)
    if beyond:
        result.blame(plan.name, f"target ids outside [0, {vocab})", beyond)
    if repeated:
        result.blame(plan.name, "target ids given twice", repeated)
    if not result.offenders and bool((targets[1:] < targets[:-1]).any()):
        result.status = CheckStatus.WARN
        result.evidence["warning"] = "the map is not in ascending order, as trainers write it"
    return targets


def _compare_t2d(view: View, result: Result, plan: TensorPlan, targets: "torch.Tensor | None", vocab: object) -> None:
    import torch

    if plan.dtype != "BOOL" or len(plan.shape) != 1 or plan.shape[0] != vocab:
        result.blame(plan.name, f"BOOL [{vocab}] expected", f"{plan.dtype} {list(plan.shape)}")
        return
    marked = view.after(plan, plan.name).nonzero().flatten()
    result.evidence["marked"] = len(marked)
    if targets is not None and not torch.equal(marked, torch.unique(targets)):
        result.blame(plan.name, "marks other tokens than d2t reaches", len(marked))


@check(
    "tied-head",
    reads="config.json, headers",
    after=("documents-readable", "names-complete"),
    proves="a head said to be tied has the embedding's shape, and a trimmed vocabulary has a head of its own",
)
def tied_head(view: View) -> Result:
    config = view.settings
    head = view.source_checkpoint.tensors.get("lm_head.weight")
    embedding = next((view.source_checkpoint.tensors[name] for name in EMBEDDINGS if name in view.expected), None)
    vocab, draft = config.get("vocab_size"), config.get("draft_vocab_size")
    tied = config.get("tie_word_embeddings") is True
    result = Result(evidence={"tied": tied, "head": head and list(head.shape), "head_of": view.plan.head.value})
    if tied and isinstance(draft, int) and draft != vocab:
        result.blame("config.json: tie_word_embeddings", f"true, yet draft_vocab_size {draft} is not {vocab}")
    if tied and head is not None and embedding is not None and head.shape != embedding.shape:
        result.blame("lm_head.weight", f"tied to an embedding of {list(embedding.shape)}", list(head.shape))
    rows = draft if isinstance(draft, int) else vocab
    if not tied and head is not None and isinstance(rows, int) and head.shape[0] < rows:
        result.blame("lm_head.weight", f"{rows} rows expected by config.json", list(head.shape))
    if not tied and head is None and isinstance(draft, int) and draft != vocab:
        result.blame("lm_head.weight", "missing: a trimmed vocabulary cannot borrow the target's head")
    return result

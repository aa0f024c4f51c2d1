"""That the drafter's head, embedding and vocabulary are those of its checkpoint, and the target's are untouched."""

from draftmill.plans import Family, Head
from draftmill.receipts import HeadRecord
from draftmill_worker.checkpoint.drafter import Drafter
from draftmill_worker.receipts.expected import PLAIN_DTYPES, SCHEMES, UNQUANTIZED
from draftmill_worker.receipts.rule import Case, Found, dtype_of, one_of, rule, viewed


@rule(
    "head-as-planned",
    proves="the head is the drafter's own or the target's as planned, of the planned method and dtype, finite",
)
def head_as_planned(case: Case) -> Found:
    found = Found("the target alone")
    drafter, built = case.expected.drafter, case.expected.head
    if not case.drafts or (drafter is not None and drafter.family is Family.MEDUSA):
        return found
    view = viewed(found, case)
    if view is None or drafter is None:
        return found
    head = view.head
    if head is None:
        found.blame("view.head", "the head was not recorded")
        return found
    found.detail = f"{head.class_name}, {head.method}, {head.dtype}"
    found.require(head.finite, "view.head", "holds NaN or Inf")
    borrowed = drafter.head is Head.BORROWED
    message = f"must {'be' if borrowed else 'not be'} the target's"
    found.require(head.shares_target_head is borrowed, "view.head", message)
    if not case.draft_head_asked:
        # Else it is quantized on loading, whatever was planned: rules of its own judge that.
        _check_head_rows(found, head, drafter)
        _check_head_method(found, head, case, built is not None and built.quantized)
    return found


def _check_head_rows(found: Found, head: HeadRecord, drafter: Drafter) -> None:
    rows = drafter.draft_vocab_size or drafter.vocab_size
    found.require(bool(head.shape) and head.shape[0] >= rows, "view.head.shape", f"fewer than {rows} rows", head.shape)


def _check_head_method(found: Found, head: HeadRecord, case: Case, quantized: bool) -> None:
    plan, dtype = case.expected.plan, dtype_of(head.dtype)
    if not quantized or plan is None:
        # A borrowed head is the target's, which may be quantized itself.
        own = not head.shares_target_head
        found.require(not own or head.method in UNQUANTIZED, "view.head", "is kept, and quantized in the engine")
        found.require(not own or dtype in PLAIN_DTYPES, "view.head", "is kept, and stored in another dtype", dtype)
        return
    scheme = SCHEMES[plan.format]
    found.require(head.method in scheme.methods, "view.head", f"the plan quantizes it, the engine runs {head.method}")
    holds = scheme.holds(dtype, head.kernel)
    found.require(holds, "view.head", f"must be stored as {one_of(scheme.dtypes)}", dtype)
    found.require(head.scale_positive is True, "view.head", "its scale is not positive, or was not recorded")


@rule(
    "embedding-as-stored",
    proves="a drafter that stores no embedding uses the target's, by storage",
)
def embedding_as_stored(case: Case) -> Found:
    found = Found("the drafter's own")
    drafter = case.expected.drafter
    if not case.drafts or drafter is None or _stores_embedding(drafter):
        return found
    view = viewed(found, case)
    shares = view is not None and view.embedding is not None and view.embedding.shares_target_embedding
    found.detail = "the target's"
    found.require(shares, "view.embedding", "the drafter stores none, and the engine does not use the target's")
    return found


def _stores_embedding(drafter: Drafter) -> bool:
    if drafter.family in (Family.DRAFT_MODEL, Family.MEDUSA):
        return True
    return any(module.members for module in drafter.modules if module.name.endswith("embed_tokens"))


@rule(
    "draft-map-as-stored",
    proves="a trimmed vocabulary has the checkpoint's map: a missing one becomes the identity without a word",
)
def draft_map_as_stored(case: Case) -> Found:
    found = Found("the drafter has the target's vocabulary")
    drafter = case.expected.drafter
    size = None if drafter is None else drafter.draft_vocab_size
    if not case.drafts or size is None or size >= case.expected.target_vocab:
        return found
    found.detail = f"{size} of {case.expected.target_vocab} tokens"
    stored = case.expected.draft_map_sha256
    found.require(stored is not None, "d2t", "is not in the checkpoint, though its vocabulary is trimmed")
    view = viewed(found, case)
    if view is None or stored is None:
        return found
    if view.draft_map is None:
        found.blame("view.draft_map", "the engine has no map from draft ids to target ids")
        return found
    found.require(view.draft_map.size == size, "view.draft_map", f"must have {size} entries", view.draft_map.size)
    found.require(view.draft_map.sha256 == stored, "view.draft_map", "is not the checkpoint's d2t")
    return found


@rule(
    "target-unchanged",
    proves="sampled parameters of the target are the same before and after the drafter was loaded",
)
def target_unchanged(case: Case) -> Found:
    found = Found("by digest of sampled parameters")
    view = case.receipt.view
    if not case.drafts:
        found.detail = "the target alone"
        return found
    view = viewed(found, case)
    if view is None:
        return found
    known = view.target_digest_before is not None and view.target_digest_after is not None
    found.require(known, "view.target_digest", "was not taken before and after")
    same = view.target_digest_before == view.target_digest_after
    found.require(same, "view.target_digest", "loading the drafter changed the target")
    return found


@rule(
    "target-unquantized",
    proves="a target that lies in one directory with its drafter is not quantized with it",
)
def target_unquantized(case: Case) -> Found:
    found = Found("target and drafter lie apart")
    if not case.expected.embedded:
        return found
    view = viewed(found, case)
    if view is None:
        return found
    found.detail = ", ".join(f"{count} {method}" for method, count in sorted(view.target_methods.items()))
    found.require(bool(view.target_methods), "view.target_methods", "were not recorded")
    for method, count in view.target_methods.items():
        plain = method == "none" or method.startswith("Unquantized")
        found.require(plain, "view.target_methods", f"{count} modules of the target run {method}")
    return found

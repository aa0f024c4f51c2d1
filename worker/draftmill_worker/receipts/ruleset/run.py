"""That the run took place: complete, on a known engine, with the drafter that was asked for, and with drafts."""

from draftmill.receipts import Phase
from draftmill_worker.receipts.rule import Case, Found, one_of, rule, viewed
from draftmill_worker.receipts.versions import NO_ENGINE

PROPOSERS: dict[str, frozenset[str]] = {
    "eagle": frozenset({"EagleProposer", "EagleSpeculator"}),
    "eagle3": frozenset({"EagleProposer", "EagleSpeculator"}),
    "dflash": frozenset({"DFlashProposer", "DFlashSpeculator", "DFlash2Speculator"}),
    "dspark": frozenset({"DSparkProposer", "DSparkSpeculator"}),
    "draft_model": frozenset({"DraftModelProposer", "StandaloneARSpeculator"}),
    "medusa": frozenset({"MedusaProposer"}),
    "mtp": frozenset(
        {"EagleProposer", "Gemma4Proposer", "MTPSpeculator", "MultiModuleMTPSpeculator", "Gemma4Speculator"}
    ),
}
"""Classes of vLLM 0.32 that draft for a family: of model runner V1 and of V2."""
_LEAST_VERSIONS = frozenset({"python", "draftmill", "torch"})


@rule(
    "run-complete",
    proves="the engine was loaded, measured and left, in this order, and what it said was hashed",
)
def run_complete(case: Case) -> Found:
    names = [phase.name for phase in case.receipt.phases]
    found = Found(", ".join(names))
    for phase in (Phase.LOADED, Phase.MEASURED, Phase.EXITED):
        found.require(names.count(phase) == 1, "phases", f"must hold {phase} once")
    times = [phase.at for phase in case.receipt.phases]
    found.require(times == sorted(times), "phases", "must be in order")
    found.require(case.receipt.output_sha256 is not None, "output_sha256", "the output was not counted")
    return found


@rule(
    "engine-identified",
    proves="the engine's build, the versions beside it and its resolved configuration are known",
)
def engine_identified(case: Case) -> Found:
    receipt = case.receipt
    found = Found(receipt.engine_build)
    found.require(receipt.engine_build not in ("", NO_ENGINE), "engine_build", "the engine's build is not known")
    missing = _LEAST_VERSIONS - receipt.versions.keys()
    found.require(not missing, "versions", f"lacks {', '.join(sorted(missing))}")
    found.require(bool(receipt.engine_config), "engine_config", "is empty")
    return found


@rule(
    "drafts-counted",
    proves="there were drafts, of at most the tokens asked for, and the counters add up; the target alone has none",
)
def drafts_counted(case: Case) -> Found:
    counts, depth = case.receipt.counts, case.expected.num_speculative_tokens
    if not case.drafts:
        found = Found("the target alone")
        found.require(counts is None or counts.drafts == 0, "counts.drafts", "drafts without a drafter")
        found.require(case.receipt.speculative_config is None, "speculative_config", "must be absent")
        return found
    if counts is None or depth is None:
        found = Found("not counted")
        found.blame("counts", "drafts were not counted, or nobody knows how many were asked for")
        return found
    found = Found(f"{counts.drafts} drafts, {counts.accepted} accepted")
    found.require(counts.drafts > 0, "counts.drafts", "nothing was drafted", counts.drafts)
    most = counts.drafts * depth
    found.require(0 < counts.draft_tokens <= most, "counts.draft_tokens", f"must be 1 to {most}", counts.draft_tokens)
    found.require(0 <= counts.accepted <= counts.draft_tokens, "counts.accepted", "exceeds what was drafted")
    positions = counts.accepted_per_position
    found.require(len(positions) <= depth, "counts.accepted_per_position", f"more than {depth} positions")
    found.require(sum(positions) == counts.accepted, "counts.accepted_per_position", "does not add up to accepted")
    falling = list(positions) == sorted(positions, reverse=True)
    found.require(falling, "counts.accepted_per_position", "a token counts only where those before it were accepted")
    return found


@rule(
    "proposer-expected",
    proves="the engine drafted by the family's method, with its proposer and its class, as many tokens as asked for",
)
def proposer_expected(case: Case) -> Found:
    receipt, drafter = case.receipt, case.expected.drafter
    if not case.drafts:
        found = Found("the target alone")
        view = receipt.view
        found.require(view is None or view.drafter_class is None, "view.drafter_class", "a drafter was loaded")
        return found
    found = Found("no drafter is known")
    if drafter is None:
        found.blame("drafter", "the drafter's checkpoint was not read")
        return found
    asked = receipt.speculative_config or {}
    method, depth = asked.get("method"), asked.get("num_speculative_tokens")
    found.detail = f"{method}, {depth} tokens"
    found.require(method == drafter.family.value, "speculative_config.method", f"must be {drafter.family}", method)
    wanted = case.expected.num_speculative_tokens
    found.require(depth == wanted, "speculative_config.num_speculative_tokens", f"must be {wanted}", depth)
    view = viewed(found, case)
    if view is not None:
        proposers = PROPOSERS[drafter.family.value]
        found.require(view.proposer in proposers, "view.proposer", f"must be {one_of(proposers)}", view.proposer)
        wanted_class = drafter.engine_class
        found.require(view.drafter_class == wanted_class, "view.drafter_class", f"must be {wanted_class}")
    return found

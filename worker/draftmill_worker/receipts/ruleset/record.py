"""That the record itself is whole and clean: files, commits, secrets, and what was patched."""

from collections.abc import Iterator

from draftmill.plans import Family
from draftmill.receipts import Checkpointed
from draftmill_worker.receipts.collect import EMULATION, emulated
from draftmill_worker.receipts.environment import allowed
from draftmill_worker.receipts.expected import Given
from draftmill_worker.receipts.redact import REDACTED, is_secret_name, looks_secret
from draftmill_worker.receipts.rule import Case, Found, rule, viewed

_PRECOMPUTE = frozenset({Family.DFLASH, Family.DSPARK})


@rule(
    "files-as-given",
    proves="the files that the engine read are those of the manifests, by size and SHA-256",
)
def files_as_given(case: Case) -> Found:
    found = Found("target and drafter" if case.drafts else "target")
    _compare(found, "target", case.receipt.target, case.expected.target)
    if not case.drafts:
        found.require(case.receipt.drafter is None, "drafter", "the target alone was asked for")
    elif case.receipt.drafter is None or case.expected.drafter_files is None:
        found.blame("drafter", "its files were not recorded")
    else:
        _compare(found, "drafter", case.receipt.drafter, case.expected.drafter_files)
    return found


def _compare(found: Found, role: str, recorded: Checkpointed, given: Given) -> None:
    there = {file.path: file for file in recorded.files}
    wanted = {file.path: file for file in given.manifest.files}
    found.require(bool(wanted), role, "its manifest is empty")
    for path in sorted(there.keys() | wanted.keys()):
        found.require(there.get(path) == wanted.get(path), f"{role}/{path}", "is not as its manifest says")


@rule(
    "commits-recorded",
    proves="every model from a repository has the commit it was resolved to, and a variant its digest",
)
def commits_recorded(case: Case) -> Found:
    found = Found("of every repository")
    pairs = [("target", case.receipt.target, case.expected.target)]
    if case.receipt.drafter is not None and case.expected.drafter_files is not None:
        pairs.append(("drafter", case.receipt.drafter, case.expected.drafter_files))
    for role, recorded, given in pairs:
        found.require(not given.from_repo or recorded.commit is not None, f"{role}.commit", "was not recorded")
        found.require(recorded.commit == given.commit, f"{role}.commit", f"must be {given.commit}", recorded.commit)
        found.require(recorded.variant == given.variant, f"{role}.variant", f"must be {given.variant}")
    return found


@rule(
    "no-secret",
    proves="the environment holds allow-listed variables alone, and nothing recorded looks like a secret",
)
def no_secret(case: Case) -> Found:
    receipt = case.receipt
    found = Found(f"{len(receipt.environment)} variables")
    for name, value in receipt.environment.items():
        found.require(allowed(name), f"environment.{name}", "is not on the list")
        open_secret = is_secret_name(name) and value not in ("", REDACTED)
        found.require(not open_secret, f"environment.{name}", "a secret by its name, and not redacted")
    parts = receipt.model_dump(
        mode="json", include={"environment", "argv", "speculative_config", "engine_config", "warnings"}
    )
    for part, value in parts.items():
        for where, text in _texts(part, value):
            found.require(not looks_secret(text), where, "looks like a secret")
    return found


def _texts(where: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(f"{where}.{key}", item)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _texts(f"{where}[{number}]", item)


@rule(
    "emulation-declared",
    proves="a run on emulated kernels says so, and on a CPU they come from the plugin",
)
def emulation_declared(case: Case) -> Found:
    receipt = case.receipt
    found = Found("emulated" if receipt.emulated else "native")
    if case.drafts:
        seen = emulated(viewed(found, case))
        found.require(receipt.emulated == seen, "emulated", f"kernels of class *{EMULATION}* say otherwise")
    else:
        found.require(not receipt.emulated, "emulated", "no drafter was there to emulate")
    on_cpu = not receipt.host.gpus
    applied = {plugin.partition(".")[0] for plugin in receipt.plugins}
    found.require(not (receipt.emulated and on_cpu) or "emulation" in applied, "plugins", "emulation is not applied")
    return found


@rule(
    "faults-mended",
    proves="where the CPU engine is known to compute wrongly, or not at all, the plugin that mends it was applied",
)
def faults_mended(case: Case) -> Found:
    receipt, drafter = case.receipt, case.expected.drafter
    found = Found("none known")
    if not case.drafts or receipt.host.gpus or drafter is None or drafter.family not in _PRECOMPUTE:
        return found
    applied = {plugin.partition(".")[0] for plugin in receipt.plugins}
    found.detail = ", ".join(sorted(applied)) or "no plugin"
    found.require("rmsnorm2d" in applied, "plugins", "rmsnorm2d is not applied: every layer's keys get layer 0's norm")
    view = viewed(found, case)
    if view is not None and drafter.family is Family.DSPARK and view.runner != "v2":
        found.require("dspark" in applied, "plugins", "dspark is not applied, and model runner V1 has none of its own")
        found.require(view.runner == "v1+plugin", "view.runner", "must be v1+plugin", view.runner)
    return found

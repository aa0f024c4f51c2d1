"""What lies beside the weights: the source's sidecars and modules, byte for byte, and nothing that was not meant."""

from pathlib import Path
from typing import Any

from draftmill.problems import ProblemError
from draftmill.reports import CheckStatus
from draftmill_worker.assemble.modules import collect
from draftmill_worker.assemble.sidecars import is_sidecar
from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX
from draftmill_worker.checkpoint.config import load_object
from draftmill_worker.checkpoint.hashing import sha256_file
from draftmill_worker.verify.registry import Result, check, skipped
from draftmill_worker.verify.view import CARD, HF_QUANT_CONFIG, PLAN, View

TOKENIZER = "tokenizer.json"
MAX_NAMED = 16
"""Tokens beyond the vocabulary that are named one by one."""
SAMPLE_TEXT = "The quick brown fox jumps over the lazy dog. 0123456789"


@check(
    "no-stray-files",
    reads="names of all files",
    after=("regular-files", "weight-files-listed"),
    proves="the folder holds weights, documents, sidecars and modules, nothing else of the source",
)
def no_stray_files(view: View) -> Result:
    meant = {*view.planned_files, CONFIG, INDEX, HF_QUANT_CONFIG, PLAN, CARD}
    result = Result(evidence={"files": len(view.files)})
    for file in sorted(view.files - meant):
        if not is_sidecar(file) and not file.endswith(".py"):
            result.blame(file, "no part of a variant")
    return result


@check(
    "sidecars-identical",
    reads="tokenizer, template, generation, preprocessor, licence and recipe files of source and variant",
    after=("no-stray-files",),
    proves="every sidecar of the source is there, byte for byte, and none was added",
)
def sidecars_identical(view: View) -> Result:
    source = {path.name for path in view.source.iterdir() if path.is_file() and is_sidecar(path.name)}
    there = {file for file in view.files if is_sidecar(file)}
    result = Result(evidence={"files": sorted(source)})
    for name in sorted(source ^ there):
        result.blame(name, "the source has it, the variant does not" if name in source else "the source has none")
    for name in sorted(source & there):
        if not _same_bytes(view.source / name, view.variant / name):
            result.blame(name, "differs from the source")
    return result


def _same_bytes(left: Path, right: Path) -> bool:
    return left.stat().st_size == right.stat().st_size and sha256_file(left) == sha256_file(right)


@check(
    "auto-map-files",
    reads="auto_map of every JSON file, the modules it names and those they import",
    after=("sidecars-identical", "config-preserved"),
    proves="every module that auto_map needs from this folder is there, as in the source, and no other code is",
)
def auto_map_files(view: View) -> Result:
    configs = [name for name in sorted(view.files) if name == CONFIG or name.endswith("_config.json")]
    # The source tells which references are into its own repository: their modules were copied.
    modules = {file for file in view.files if file.endswith(".py")}
    result = Result(evidence={"modules": sorted(modules)})
    for name, reference, file in _named(view, configs):
        if file is not None and not (view.variant / file).is_file():
            result.blame(f"{name}: {reference}", f"{file} is not there")
    for file in sorted(modules):
        original = view.source / file
        if not original.is_file() or not _same_bytes(original, view.variant / file):
            result.blame(file, "is not the source's")
    if not result.offenders:
        result.offenders += _incomplete(view, configs)
    return result


def _named(view: View, configs: list[str]) -> list[tuple[str, str, str | None]]:
    """(JSON file, reference, module's path); no path for what another repository holds."""
    found = []
    for name in configs:
        auto_map: Any = load_object((view.variant / name).read_bytes(), name).get("auto_map") or {}
        values = [item for value in auto_map.values() for item in (value if isinstance(value, list) else [value])]
        for reference in filter(None, values):
            path = reference.rpartition(".")[0].replace(".", "/") + ".py"
            found.append((name, reference, None if "--" in reference else path))
    return found


def _incomplete(view: View, configs: list[str]) -> list[Any]:
    """Imports of the copied modules that lead nowhere."""
    try:
        collect(view.variant, configs)
    except ProblemError as error:
        return list(error.problem.offenders)
    return []


@check(
    "tokenizer-encodes",
    reads="tokenizer.json, through the tokenizers library",
    after=("sidecars-identical",),
    proves="the tokenizer that ships turns text into tokens inside the vocabulary; other ids beyond it are a warning",
)
def tokenizer_encodes(view: View) -> Result:
    from tokenizers import Tokenizer

    if TOKENIZER not in view.files:
        return skipped("no tokenizer.json ships: drafts use the target's tokenizer")
    result = Result()
    try:
        tokenizer = Tokenizer.from_file(str(view.variant / TOKENIZER))
        ids = tokenizer.encode(SAMPLE_TEXT).ids
    except Exception as error:  # noqa: BLE001  (the library raises plain Exception for every fault)
        result.blame(TOKENIZER, f"the tokenizers library refuses it: {error}")
        return result
    result.evidence = {"tokens": len(ids), "vocabulary": tokenizer.get_vocab_size()}
    vocab = view.settings.get("vocab_size")
    beyond = [token for token in ids if isinstance(vocab, int) and token >= vocab]
    if not ids:
        result.blame(TOKENIZER, "text gives no tokens", SAMPLE_TEXT)
    if beyond:
        result.blame(TOKENIZER, f"tokens beyond vocab_size {vocab}", beyond)
    if not result.offenders and isinstance(vocab, int):
        _warn_beyond(result, tokenizer.get_vocab(with_added_tokens=True), vocab)
    return result


def _warn_beyond(result: Result, tokens: dict[str, int], vocab: int) -> None:
    """The source ships such tokens and may never draft them, so that they are no fault of the variant.

    A model's vocabulary may be padded beyond its tokenizer's; the other way around, an id has no embedding.
    """
    beyond = sorted((number, token) for token, number in tokens.items() if number >= vocab)
    for number, token in beyond[:MAX_NAMED]:
        result.blame(f"{TOKENIZER}: {token[:64]!r}", f"its id is beyond vocab_size {vocab}", number)
    if beyond:
        result.evidence["beyond_vocab_size"] = len(beyond)
        result.status = CheckStatus.WARN

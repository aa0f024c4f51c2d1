"""The model card: a serve command that says everything, and no trace of the machine."""

import json
import re
import shlex
from typing import Any

from draftmill.plans import Family
from draftmill_worker.verify.registry import Result, check
from draftmill_worker.verify.view import CARD, View

OPTION = "--speculative-config"


@check(
    "serve-command",
    reads="README.md, config.json",
    after=("documents-readable",),
    proves="the command says method, quantization, dtype and draft tokens, and pins target and drafter apart",
)
def serve_command(view: View) -> Result:
    result = Result()
    words = _command(view.card)
    spoken = _speculative(words)
    if spoken is None:
        result.blame(CARD, f"no `vllm serve` command with {OPTION} and JSON after it")
        return result
    result.evidence = {"speculative_config": spoken}
    embedded = view.plan.family is Family.MTP
    wanted: dict[str, str | None] = {"method": view.plan.family.value, "quantization": view.spec.quant_method}
    if embedded:
        # One directory, in its own quantization.
        wanted |= {"quantization": None, "model": None}
    for key, value in wanted.items():
        if spoken.get(key) != value:
            result.blame(f"{CARD}: {key}", f"{value} expected", spoken.get(key))
    dtype = "float16" if view.plan.dtype == "float16" else "bfloat16"
    if _option(words, "--dtype") != dtype:
        result.blame(f"{CARD}: --dtype", f"{dtype} expected", _option(words, "--dtype"))
    if not _option(words, "--revision") or not (embedded or spoken.get("revision")):
        result.blame(f"{CARD}: revision", "target and drafter are to be pinned each by its own revision")
    fault = _tokens_fault(view, spoken.get("num_speculative_tokens"))
    if fault is not None:
        result.blame(f"{CARD}: num_speculative_tokens", fault, spoken.get("num_speculative_tokens"))
    return result


def _command(card: str) -> list[str]:
    """Words of the first `vllm serve` in a fenced block, read as a shell reads them."""
    for block in card.split("```")[1::2]:
        start = block.find("vllm serve")
        if start >= 0:
            return shlex.split(block[start:].replace("\\\n", " "))
    return []


def _speculative(words: list[str]) -> dict[str, Any] | None:
    text = _option(words, OPTION)
    try:
        value = json.loads(text) if text else None
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _option(words: list[str], name: str) -> str | None:
    return words[words.index(name) + 1] if name in words[:-1] else None


def _tokens_fault(view: View, tokens: object) -> str | None:
    """Block drafters draft their block, less one where the anchor is no draft of theirs: as the engine lays it out."""
    if type(tokens) is not int or tokens < 1:
        return "a number above zero expected"
    nested = view.settings.get("dflash_config")
    sections = [nested if isinstance(nested, dict) else {}, view.settings]
    block = next((section["block_size"] for section in sections if isinstance(section.get("block_size"), int)), None)
    if block is None:
        return None
    # vLLM: DSpark samples from the anchor unless told not to, and speculators' dialect tells it not to by default.
    anchored = view.settings.get("sample_from_anchor", "speculators_model_type" not in view.settings) is True
    if view.plan.family is Family.DSPARK and tokens != (block if anchored else block - 1):
        return f"{block if anchored else block - 1} expected for blocks of {block}"
    if view.plan.family is Family.DFLASH and tokens > max(block - 1, 1):
        return f"at most {max(block - 1, 1)} for blocks of {block}"
    return None


@check(
    "no-local-paths",
    reads="every document written here",
    after=("documents-readable",),
    proves="no path of this machine is in the folder: a rebuild elsewhere gives the same bytes",
)
def no_local_paths(view: View) -> Result:
    documents = [file for file in sorted(view.files) if file.endswith((".json", ".md")) and file not in _copied(view)]
    folders = [path for folder in (view.source, view.variant) for path in (folder.absolute(), folder.resolve())]
    # Where a path could begin, so that `/data` is not found in `org/data`.
    local = re.compile(rf"(?<![\w./-])(?:{'|'.join(sorted({re.escape(str(folder)) for folder in folders}))})")
    result = Result(evidence={"documents": documents})
    for file in documents:
        found = local.search((view.variant / file).read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            result.blame(file, "holds a path of this machine", found[0])
    return result


def _copied(view: View) -> set[str]:
    return {path.name for path in view.source.iterdir()} - {"config.json", CARD, "model.safetensors.index.json"}

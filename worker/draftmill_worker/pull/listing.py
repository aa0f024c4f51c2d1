"""A repository's file listing: validated entries, and which of them a pull takes."""

import fnmatch
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX, PICKLE_SUFFIXES, WEIGHTS_SUFFIX
from draftmill_worker.checkpoint.findings import Findings
from draftmill_worker.pull.settings import Limits

ALLOWED = (
    "*.safetensors",
    # A head that was quantized in place has its original here.
    "*.safetensors.bak",
    "*.safetensors.bak-orig",
    INDEX,
    CONFIG,
    "quantization_config.json",
    "generation_config.json",
    # Tokenizers.
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "*.tiktoken",
    "tiktoken.model",
    "tekken.json",
    "spiece.model",
    "sentencepiece*.model",
    "chat_template*",
    # Preprocessors.
    "preprocessor_config.json",
    "processor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    # How an earlier step made the weights.
    "recipe*.yaml",
    "recipe*.yml",
    "recipe*.json",
    # A variant is a derived work: its licence travels with it.
    "LICENSE*",
    "NOTICE*",
)
"""Patterns of names in the repository's root, case-sensitive."""

# Never taken, whatever pattern they match: loading them can run code, or we do not read them.
_REFUSED = (*PICKLE_SUFFIXES, ".pickle", ".npy", ".npz", ".h5", ".msgpack", ".part", ".py", ".so")

# vLLM reads this file of a DFlash drafter when it is there: without it the drafter is another one.
MASK_EMBEDDING = "mask_embedding.pt"

# No control characters, no half surrogate pairs, no separators of any system.
_PATH_PART = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff/\\]{1,255}")
_MAX_PATH = 1024


class _Lfs(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    oid: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0, lt=1 << 63)]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    type: str
    path: str
    oid: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
    size: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    lfs: _Lfs | None = None


_PAGE = TypeAdapter(list[_Entry])


@dataclass(frozen=True, slots=True)
class ListedFile:
    path: str
    size: int
    digest: str
    """What the listing promises of the bytes: SHA-256 for LFS files, else git's blob SHA-1."""
    algorithm: Literal["sha256", "git-sha1"]


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit."""

    repo: str
    commit: str
    files: tuple[ListedFile, ...]
    """What the allow-list takes, sorted by path."""
    others: dict[str, ListedFile] = field(repr=False)
    """Everything else; `*.py` named by an auto_map are taken from here."""

    @property
    def sizes(self) -> dict[str, int]:
        return {file.path: file.size for file in self.files}

    @property
    def what(self) -> str:
        return f"{self.repo}@{self.commit[:12]}"

    @property
    def siblings(self) -> tuple[str, ...]:
        """Names of all files in the root."""
        names = {file.path for file in self.files} | self.others.keys()
        return tuple(sorted(name for name in names if "/" not in name))

    def find(self, path: str) -> ListedFile | None:
        return next((file for file in self.files if file.path == path), None) or self.others.get(path)


def allowed(path: str) -> bool:
    """Whether the allow-list takes the file: in the root, of a known kind, and no pickle."""
    if "/" in path or path.lower().endswith(_REFUSED):
        return False
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in ALLOWED)


def parse_page(body: Any, what: str) -> list[_Entry]:
    """The entries of one page of the tree listing; `listing-refused` when they are not what the Hub documents."""
    try:
        return _PAGE.validate_python(body)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = "/".join(str(part) for part in fault["loc"])
        raise ProblemError("listing-refused", f"{what}: the file listing is malformed at {where}") from error


def make_listing(repo: str, commit: str, entries: Iterable[_Entry]) -> Listing:
    """The listing of validated entries. Raises `unsafe-path` for names that cannot be plain relative paths."""
    found = [entry for entry in entries if entry.type != "directory"]
    _check_names(found, repo)
    listed = {entry.path: _listed(entry) for entry in found}
    taken = {path: file for path, file in listed.items() if allowed(path)}
    others = {path: file for path, file in listed.items() if path not in taken}
    return Listing(repo, commit, tuple(taken[path] for path in sorted(taken)), others)


def check_listing(what: str, sizes: Mapping[str, int], siblings: Collection[str], limits: Limits) -> None:
    """Whether these files (names with sizes in bytes) can make a checkpoint, and are within bounds. Reads no file."""
    if MASK_EMBEDDING in siblings:
        message = "store it as the embedding's row of the mask token instead: vLLM would read this pickle"
        raise ProblemError("pickle-refused", f"{what}: {message}", [Offender(where=MASK_EMBEDDING, message=message)])
    if not any(name.endswith(WEIGHTS_SUFFIX) for name in sizes):
        raise _no_weights(what, siblings)
    findings = Findings()
    if CONFIG not in sizes:
        findings.add("malformed-config", CONFIG, "the file is not there")
    for name, size in sizes.items():
        if size > limits.max_sidecar_bytes and not name.endswith(WEIGHTS_SUFFIX):
            message = f"{size} bytes; at most {limits.max_sidecar_bytes} are taken of a file without weights"
            findings.add("listing-refused", name, message, size)
    findings.raise_any()
    total = sum(sizes.values())
    if len(sizes) > limits.max_files or total > limits.max_bytes:
        detail = f"{len(sizes)} files of {total} bytes; at most {limits.max_files} of {limits.max_bytes} are taken"
        raise ProblemError("listing-refused", f"{what}: {detail}")


def _no_weights(what: str, siblings: Collection[str]) -> ProblemError:
    pickles = sorted(name for name in siblings if name.endswith(PICKLE_SUFFIXES))
    if pickles:
        message = "pickle can run code when it is loaded; publish the weights as safetensors"
        offenders = [Offender(where=name, message=message) for name in pickles[:100]]
        return ProblemError("pickle-refused", f"{what}: {message}", offenders)
    return ProblemError("no-weights", f"{what}: there is no .safetensors file in the root")


def _listed(entry: _Entry) -> ListedFile:
    if entry.lfs is not None:
        return ListedFile(entry.path, entry.lfs.size, entry.lfs.oid, "sha256")
    return ListedFile(entry.path, entry.size, entry.oid, "git-sha1")


def _check_names(entries: list[_Entry], repo: str) -> None:
    findings = Findings()
    folded: dict[str, str] = {}
    for entry in entries:
        fault = _name_fault(entry)
        # A file system that folds case or composes accents would keep one of the two.
        same = folded.setdefault(unicodedata.normalize("NFC", entry.path).casefold(), entry.path)
        if fault is None and same != entry.path and (allowed(entry.path) or allowed(same)):
            fault = f"the name differs from {same!r} only in case"
        if fault is not None:
            findings.add("unsafe-path", entry.path[:_MAX_PATH].encode("utf-8", "replace").decode(), fault)
    if findings:
        findings.raise_any()
    if len({entry.path for entry in entries}) != len(entries):
        raise ProblemError("listing-refused", f"{repo}: the file listing names a file twice")


def _name_fault(entry: _Entry) -> str | None:
    parts = entry.path.split("/")
    if len(entry.path) > _MAX_PATH or not all(_PATH_PART.fullmatch(part) for part in parts):
        return "not a relative path of plain names"
    if any(part in {".", ".."} for part in parts):
        return "the path leaves the repository"
    if entry.type != "file" and allowed(entry.path):
        return f"a {entry.type[:32]!r} entry where a file is expected"
    return None

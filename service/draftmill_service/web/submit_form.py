"""The fields of the form for a new job: the spec that they make, what is wrong beside which, and the way back."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from draftmill.benchmarks import PromptSet
from draftmill.choices import AUTO, KEEP
from draftmill.formats import Format
from draftmill.jobs import JobSpec, PathSource, RepoSource
from draftmill.problems import Offender
from draftmill_service.offenders import meant, offenders
from draftmill_service.web.forms import Form

BUILTIN = "draftmill-1"
AUTO_FORMATS = {format: f"auto_{format}" for format in Format}
"""Name of each format's box in a budget."""
TEXTS = (
    *("source", "revision", "format", "exclude", "dtype", "scales", "labels", "deadline"),
    *("target", "target_revision", "num_speculative_tokens", "prompts", "max_tokens", "max_al_drop"),
    *("auto_max_size", "auto_max_al_drop", "auto_boots"),
    *("head_bits", "head_method", "head_damp"),
    *("vocab", "vocab_ids", "vocab_texts", "vocab_size", "vocab_layout"),
    *("capture_target", "capture_target_revision", "capture_texts", "capture_limit"),
    *("capture_max_tokens", "capture_max_rows"),
)
BOXES = (
    *("lm_head", "scale_search", "accept_failed_gate", *AUTO_FORMATS.values()),
    *("head", "head_embeddings", "head_mtp", "capture", "capture_own_outputs"),
)
DEFAULTS = {
    "revision": "main",
    "format": "fp8",
    "dtype": "bfloat16",
    "scales": "fused",
    "target_revision": "main",
    "num_speculative_tokens": "3",
    "max_al_drop": "0.05",
    "head_bits": "4",
    "head_method": "gptq",
    "vocab_layout": "native",
    "capture_own_outputs": "1",
}
_FIELDS = {
    "source.revision": "revision",
    "quantize.exclude": "exclude",
    "benchmark.target.revision": "target_revision",
    "benchmark.target": "target",
    "benchmark.num_speculative_tokens": "num_speculative_tokens",
    "benchmark.prompts.max_tokens": "max_tokens",
    "benchmark.prompts": "prompts",
    "benchmark.gate": "max_al_drop",
    "auto.max_al_drop": "auto_max_al_drop",
    "auto.boots": "auto_boots",
    "auto": "auto_max_size",
    "head.bits": "head_bits",
    "head.method": "head_method",
    "head.damp": "head_damp",
    "draft_vocab.ids": "vocab_ids",
    "draft_vocab.count_over": "vocab_texts",
    "draft_vocab.size": "vocab_size",
    "draft_vocab": "vocab",
    "capture.target.revision": "capture_target_revision",
    "capture.target": "capture_target",
    "capture.texts.limit": "capture_limit",
    "capture.texts.max_tokens": "capture_max_tokens",
    "capture.texts": "capture_texts",
    "capture.max_rows": "capture_max_rows",
    **{name: name for name in ("source", "format", "labels", "deadline", "head", "capture")},
}
"""Beside which field what is wrong at a place of the spec is said; the first that fits."""
_OF_THE_WHOLE = {
    "auto_budget": "auto_max_al_drop",
    "head_job": "head",
    "head_capture": "capture",
    "field_not_supported": "target",
    "scale_search_refused": "scale_search",
}
"""The same for what is wrong with the spec as a whole, by the error's type."""


@dataclass(frozen=True)
class Filled:
    """The form as it was filled in, and what is wrong with it: each offender with the field that it is said beside."""

    values: dict[str, str]
    wrong: Sequence[tuple[Offender, str | None]] = ()
    left_out: Sequence[str] = ()
    """Fields of the job it is to be like that it cannot say."""

    @property
    def beside(self) -> dict[str, list[Offender]]:
        found: defaultdict[str, list[Offender]] = defaultdict(list)
        for offender, name in self.wrong:
            if name is not None:
                found[name].append(offender)
        return dict(found)


def read(form: Form) -> tuple[Filled, JobSpec | None]:
    """What the fields say, and the spec that they make; None where they make none."""
    values = {name: form.text(name) for name in TEXTS} | {name: "1" for name in BOXES if form.checked(name)}
    wrong: list[tuple[Offender, str | None]] = []
    document = _document(form, wrong)
    spec = None
    try:
        spec = JobSpec.model_validate(document)
    except ValidationError as error:
        wrong += _placed(error)
    return Filled(values, wrong), None if wrong else spec


def _placed(error: ValidationError) -> Iterable[tuple[Offender, str | None]]:
    every = error.errors(include_url=False)
    whole = {each["msg"]: _OF_THE_WHOLE.get(each["type"]) for each in every if not each["loc"]}
    for offender in offenders(meant([{**each, "loc": ("body", *each["loc"])} for each in every])):
        place = offender.where.removeprefix("$").removeprefix(".")
        beside = next((name for start, name in _FIELDS.items() if place.startswith(start)), None)
        yield offender, beside if place else whole.get(offender.message)


def _document(form: Form, wrong: list[tuple[Offender, str | None]]) -> dict[str, Any]:
    """The spec's JSON. What the fields cannot say is added to `wrong`, with a stand-in for it."""
    format = form.text("format")
    made: dict[str, Any] = {
        "source": _source(form.text("source"), form.text("revision")),
        "format": format,
        "labels": _labels(form.lines("labels"), wrong),
        "deadline": _deadline(form.text("deadline"), wrong),
        "accept_failed_gate": form.checked("accept_failed_gate"),
        "benchmark": _benchmark(form) if form.text("target") else None,
    }
    if format == KEEP:
        return made | _kept(form)
    made["quantize"] = {
        "exclude": form.lines("exclude"),
        "lm_head": form.checked("lm_head"),
        "nvfp4_scale_search": form.checked("scale_search"),
        "dtype": form.text("dtype") or DEFAULTS["dtype"],
        "scales": form.text("scales") or DEFAULTS["scales"],
    }
    return made | ({"auto": _auto(form)} if format == AUTO else {})


def _auto(form: Form) -> dict[str, Any]:
    texts = {name: form.text(f"auto_{name}") for name in ("max_size", "max_al_drop", "boots")}
    return _said(texts) | {"formats": [format for format, name in AUTO_FORMATS.items() if form.checked(name)]}


def _kept(form: Form) -> dict[str, Any]:
    return {
        "head": _head(form) if form.checked("head") else None,
        "draft_vocab": _draft_vocab(form) if form.text("vocab") else None,
        "capture": _capture(form) if form.checked("capture") else None,
    }


def _head(form: Form) -> dict[str, Any]:
    rounded = {name: 8 for name in ("embeddings", "mtp") if form.checked(f"head_{name}")}
    said = {"bits": _number(form.text("head_bits")), "method": form.text("head_method"), "damp": form.text("head_damp")}
    return _said(said) | rounded


def _draft_vocab(form: Form) -> dict[str, Any]:
    way = form.text("vocab")
    ways: dict[str, dict[str, Any]] = {
        "ids": {"ids": {"path": form.text("vocab_ids")}},
        "count_over": {"count_over": _texts(form.text("vocab_texts"))},
        "own_outputs": {"own_outputs": True},
    }
    return ways.get(way, {}) | _said({"size": form.text("vocab_size"), "layout": form.text("vocab_layout")})


def _capture(form: Form) -> dict[str, Any]:
    target = form.text("capture_target")
    limits = {"limit": form.text("capture_limit"), "max_tokens": form.text("capture_max_tokens")}
    return {
        "target": _source(target, form.text("capture_target_revision")) if target else None,
        "texts": _texts(form.text("capture_texts")) | _said(limits),
        "own_outputs": form.checked("capture_own_outputs"),
    } | _said({"max_rows": form.text("capture_max_rows")})


def _benchmark(form: Form) -> dict[str, Any]:
    limits = {"limit": form.text("prompts"), "max_tokens": form.text("max_tokens")}
    return {
        "target": _source(form.text("target"), form.text("target_revision")),
        "num_speculative_tokens": form.text("num_speculative_tokens"),
        "prompts": {"builtin": BUILTIN} | _said(limits),
        "gate": _said({"max_al_drop": form.text("max_al_drop")}),
    }


def _said(texts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in texts.items() if value != ""}


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _source(where: str, revision: str) -> dict[str, str]:
    return {"path": where} if where.startswith("/") else {"repo": where, "revision": revision or "main"}


def _texts(where: str) -> dict[str, Any]:
    """`draftmill-1` or nothing, a path, or a dataset's repository and its file as `org/texts:train.jsonl`."""
    if where in ("", BUILTIN):
        return {"builtin": BUILTIN}
    if where.startswith("/"):
        return {"path": {"path": where}}
    repo, _, file = where.partition(":")
    return {"repo": {"repo": repo}} | _said({"file": file})


def _labels(lines: list[str], wrong: list[tuple[Offender, str | None]]) -> dict[str, str]:
    pairs = [line.partition("=") for line in lines]
    for key, equals, _ in pairs:
        if not equals:
            said = Offender(where="$.labels", message=f"{key!r} is not written as key=value", value=key)
            wrong.append((said, "labels"))
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


def _deadline(text: str, wrong: list[tuple[Offender, str | None]]) -> datetime | None:
    if not text:
        return None
    try:
        deadline = datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError as error:
        wrong.append((Offender(where="$.deadline", message=str(error), value=text), "deadline"))
        return None
    if deadline <= datetime.now(UTC):
        wrong.append((Offender(where="$.deadline", message="this time has passed", value=text), "deadline"))
    return deadline


def like_job(spec: JobSpec) -> Filled:
    """The form that makes this spec, but for its deadline, as far as the form can say it."""
    values = DEFAULTS | _values(spec)
    again = read(Form(list(values.items())))[1]
    wanted, made = _normal(spec), {} if again is None else _normal(again)
    return Filled(values, left_out=[name for name in wanted if name != "deadline" and wanted[name] != made.get(name)])


def _normal(spec: JobSpec) -> dict[str, Any]:
    """The spec's JSON, with the prompts that are meant where none are named."""
    document = spec.model_dump(mode="json")
    for field, name in (("benchmark", "prompts"), ("capture", "texts"), ("draft_vocab", "count_over")):
        prompts = (document[field] or {}).get(name)
        if prompts and not any(prompts[way] for way in ("builtin", "path", "repo")):
            prompts["builtin"] = BUILTIN
    return document


def _values(spec: JobSpec) -> dict[str, str]:
    values = {
        "format": str(spec.format),
        "exclude": "\n".join(spec.quantize.exclude),
        "dtype": spec.quantize.dtype,
        "scales": spec.quantize.scales,
        "labels": "\n".join(f"{key}={value}" for key, value in spec.labels.items()),
        "lm_head": _box(spec.quantize.lm_head),
        "scale_search": _box(spec.quantize.nvfp4_scale_search),
        "accept_failed_gate": _box(spec.accept_failed_gate),
    }
    return values | _where(spec.source) | _of_benchmark(spec) | _of_auto(spec) | _of_kept(spec)


def _where(source: RepoSource | PathSource, name: str = "source", revision: str = "revision") -> dict[str, str]:
    if isinstance(source, PathSource):
        return {name: source.path, revision: ""}
    return {name: source.repo, revision: source.revision}


def _box(checked: object) -> str:
    return "1" if checked else ""


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _texts_of(prompts: PromptSet) -> str:
    if prompts.path is not None:
        return prompts.path.path
    return BUILTIN if prompts.repo is None else f"{prompts.repo.repo}:{prompts.file}"


def _of_benchmark(spec: JobSpec) -> dict[str, str]:
    if (benchmark := spec.benchmark) is None:
        return {}
    return _where(benchmark.target, "target", "target_revision") | {
        "num_speculative_tokens": str(benchmark.num_speculative_tokens),
        "prompts": _text(benchmark.prompts.limit),
        "max_tokens": str(benchmark.prompts.max_tokens),
        "max_al_drop": str(benchmark.gate.max_al_drop),
    }


def _of_auto(spec: JobSpec) -> dict[str, str]:
    if (auto := spec.auto) is None:
        return {}
    texts = {f"auto_{name}": _text(getattr(auto, name)) for name in ("max_size", "max_al_drop", "boots")}
    return texts | {AUTO_FORMATS[format]: "1" for format in auto.formats}


def _of_kept(spec: JobSpec) -> dict[str, str]:
    values: dict[str, str] = {}
    if (head := spec.head) is not None:
        values |= {"head": "1", "head_bits": str(head.bits), "head_method": head.method, "head_damp": str(head.damp)}
        values |= {"head_embeddings": _box(head.embeddings), "head_mtp": _box(head.mtp)}
    if (vocab := spec.draft_vocab) is not None:
        way = "ids" if vocab.ids else "count_over" if vocab.count_over else "own_outputs"
        values |= {"vocab": way, "vocab_size": _text(vocab.size), "vocab_layout": vocab.layout}
        values |= {"vocab_ids": vocab.ids.path} if vocab.ids else {}
        values |= {"vocab_texts": _texts_of(vocab.count_over)} if vocab.count_over else {}
    if (capture := spec.capture) is not None:
        values |= {"capture": "1", "capture_texts": _texts_of(capture.texts)}
        values |= {"capture_limit": _text(capture.texts.limit), "capture_max_tokens": str(capture.texts.max_tokens)}
        values |= {"capture_own_outputs": _box(capture.own_outputs), "capture_max_rows": str(capture.max_rows)}
        if capture.target is not None:
            values |= _where(capture.target, "capture_target", "capture_target_revision")
    return values

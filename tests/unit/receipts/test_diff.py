"""Diffs: only what differs, volatile fields aside, and every field of the schema either shows or is volatile."""

from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from draftmill.archive import diff
from draftmill.archive.diff import is_volatile
from draftmill.receipts import Change, Phase, PhaseRecord, Receipt
from tests.unit.receipts.good import SHA, START, Good, good

OTHER = "0" * 64


@pytest.fixture
def sample(tmp_path: Path) -> Good:
    return good(tmp_path)


def paths(a: Receipt, b: Receipt, **options: bool) -> list[str]:
    return [change.path for change in diff(a, b, **options).changes]


def test_a_receipt_does_not_differ_from_itself(sample: Good) -> None:
    assert paths(sample.receipt, sample.receipt, volatile=True) == []


def test_two_runs_of_a_job_differ_in_volatile_fields_alone(sample: Good) -> None:
    later = sample.see(kv_cache_tokens=1).receive(
        boot="b" + "2" * 32,
        job=None,
        attempt=2,
        argv=("other",),
        timings={"boot": 1.0, "run": 2.0},
        phases=tuple(PhaseRecord(name=name, at=START.replace(year=2027)) for name in Phase),
        host=sample.receipt.host.model_copy(update={"memory_bytes": 1, "kernel": "7"}),
        chain=sample.receipt.chain.model_copy(update={"writer": "x", "sequence": 9, "previous": SHA}),
    )
    assert paths(sample.receipt, later.receipt) == []
    everything = diff(sample.receipt, later.receipt, volatile=True).changes
    assert {change.path.partition(".")[0].partition("[")[0] for change in everything} == {
        "boot",
        "job",
        "attempt",
        "argv",
        "timings",
        "phases",
        "host",
        "chain",
        "view",
    }
    assert all(change.volatile for change in everything)


def test_what_differs_is_named_by_name_and_not_by_place(sample: Good) -> None:
    changed = sample.change("down_proj", kernel="Other").receive(
        environment={"OMP_NUM_THREADS": "2"}, engine_config={"cache_config": {"enable_prefix_caching": True}}
    )
    assert diff(sample.receipt, changed.receipt).changes == (
        Change(path="engine_config.cache_config.enable_prefix_caching", a=False, b=True),
        Change(path="environment.OMP_NUM_THREADS", a="1", b="2"),
        Change(path="environment.VLLM_CACHE_ROOT", a="cache", b=None),
        Change(
            path="view.modules[model.layers.0.mlp.down_proj].kernel",
            a="PerTensorTorchFP8ScaledMMLinearKernel",
            b="Other",
        ),
    )


def test_items_that_come_go_and_move(sample: Good) -> None:
    a = sample.receive(warnings=("x", "y"), plugins=("p", "q")).receipt
    b = sample.receive(warnings=("y", "z"), plugins=("q", "p")).receipt
    assert diff(a, b).changes == (
        Change(path="plugins[order]", a=["p", "q"], b=["q", "p"]),
        Change(path="warnings[x]", a="x", b=None),
        Change(path="warnings[z]", a=None, b="z"),
    )
    repeated = sample.receive(warnings=("x", "x", "y")).receipt
    assert paths(sample.receive(warnings=("x", "x")).receipt, repeated) == ["warnings[2]"]


def test_a_part_that_is_missing_shows_whole(sample: Good) -> None:
    (change,) = diff(sample.receipt, sample.receive(counts=None).receipt).changes
    assert (change.path, change.b) == ("counts", None)
    assert isinstance(change.a, dict)
    assert change.a["drafts"] == 100


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Models in an annotation."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) in (Union, UnionType) or get_origin(kind) is not None:
        for part in get_args(kind):
            yield from _models(part)


def _volatile(model: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        where = f"{path}.{name}".lstrip(".")
        if is_volatile(field):
            yield where
        else:
            for inner in _models(field.annotation):
                yield from _volatile(inner, where)


def test_the_schema_declares_what_is_volatile() -> None:
    """Times, ids, rates, cache sizes and the chain; a field that is added here is not compared any more."""
    assert sorted(_volatile(Receipt)) == [
        "argv",
        "attempt",
        "boot",
        "chain",
        "devices",
        "host.kernel",
        "host.memory_bytes",
        "job",
        "phases.at",
        "timings",
        "view.kv_cache_tokens",
    ]


def test_every_other_field_shows(sample: Good) -> None:
    """Whatever is changed in the JSON form of a receipt, one value at a time."""
    document = sample.receipt.model_dump(mode="json", by_alias=True)
    skipped = 0
    for where in _leaves(document):
        try:
            changed = Receipt.model_validate(_changed(document, where))
        except ValueError:
            skipped += 1  # a value of a closed set
            continue
        assert paths(sample.receipt, changed, volatile=True), where
    assert skipped < 30


def _leaves(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*where, key))
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield from _leaves(item, (*where, number))
    else:
        yield where


def _changed(value: Any, where: tuple[Any, ...]) -> Any:
    if where:
        copy = dict(value) if isinstance(value, dict) else list(value)
        copy[where[0]] = _changed(value[where[0]], where[1:])
        return copy
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str) and set(value) <= set("0123456789abcdef") and len(value) in (40, 64):
        return OTHER[: len(value)]
    return f"{value}x" if isinstance(value, str) else "x"

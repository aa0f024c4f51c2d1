"""Two receipts compared by what their schema says of each field: volatile ones differ between equal runs."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from draftmill.receipts import Change, Receipt, ReceiptDiff

_VOLATILE = "draftmill:volatile"
_NAMES = ("name", "path", "rule", "where")


def diff(a: Receipt, b: Receipt, *, volatile: bool = False) -> ReceiptDiff:
    """What differs, without the volatile fields unless `volatile`."""
    changes = (change for change in _models("", a, b, False) if volatile or not change.volatile)
    return ReceiptDiff(a=a.boot, b=b.boot, changes=tuple(changes))


def _models(path: str, a: BaseModel, b: BaseModel, volatile: bool) -> Iterator[Change]:
    for name, field in type(a).model_fields.items():
        inside = f"{path}.{field.alias or name}".lstrip(".")
        yield from _values(inside, getattr(a, name), getattr(b, name), volatile or is_volatile(field))


def is_volatile(field: FieldInfo) -> bool:
    extra = field.json_schema_extra
    return isinstance(extra, dict) and extra.get(_VOLATILE) is True


def _values(path: str, a: Any, b: Any, volatile: bool) -> Iterator[Change]:
    if isinstance(a, BaseModel) and type(a) is type(b):
        yield from _models(path, a, b, volatile)
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from _values(f"{path}.{key}", a.get(key), b.get(key), volatile)
    elif isinstance(a, tuple | list) and isinstance(b, tuple | list):
        yield from _lists(path, a, b, volatile)
    elif (before := _json(a)) != (after := _json(b)):
        yield Change(path=path, a=before, b=after, volatile=volatile)


def _lists(path: str, a: Sequence[Any], b: Sequence[Any], volatile: bool) -> Iterator[Change]:
    left, right = _named(a), _named(b)
    if left is None or right is None:
        left, right = (
            dict(zip(map(str, range(len(a))), a, strict=True)),
            dict(zip(map(str, range(len(b))), b, strict=True)),
        )
    for name in dict.fromkeys([*left, *right]):
        yield from _values(f"{path}[{name}]", left.get(name), right.get(name), volatile)
    orders = [name for name in left if name in right], [name for name in right if name in left]
    if orders[0] != orders[1]:
        yield Change(path=f"{path}[order]", a=list(orders[0]), b=list(orders[1]), volatile=volatile)


def _named(items: Sequence[Any]) -> dict[str, Any] | None:
    """Items by their names, where each has one of its own; strings are their own names."""
    names = [_name(item) for item in items]
    if None in names or len(set(names)) < len(names):
        return None
    return {str(name): item for name, item in zip(names, items, strict=True)}


def _name(item: Any) -> str | None:
    if isinstance(item, str):
        return item
    if not isinstance(item, BaseModel):
        return None
    return next((str(getattr(item, name)) for name in _NAMES if name in type(item).model_fields), None)


def _json(value: Any) -> Any:
    return to_jsonable_python(value, by_alias=True, inf_nan_mode="strings")

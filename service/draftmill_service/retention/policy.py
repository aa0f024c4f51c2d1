"""What is to go: a pure function of what is there, what is used, what is pinned, and the limits."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from draftmill_service.retention.layout import Item, Kind

DAY_NS = 86_400 * 10**9
HOUR_NS = 3600 * 10**9


@dataclass(frozen=True)
class Limits:
    """None is no limit."""

    variants_days: float | None = None
    variants_bytes: int | None = None
    sources_days: float | None = None
    sources_bytes: int | None = None
    jobs_days: float | None = None
    partials_hours: float = 24.0


@dataclass(frozen=True)
class InUse:
    """What running attempts need."""

    names: frozenset[str] = frozenset()
    since: int | None = None
    """Of attempts that have not said yet what they need: whatever was used since (nanoseconds) may be theirs."""

    def covers(self, item: Item) -> bool:
        recent = self.since is not None and item.used >= self.since
        return item.name in self.names or (recent and item.kind in (Kind.VARIANT, Kind.SOURCE))


class Removal(NamedTuple):
    item: Item
    why: str


def decide(
    items: Sequence[Item],
    limits: Limits,
    *,
    in_use: InUse,
    pins: Collection[str],
    ended: Mapping[str, int],
    now: datetime,
) -> list[Removal]:
    """Least recently used first. `ended` tells when each job whose attempts may go, and each batch that may go, ended
    (nanoseconds), by its name."""
    at = round(now.timestamp() * 10**9)
    free = [item for item in sorted(items) if not {item.name, item.job} & {*pins} and not in_use.covers(item)]
    removals = [
        *_aged(free, Kind.VARIANT, limits.variants_days, at),
        *_aged(free, Kind.SOURCE, limits.sources_days, at),
        *_ended(free, ended, limits.jobs_days, at),
        *(
            Removal(item, f"nothing was written for {limits.partials_hours:g} hours")
            for item in free
            if item.kind is Kind.PARTIAL and at - item.used > limits.partials_hours * HOUR_NS
        ),
        *(Removal(item, "its attempt died") for item in free if item.kind is Kind.SCRATCH),
        *(Removal(item, "removed before") for item in free if item.kind is Kind.TRASH),
    ]
    for kind, most in ((Kind.VARIANT, limits.variants_bytes), (Kind.SOURCE, limits.sources_bytes)):
        removals += _oversized(items, free, kind, most, {removal.item for removal in removals})
    return _without_parts(sorted(removals))


def _aged(free: Sequence[Item], kind: Kind, days: float | None, at: int) -> list[Removal]:
    if days is None:
        return []
    why = f"unused for {days:g} days"
    return [Removal(item, why) for item in free if item.kind is kind and at - item.used > days * DAY_NS]


def _ended(free: Sequence[Item], ended: Mapping[str, int], days: float | None, at: int) -> list[Removal]:
    if days is None:
        return []
    whose = {Kind.ATTEMPT: "its job", Kind.BATCH: "it"}
    done = (item for item in free if item.kind in whose)
    old = (item for item in done if at - ended.get(item.job or item.name, at) > days * DAY_NS)
    return [Removal(item, f"{whose[item.kind]} ended more than {days:g} days ago") for item in old]


def _oversized(
    items: Sequence[Item], free: Sequence[Item], kind: Kind, most: int | None, going: Collection[Item]
) -> list[Removal]:
    """The least recently used, until the rest fits. What is pinned or in use counts and stays."""
    if most is None:
        return []
    total = sum(item.bytes for item in items if item.kind is kind and item not in going)
    removals = []
    for item in free:
        if total <= most:
            break
        if item.kind is kind and item not in going and item.bytes > 0:
            removals.append(Removal(item, f"{kind}s are to stay within {most} bytes"))
            total -= item.bytes
    return removals


def _without_parts(removals: list[Removal]) -> list[Removal]:
    """The scratch of an attempt that goes whole is not named again."""
    whole = {f"{removal.item.name}/scratch" for removal in removals if removal.item.kind is Kind.ATTEMPT}
    return [removal for removal in removals if removal.item.name not in whole]

"""Devices of a machine, each held by one claim at a time. All or nothing, in order of asking."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from draftmill.states import Stage
from draftmill_service.ledger.errors import LeaseLost

if TYPE_CHECKING:
    from draftmill_service.ledger.worker_ledger import Claim


class Wanted(NamedTuple):
    """`need` of `devices`; names hold letters, digits, `.`, `_` and `-`."""

    machine: str
    """What the devices' names are of. Workers that could reach the same device must say the same."""
    devices: tuple[str, ...]
    need: int


class Granted(NamedTuple):
    devices: tuple[str, ...]


class Waiting(NamedTuple):
    place: int
    """1 is the next; only requests that could use the same devices count."""


class Devices:
    """A claim's devices go when it ends, however it does: by finish, hand-back or the reaper."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def ask(self, claim: "Claim", stage: Stage, wanted: Wanted) -> Granted | Waiting:
        """Take what is wanted, or a place in line, which the job's record shows. To be asked again while waiting; after
        a grant it gives the same again. What the claim had for another stage is freed. Raises LeaseLost.

        ValueError when there are too few devices: such a request would wait for ever, and all others behind it.
        """
        if not 1 <= wanted.need <= len(set(wanted.devices)):
            raise ValueError(f"{wanted.need} of {len(wanted.devices)} devices")
        answer = self._run(
            "ask_devices", wanted.machine, claim.job.id, claim.fence, stage, wanted.need, *wanted.devices
        )
        if answer is None:
            raise LeaseLost(claim.job.id, claim.fence)
        kind, *rest = answer
        return Granted(tuple(rest)) if kind == "granted" else Waiting(int(rest[0]))

    def release(self, claim: "Claim", machine: str) -> None:
        """Free the claim's devices and its place in line; nothing when it has none."""
        self._run("release_devices", machine, claim.job.id, claim.fence)

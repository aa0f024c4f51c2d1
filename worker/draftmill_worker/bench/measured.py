"""Arms that were measured, by the digest of all that decides their counts: `arms/<key>.json`.

An arm found here is used again only while its receipt is in the archive, unharmed, without a broken rule, and says the
same.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import ValidationError

from draftmill._model import Model
from draftmill.archive import Archive
from draftmill.benchmarks import Arm
from draftmill.problems import ProblemError
from draftmill_worker.files import write_atomic
from draftmill_worker.locks import locked


class _Kept(Model):
    arms: tuple[Arm, ...]
    """Runs of the same thing."""


class Measured:
    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "arms"
        self._archive = Archive.of(data_dir)

    def alone(self, key: str, waiting: Callable[[], object]) -> AbstractContextManager[None]:
        """Of the jobs that want an arm, one measures it and the others wait for what it keeps."""
        return locked(self._folder / f"{key}.lock", waiting)

    def find(self, key: str, repeats: int) -> tuple[Arm, ...]:
        """`repeats` runs, marked as reused; none where not so many are proved."""
        try:
            kept = _Kept.model_validate_json((self._folder / f"{key}.json").read_bytes())
        except (FileNotFoundError, ValidationError):
            return ()
        proved = [arm.model_copy(update={"reused": True}) for arm in kept.arms if self._proved(arm)]
        return tuple(proved[:repeats]) if len(proved) >= repeats else ()

    def keep(self, key: str, arms: tuple[Arm, ...]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomic(self._folder / f"{key}.json", _Kept(arms=arms).model_dump_json().encode())

    def _proved(self, arm: Arm) -> bool:
        try:
            receipt = self._archive.receipt(arm.receipt)
        except ProblemError:
            return False
        same = (receipt.arm, receipt.counts, receipt.output_sha256) == (arm.name, arm.counts, arm.output_sha256)
        return same and all(rule.passed for rule in receipt.rules)

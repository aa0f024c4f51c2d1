"""Getting one artifact into its place: the steps of both clients, without the reading and waiting, which differ."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from draftmill import _calls
from draftmill._calls import Call
from draftmill._part import Part
from draftmill._retry import RetryPolicy
from draftmill.errors import DownloadError, TransportError
from draftmill.jobs import Job
from draftmill.reports import Artifacts, ManifestFile

Progress = Callable[[str, int, int], None]
"""Called with a file's path, its bytes here and its size; from several threads when several files come at once."""


@dataclass(frozen=True, slots=True)
class Download:
    """Every file of the manifest is in `folder`, with the hash the manifest gives."""

    folder: Path
    artifacts: Artifacts
    received_bytes: int
    """What traveled now; less than the sum of sizes when files or parts of them were here before."""


class Transfer:
    """One file's requests until it is whole. A part found corrupt is fetched again once, from its first byte."""

    def __init__(
        self,
        job: Job | str,
        part: Part,
        policy: RetryPolicy,
        progress: Progress | None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._job = job
        self._part = part
        self._policy = policy
        self._progress = progress
        self._stopped = stopped
        self._failures = 0
        # Only bytes kept from an earlier run may be wrong without this run's fault.
        self._second_try = part.offset > 0
        self.received = 0

    @property
    def file(self) -> ManifestFile:
        return self._part.file

    def call(self) -> Call[None] | None:
        """The next request, or None when every byte is here."""
        if self._part.whole:
            return None
        return _calls.artifact(self._job, self.file.path, offset=self._part.offset, etag=self.file.sha256)

    def accept(self, response: httpx.Response) -> None:
        self._part.accept(response)

    def write(self, block: bytes) -> None:
        self._part.write(block)
        if self._stopped():
            raise DownloadError(f"{self.file.path}: stopped because another file failed")
        self._failures = 0
        self.received += len(block)
        self.tell()

    def tell(self) -> None:
        if self._progress is not None:
            self._progress(self.file.path, self._part.offset, self.file.size)

    def lost(self, error: httpx.TransportError | None) -> float:
        """Seconds to wait before asking for the rest. Raises TransportError when nothing came several times."""
        self._failures += 1
        if self._failures > self._policy.attempts:
            raise TransportError(
                f"lost the download of {self.file.path} after {self._part.offset} of {self.file.size} bytes; "
                f"the same command continues there: {error}"
            ) from error
        return self._policy.pause(self._failures)

    def finish(self) -> bool:
        """True when the file is in its place, False when it must be fetched again. DownloadError when that fails."""
        if self._part.finish():
            return True
        if self._second_try:
            self._second_try = False
            return False
        self._part.discard()
        raise DownloadError(f"{self.file.path}: the bytes that arrived do not have the SHA-256 {self.file.sha256}")

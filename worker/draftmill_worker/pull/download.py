"""Files of a repository, streamed to disk: hashed on the way, resumed at any byte, watched for silence."""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from draftmill.reports import ManifestFile
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.faults import StoppedError, TransientError
from draftmill_worker.pull.listing import ListedFile, Listing
from draftmill_worker.pull.part import Part
from draftmill_worker.pull.ranges import WrongBytesError, answered_from, corrupt, file_url
from draftmill_worker.pull.settings import HubSettings
from draftmill_worker.pull.store import Progress
from draftmill_worker.pull.tally import Tally

# A try that brought this much starts the count of failures anew: a long download may meet many drops.
_PROGRESS_BYTES = 1 << 20

T = TypeVar("T")
R = TypeVar("R")


def download_all(
    client: HubClient, listing: Listing, files: Sequence[ListedFile], folder: Path, progress: Progress | None
) -> tuple[ManifestFile, ...]:
    """Bring `files` into `folder`, several at a time; entries for the manifest, in the same order."""
    tally = Tally(sum(file.size for file in files), progress)
    return tuple(concurrently(client, lambda file: download(client, listing, file, folder, tally.add), files))


def download(
    client: HubClient, listing: Listing, file: ListedFile, folder: Path, advance: Callable[[int], None]
) -> ManifestFile:
    """Bring one file into `folder` and check it against the listing.

    Until then its name ends in `.part`; a killed download goes on where it ended. Raises `download-corrupt` when the
    bytes are wrong twice, `download-stalled`, `hub-unavailable` or `rate-limited` when patience runs out.
    """
    target = folder / file.path
    beside = target.with_name(f"{target.name}.part")
    if target.exists():  # finished by an earlier process, and hashed again here
        target.rename(beside)
    with Part(beside, file) as part:
        advance(part.size)
        sha256 = _fill(client, listing, file, part, advance)
    beside.rename(target)
    return ManifestFile(path=file.path, size=file.size, sha256=sha256)


def concurrently(client: HubClient, work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """`work` of every item, at most `connections` at a time. The first failure stops the others."""
    client.stop.clear()  # a batch that failed before this one is over
    with ThreadPoolExecutor(client.settings.connections) as pool:
        futures = [pool.submit(work, item) for item in items]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            client.stop.set()
            for future in futures:
                future.cancel()
            raise
    return [future.result() for future in futures]


def _fill(client: HubClient, listing: Listing, file: ListedFile, part: Part, advance: Callable[[int], None]) -> str:
    patience = client.patience()
    clean_retry = False
    while True:
        before = part.size
        try:
            _stream(client, listing, file, part, advance)
        except TransientError as fault:
            if part.size - before >= _PROGRESS_BYTES:
                patience.progressed()
            patience.wait(fault)
            continue
        except WrongBytesError:
            sha256 = None
        else:
            sha256 = part.sha256()
        if sha256 is not None:
            return sha256
        advance(-part.size)
        part.restart()
        if clean_retry:
            raise corrupt(listing, file)
        clean_retry = True


def _stream(client: HubClient, listing: Listing, file: ListedFile, part: Part, advance: Callable[[int], None]) -> None:
    """One connection's worth of bytes, up to the file's size."""
    if part.complete:
        return
    what = f"{listing.what}: {file.path}"
    headers = {"range": f"bytes={part.size}-"} if part.size else {}
    with client.get(
        file_url(client, listing, file.path), what, headers=headers, stalled="download-stalled"
    ) as response:
        if answered_from(response, part.size, file) != part.size:
            advance(-part.size)
            part.restart()
        drip = _Drip(client.settings, what)
        for chunk in response.iter_raw():
            if client.stop.is_set():
                raise StoppedError
            wanted = chunk[: file.size - part.size]  # what a server sends beyond the file is nobody's
            part.append(wanted)
            advance(len(wanted))
            drip.saw(len(chunk))
            if part.complete:
                return
    raise TransientError("hub-unavailable", f"{what}: the connection was closed after {part.size} bytes")


class _Drip:
    """A server that sends a byte now and then is silent too."""

    def __init__(self, settings: HubSettings, what: str) -> None:
        self._settings = settings
        self._what = what
        self._since = time.monotonic()
        self._bytes = 0

    def saw(self, count: int) -> None:
        self._bytes += count
        now = time.monotonic()
        if now - self._since < self._settings.stall_seconds:
            return
        if self._bytes < self._settings.stall_bytes:
            detail = f"{self._what}: {self._bytes} bytes in {now - self._since:.0f} s"
            raise TransientError("download-stalled", detail)
        self._since, self._bytes = now, 0

"""Pieces of a file by HTTP Range, and what to do with servers that answer otherwise."""

import re

import httpx2
from huggingface_hub import hf_hub_url

from draftmill.problems import Offender, ProblemError
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.faults import TransientError
from draftmill_worker.pull.listing import ListedFile, Listing

_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class WrongBytesError(Exception):
    """The answer cannot be the file that was listed."""


def file_url(client: HubClient, listing: Listing, path: str) -> str:
    url: str = hf_hub_url(listing.repo, path, revision=listing.commit, endpoint=client.settings.endpoint)
    return url


def answered_from(response: httpx2.Response, asked: int, file: ListedFile) -> int:
    """Offset of the answer's first byte: `asked`, or 0 from a server that ignores Range.

    Raises WrongBytesError when the answer belongs to a file of another size, or to another place.
    """
    length = response.headers.get("content-length", "")
    if response.status_code == 206:
        match = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if match is None or int(match[1]) != asked or match[2] not in {"*", str(file.size)}:
            raise WrongBytesError
        return asked
    if response.status_code != 200 or (length.isdigit() and int(length) != file.size):
        raise WrongBytesError
    return 0


def read_range(client: HubClient, listing: Listing, file: ListedFile, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` (exclusive) of the file, unverified. A whole-file answer is cut off at `stop`."""
    patience = client.patience()
    while True:
        try:
            return _read_range(client, listing, file, start, stop)
        except TransientError as fault:
            patience.wait(fault)
        except WrongBytesError as error:
            raise corrupt(listing, file) from error


def _read_range(client: HubClient, listing: Listing, file: ListedFile, start: int, stop: int) -> bytes:
    what = f"{listing.what}: {file.path}"
    url = file_url(client, listing, file.path)
    body = bytearray()
    headers = {"range": f"bytes={start}-{stop - 1}"}
    with client.get(url, what, headers=headers, stalled="download-stalled") as response:
        position = answered_from(response, start, file)
        for chunk in response.iter_raw():
            body += chunk[max(0, start - position) :]
            position += len(chunk)
            if len(body) >= stop - start:
                return bytes(body[: stop - start])
    raise TransientError("hub-unavailable", f"{what}: the answer ended early")


def corrupt(listing: Listing, file: ListedFile) -> ProblemError:
    message = f"the bytes are not those of the listing ({file.size} bytes, {file.algorithm} {file.digest})"
    return ProblemError(
        "download-corrupt", f"{listing.what}: {file.path}", [Offender(where=file.path, message=message)]
    )

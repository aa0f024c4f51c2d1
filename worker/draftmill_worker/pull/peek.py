"""Whole small files and weight headers of a repository, in memory."""

import hashlib

from draftmill_worker.checkpoint.checkpoint import CONFIG, INDEX, WEIGHTS_SUFFIX, Checkpoint, from_headers
from draftmill_worker.checkpoint.headers import LENGTH_BYTES, TensorInfo, header_length, parse_header
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.download import concurrently
from draftmill_worker.pull.listing import ListedFile, Listing
from draftmill_worker.pull.modules import Tree
from draftmill_worker.pull.ranges import corrupt, read_range

# A header of some 500 tensors fits, and one request saves a round trip.
_GUESS = 64 << 10


def read_whole(client: HubClient, listing: Listing, file: ListedFile) -> bytes:
    """A small file's bytes, checked against the listing; wrong ones are asked for once more."""
    for _ in range(2):
        data = read_range(client, listing, file, 0, file.size) if file.size else b""
        if _digest(data, file) == file.digest:
            return data
    raise corrupt(listing, file)


def read_checkpoint(client: HubClient, listing: Listing, tree: Tree) -> Checkpoint:
    """The repository's checkpoint by its headers. Nothing vouches for their bytes until the whole file is hashed."""
    weights = [file for file in listing.files if file.path.endswith(WEIGHTS_SUFFIX)]
    headers = concurrently(client, lambda file: _header(client, listing, file), weights)
    return from_headers(
        tree.read(CONFIG),
        tree.read(INDEX) if tree.has(INDEX) else None,
        {file.path: header for file, header in zip(weights, headers, strict=True)},
        listing.siblings,
    )


def _header(client: HubClient, listing: Listing, file: ListedFile) -> dict[str, TensorInfo]:
    data = read_range(client, listing, file, 0, min(_GUESS, file.size)) if file.size else b""
    needed = LENGTH_BYTES + header_length(data[:LENGTH_BYTES], file.path, file.size)
    if len(data) < needed:
        data += read_range(client, listing, file, len(data), needed)
    return parse_header(data[:needed], file.path, file.size)


def _digest(data: bytes, file: ListedFile) -> str:
    if file.algorithm == "sha256":
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

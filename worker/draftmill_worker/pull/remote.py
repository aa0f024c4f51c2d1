"""A repository's checkpoint from range-read headers: no weights are downloaded."""

from draftmill_worker.checkpoint.checkpoint import Checkpoint
from draftmill_worker.pull.catalog import check_source, list_files, resolve_commit
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.listing import ListedFile
from draftmill_worker.pull.peek import read_checkpoint, read_whole
from draftmill_worker.pull.settings import HubSettings
from draftmill_worker.pull.survey import ListingTree, survey


def read_remote(repo: str, revision: str, settings: HubSettings) -> tuple[str, Checkpoint, int]:
    """Commit, checkpoint, and the number of bytes that a pull would download.

    Raises what `pull_repo` raises for the same repository, except `disk-budget` and what a family check finds.
    """
    check_source(repo, revision)
    with HubClient(settings) as client:
        listing = list_files(client, repo, resolve_commit(client, repo, revision))
        read: dict[str, bytes] = {}

        def fetch(file: ListedFile) -> bytes:
            if file.path not in read:
                read[file.path] = read_whole(client, listing, file)
            return read[file.path]

        tree = ListingTree(listing, fetch)
        modules = survey(tree, list(listing.sizes), repo)
        total = sum(listing.sizes.values()) + sum(tree.size(path) for path in modules)
        return listing.commit, read_checkpoint(client, listing, tree), total

"""Pulls a repository of the Hub at one commit into the sources folder."""

from collections.abc import Callable
from pathlib import Path

from draftmill.problems import ProblemError
from draftmill.reports import Manifest
from draftmill_worker.checkpoint.checkpoint import Checkpoint, open_checkpoint
from draftmill_worker.checkpoint.families import detect
from draftmill_worker.files import remove_tree
from draftmill_worker.pull.budget import check_budget, full_disk, used_bytes
from draftmill_worker.pull.catalog import COMMIT, check_source, list_files, resolve_commit
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.download import download, download_all
from draftmill_worker.pull.listing import ListedFile, Listing
from draftmill_worker.pull.peek import read_checkpoint
from draftmill_worker.pull.settings import HubSettings
from draftmill_worker.pull.store import Progress, Pulled, Slot, sweep
from draftmill_worker.pull.survey import ListingTree, survey

__all__ = ["HubSettings", "Pulled", "pull_repo", "resolve"]

# Problems that say nothing against the bytes that are here already: the next pull goes on with them.
_ON_THE_WAY = frozenset(
    {
        "hub-unavailable",
        "rate-limited",
        "download-stalled",
        "download-corrupt",
        "disk-budget",
        "not-found-or-private",
        "gated-not-accepted",
        "token-scope",
        "token-invalid",
    }
)

Check = Callable[[Checkpoint], object]
"""Raises ProblemError for a checkpoint that is of no use."""


def resolve(repo: str, revision: str, settings: HubSettings) -> Listing:
    """The commit that a revision is now, and its files. The allow-list is applied."""
    check_source(repo, revision)
    with HubClient(settings) as client:
        return list_files(client, repo, resolve_commit(client, repo, revision))


def pull_repo(
    repo: str,
    revision: str,
    sources_dir: Path,
    settings: HubSettings,
    progress: Progress | None = None,
    *,
    check: Check = detect,
) -> Pulled:
    """The repository's files at the commit that `revision` is now, in `sources_dir/<repo>/<commit>`, read-only.

    A commit that is there already costs one request. Every file is checked against the listing by size and hash, then
    the checkpoint by its headers and `check`; nothing shows under that name before. A killed pull goes on where it
    ended. Raises ProblemError for whatever is wrong with the repository, the Hub, the disk or the checkpoint.
    """
    check_source(repo, revision)
    parent = sources_dir / repo.replace("/", "--")
    with HubClient(settings) as client:
        commit = _commit(client, repo, revision, parent)
        slot = Slot(parent, commit)
        with slot.locked(), full_disk(repo):
            manifest = slot.sealed(progress)
            if manifest is not None:
                return Pulled(slot.folder, commit, repo, manifest, cached=True)
            slot.discard()
            listing = list_files(client, repo, commit)
            slot.partial.mkdir(exist_ok=True)
            check_budget(sources_dir, sum(listing.sizes.values()), used_bytes(slot.partial), settings)
            manifest = _fill(client, listing, slot.partial, progress, check)
            slot.seal(manifest)
            return Pulled(slot.folder, commit, repo, manifest, cached=False)


def _commit(client: HubClient, repo: str, revision: str, parent: Path) -> str:
    try:
        return resolve_commit(client, repo, revision)
    except ProblemError as error:
        # A commit names its bytes for ever: when it is here, an outage of the Hub need not stop the job.
        outage = error.problem.slug in {"hub-unavailable", "rate-limited"}
        if outage and COMMIT.fullmatch(revision) and Slot(parent, revision).folder.is_dir():
            return revision
        raise


def _fill(client: HubClient, listing: Listing, folder: Path, progress: Progress | None, check: Check) -> Manifest:
    try:
        files = _choose(client, listing, folder, check)
        entries = download_all(client, listing, files, folder, progress)
        sweep(folder, {file.path for file in files})
        check(open_checkpoint(folder))
    except ProblemError as error:
        if error.problem.slug not in _ON_THE_WAY:
            remove_tree(folder)
        raise
    return Manifest(files=tuple(sorted(entries, key=lambda entry: entry.path)))


def _choose(client: HubClient, listing: Listing, folder: Path, check: Check) -> list[ListedFile]:
    """The files to download, once the small ones and the headers promise a checkpoint of use."""

    def fetch(file: ListedFile) -> bytes:
        download(client, listing, file, folder, lambda _: None)
        return (folder / file.path).read_bytes()

    tree = ListingTree(listing, fetch)
    modules = survey(tree, list(listing.sizes), listing.repo)
    try:
        check(read_checkpoint(client, listing, tree))
    except ProblemError as error:
        # These bytes are not hashed yet: damage on the way must not condemn the checkpoint.
        if error.problem.slug not in {"malformed-safetensors", "download-corrupt"}:
            raise
    return [*listing.files, *(file for path in modules if (file := listing.find(path)) is not None)]

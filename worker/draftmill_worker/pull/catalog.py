"""Questions to the Hub's API: which commit a revision is, and which files that commit has."""

import re
from typing import Any, Literal
from urllib.parse import quote, urljoin

from pydantic import ValidationError

from draftmill.jobs import RepoSource
from draftmill.problems import Offender, ProblemError
from draftmill_worker.checkpoint.config import decode
from draftmill_worker.pull.client import HubClient
from draftmill_worker.pull.listing import Listing, check_listing, make_listing, parse_page

COMMIT = re.compile(r"[0-9a-f]{40}")
_MAX_PAGE_BYTES = 16 << 20
_MAX_JSON_DEPTH = 16


def check_source(repo: str, revision: str) -> None:
    """Raises `invalid-request` for what the job's schema would not take: both become parts of paths."""
    try:
        RepoSource(repo=repo, revision=revision)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        offenders = [Offender(where=f"source.{fault['loc'][0]}", message=fault["msg"]) for fault in faults]
        raise ProblemError("invalid-request", "not a repository and revision of the Hub", offenders) from error


def resolve_commit(client: HubClient, repo: str, revision: str, kind: Literal["models", "datasets"] = "models") -> str:
    """The 40-hex commit of a branch, tag or commit: one request. All others name the commit."""
    what = f"{repo}@{revision}"
    url = f"{client.settings.endpoint}/api/{kind}/{repo}/revision/{quote(revision, safe='')}"
    info = _json(client.document(url, what, _MAX_PAGE_BYTES)[0], what)
    commit = info.get("sha") if isinstance(info, dict) else None
    if not isinstance(commit, str) or not COMMIT.fullmatch(commit):
        raise ProblemError("listing-refused", f"{what}: the Hub names no commit")
    if COMMIT.fullmatch(revision) and commit != revision:
        raise ProblemError("listing-refused", f"{what}: the Hub answers with another commit, {commit}")
    return commit


def list_files(client: HubClient, repo: str, commit: str) -> Listing:
    """Every file of the commit with size and hash, page by page. Raises `listing-refused` for more than is allowed,
    and what `check_listing` raises when the files cannot make a checkpoint."""
    what = f"{repo}@{commit[:12]}"
    url = f"{client.settings.endpoint}/api/models/{repo}/tree/{commit}?recursive=true&expand=false"
    entries = []
    for _ in range(client.settings.max_pages):
        body, response = client.document(url, what, _MAX_PAGE_BYTES)
        entries += parse_page(_json(body, what), what)
        if len(entries) > client.settings.max_listed:
            break
        following = response.links.get("next", {}).get("url")
        if following is None:
            listing = make_listing(repo, commit, entries)
            check_listing(what, listing.sizes, listing.siblings, client.settings)
            return listing
        url = urljoin(url, following)
        if not client.same_origin(url):
            raise ProblemError("listing-refused", f"{what}: the file listing goes on at another host")
    raise ProblemError("listing-refused", f"{what}: the file listing is too long; it ended after {len(entries)} files")


def _json(body: bytes, what: str) -> Any:
    return decode(body, what, "listing-refused", _MAX_PAGE_BYTES, _MAX_JSON_DEPTH)

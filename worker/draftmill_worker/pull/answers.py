"""What the Hub's error answers mean: misspelt, private, gated, out of the token's scope, or busy."""

from email.utils import parsedate_to_datetime
from time import time

import httpx2
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (  # type: ignore[attr-defined] # public and documented, but not re-exported
    hf_raise_for_status,
    parse_ratelimit_headers,
)

from draftmill.problems import Offender, ProblemError
from draftmill_worker.pull.faults import TransientError

BUSY = frozenset({408, 425, 500, 502, 503, 504})
# How the Hub words a fine-grained token that lacks "read access to public gated repositories".
_SCOPE_WORDS = ("fine-grained", "token settings", "permission", "scope")

_MEANINGS: tuple[tuple[type[Exception], str, str], ...] = (
    (RevisionNotFoundError, "revision-not-found", "the repository has no such revision"),
    (EntryNotFoundError, "download-corrupt", "the listing names a file that the Hub does not have"),
    (DisabledRepoError, "not-found-or-private", "the Hub has disabled access to the repository"),
)


def raise_for_answer(response: httpx2.Response, what: str, *, with_token: bool) -> None:
    """Returns for a success; else raises ProblemError, or TransientError for what may pass.

    `what` names the repository and revision. Nothing of the server's text reaches the problem: it may repeat a token
    or the signature in a redirect's URL.
    """
    if response.status_code < 400:
        return
    if response.status_code == 429:
        raise TransientError("rate-limited", f"{what}: the Hub answered 429", retry_after(response))
    if response.status_code in BUSY:
        detail = f"{what}: the Hub answered {response.status_code}"
        raise TransientError("hub-unavailable", detail, retry_after(response))
    raise _problem(response, what, with_token=with_token)


def retry_after(response: httpx2.Response) -> float | None:
    """Seconds the server asks to wait: Retry-After as a number or a date, else the Hub's own `ratelimit` header."""
    value = response.headers.get("retry-after", "").strip()
    if value.isdigit():
        return float(value)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time())
        except ValueError:
            return None
    limit = parse_ratelimit_headers(response.headers)
    return float(limit.reset_in_seconds) if limit is not None and limit.remaining == 0 else None


def _problem(response: httpx2.Response, what: str, *, with_token: bool) -> ProblemError:
    message = response.headers.get("x-error-message", "").lower()
    error = _library_error(response)
    if isinstance(error, GatedRepoError):
        return _gated(message, what, with_token=with_token)
    # "Invalid username or password" is something else: an anonymous caller gets it for what is missing or private.
    if response.status_code == 401 and "invalid credentials" in message:
        return _refused("token-invalid", what, "the Hub does not accept HF_TOKEN; it may be mistyped or revoked")
    for kind, slug, meaning in _MEANINGS:
        if isinstance(error, kind):
            return _refused(slug, what, meaning)
    if response.status_code == 403:
        return _refused("token-scope", what, "HF_TOKEN lacks the permission to read this repository")
    if isinstance(error, RepositoryNotFoundError) or response.status_code in {401, 404}:
        hint = "or HF_TOKEN may not see it" if with_token else "or it is private and no HF_TOKEN is set"
        return _refused("not-found-or-private", what, f"no such repository, {hint}")
    return _refused("hub-unavailable", what, f"the Hub answered {response.status_code}")


def _gated(message: str, what: str, *, with_token: bool) -> ProblemError:
    if with_token and any(word in message for word in _SCOPE_WORDS):
        return _refused("token-scope", what, "HF_TOKEN may not read gated repositories; add that permission to it")
    if with_token:
        return _refused("gated-not-accepted", what, "the account of HF_TOKEN has not been granted access")
    return _refused("gated-not-accepted", what, "the repository is gated; accept its terms and set HF_TOKEN")


def _library_error(response: httpx2.Response) -> HfHubHTTPError | None:
    # A copy without the body and other headers: the library would read a body of any length to quote it, and log
    # the server's warnings.
    headers = {name: value for name, value in response.headers.items() if name.startswith("x-error-")}
    bare = httpx2.Response(response.status_code, headers=headers, request=response.request)
    try:
        hf_raise_for_status(bare)
    except HfHubHTTPError as error:
        return error
    return None


def _refused(slug: str, what: str, message: str) -> ProblemError:
    return ProblemError(slug, f"{what}: {message}", [Offender(where="source", message=message)])

"""HTTP to the Hub with bounds: silence, size, redirects, retries, and who gets to see the token."""

import logging
import os
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from types import TracebackType
from typing import Self
from urllib.parse import urljoin, urlsplit

import httpx2
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # public, but not re-exported

from draftmill._environment import secret
from draftmill.errors import SettingsError
from draftmill.problems import ProblemError
from draftmill_worker.pull.answers import raise_for_answer
from draftmill_worker.pull.faults import Patience, TransientError
from draftmill_worker.pull.settings import TOKEN_VARIABLE, HubSettings

# They log addresses, which storage hosts sign, and headers, which a server may fill with what it was sent.
for _name in ("httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.WARNING)

MAX_REDIRECTS = 5
# What huggingface_hub takes for true. It reads the variable once, at import; here it counts for each request.
_YES = frozenset({"1", "ON", "YES", "TRUE"})
_PORTS = {"http": 80, "https": 443}


class HubClient:
    """Requests to one Hub endpoint. Threads may share it.

    The token comes from HF_TOKEN alone and goes to the endpoint's own origin alone: neither a redirect nor a
    pagination link carries it elsewhere.
    """

    def __init__(self, settings: HubSettings, stop: threading.Event | None = None) -> None:
        self.settings = settings
        self.stop = stop or threading.Event()
        token = _token()
        self.with_token = token is not None
        self._authorized = _headers(token)
        self._anonymous = _headers(None)
        self._origin = origin(settings.endpoint)
        limits = httpx2.Limits(max_connections=None)
        self._client = httpx2.Client(follow_redirects=False, limits=limits, verify=_tls())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()

    def patience(self) -> Patience:
        return Patience(self.settings, self.stop)

    @contextmanager
    def get(
        self, url: str, what: str, *, headers: Mapping[str, str] | None = None, stalled: str = "hub-unavailable"
    ) -> Iterator[httpx2.Response]:
        """One try of a GET, its body unread. Faults of the wire, also while the caller reads, become TransientError.

        `stalled` is the slug for a silence longer than the settings allow; `download-stalled` also picks the
        download's own bound.
        """
        if os.environ.get("HF_HUB_OFFLINE", "").upper() in _YES:
            raise ProblemError("hub-unavailable", f"{what}: HF_HUB_OFFLINE is set")
        silence = self.settings.answer_seconds if stalled == "hub-unavailable" else self.settings.stall_seconds
        timeout = httpx2.Timeout(silence, connect=self.settings.connect_seconds)
        try:
            with self._follow(url, what, headers or {}, timeout) as response:
                if response.status_code != 416:
                    raise_for_answer(response, what, with_token=self.with_token)
                yield response
        except httpx2.ConnectTimeout as error:
            raise TransientError("hub-unavailable", f"{what}: no connection to the Hub") from error
        except httpx2.TimeoutException as error:
            raise TransientError(stalled, f"{what}: nothing arrived for {silence:g} s") from error
        except httpx2.TransportError as error:
            raise TransientError("hub-unavailable", f"{what}: {type(error).__name__}") from error

    def document(self, url: str, what: str, max_bytes: int) -> tuple[bytes, httpx2.Response]:
        """The body of a small answer and the answer, tried again as the settings allow."""
        patience = self.patience()
        while True:
            try:
                with self.get(url, what) as response:
                    return read_bounded(response, what, max_bytes), response
            except TransientError as fault:
                patience.wait(fault)

    def same_origin(self, url: str) -> bool:
        return origin(url) == self._origin

    @contextmanager
    def _follow(
        self, url: str, what: str, headers: Mapping[str, str], timeout: httpx2.Timeout
    ) -> Iterator[httpx2.Response]:
        for _ in range(MAX_REDIRECTS + 1):
            known = self._authorized if self.same_origin(url) else self._anonymous
            with self._client.stream("GET", url, headers={**known, **headers}, timeout=timeout) as response:
                if not response.has_redirect_location:
                    _check_encoding(response, what)
                    yield response
                    return
                target = urljoin(url, response.headers["location"])
            if urlsplit(target).scheme not in {"https", urlsplit(url).scheme}:
                raise ProblemError("hub-unavailable", f"{what}: the Hub redirects to an unencrypted address")
            url = target
        raise ProblemError("hub-unavailable", f"{what}: more than {MAX_REDIRECTS} redirects")


def origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)


def read_bounded(response: httpx2.Response, what: str, max_bytes: int) -> bytes:
    """The body, or ProblemError when it is longer than `max_bytes`: reading stops there."""
    body = bytearray()
    for chunk in response.iter_raw():
        body += chunk
        if len(body) > max_bytes:
            raise ProblemError("listing-refused", f"{what}: an answer is longer than {max_bytes} bytes")
    return bytes(body)


@cache
def _tls() -> ssl.SSLContext:
    # Reading the certificates costs as much as a small pull; a process that makes several clients does it once.
    return httpx2.create_ssl_context()


def _token() -> str | None:
    try:
        token = secret(TOKEN_VARIABLE)
    except SettingsError as error:
        raise ProblemError("token-invalid", str(error)) from None
    # Checked here because the HTTP library would quote an unusable header value in its exception.
    if token and not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ProblemError("token-invalid", f"{TOKEN_VARIABLE} holds characters that no token has")
    return token or None


def _headers(token: str | None) -> dict[str, str]:
    # False, not None: None would make the library look for a token saved on disk.
    own: dict[str, str] = build_hf_headers(
        token=token or False, library_name="draftmill", library_version=version("draftmill")
    )
    return own | {"accept-encoding": "identity"}


def _check_encoding(response: httpx2.Response, what: str) -> None:
    # Offsets and hashes are of the file's own bytes.
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise TransientError("hub-unavailable", f"{what}: the answer is compressed although that was not asked for")

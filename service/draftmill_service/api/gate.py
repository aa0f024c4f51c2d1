"""What every request passes: identity, size, timing, and the last resort for faults of our own."""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftmill.problems import Problem, ProblemError
from draftmill_service.api import problems
from draftmill_service.keyring import Keyring

logger = logging.getLogger(__name__)

DRAIN_BYTES, DRAIN_SECONDS = 64 << 20, 5.0
"""Of a body that is too large, how much is read before the answer."""
OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no key."""
PAGES = "/ui"
"""Below it lies the dashboard, which knows its callers by a session; no other path takes a cookie."""

Observe = Callable[[str, str, int, float], None]
"""Called with method, route, status and seconds of each request."""


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _keyless(path: str) -> bool:
    return path in OPEN or path in {"/", PAGES} or path.startswith(f"{PAGES}/")


class Gate:
    """ASGI middleware. Sets `draftmill.request_id` and `draftmill.key` in the scope."""

    def __init__(self, app: ASGIApp, *, keyring: Keyring, max_body_bytes: int, observe: Observe) -> None:
        self._app = app
        self._keyring = keyring
        self._max_body_bytes = max_body_bytes
        self._observe = observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["draftmill.request_id"] = secrets.token_hex(8)
        exchange = _Exchange(scope, send)
        try:
            await self._pass(scope, receive, exchange)
        except Exception:
            logger.exception("fault", extra=exchange.described())
            if exchange.status == 0:
                await exchange.refuse(ProblemError("internal", "see the service's log for this request").problem)
        finally:
            route = getattr(scope.get("route"), "path", None)
            route = "unknown" if route is None else scope.get("root_path", "") + route
            self._observe(scope["method"], route, exchange.status, exchange.seconds)
            logger.info("request", extra=exchange.described())

    async def _pass(self, scope: Scope, receive: Receive, exchange: "_Exchange") -> None:
        headers = Headers(scope=scope)
        if not _keyless(scope["path"]):
            token = _bearer(headers)
            key = None if token is None else self._keyring.authenticate(token)
            if key is None:
                refusal = ProblemError("unauthenticated", "send Authorization: Bearer with a key of this service")
                await exchange.refuse(refusal.problem, {"WWW-Authenticate": 'Bearer realm="draftmill"'})
                return
            scope["draftmill.key"] = key
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_body_bytes:
            if "expect" not in headers:
                await _drain(receive)
            await exchange.refuse(self._too_large().problem, {"Connection": "close"})
            return
        await self._app(scope, self._bounded(receive), exchange.send)

    def _too_large(self) -> ProblemError:
        return ProblemError("payload-too-large", f"a request body has at most {self._max_body_bytes} bytes")

    def _bounded(self, receive: Receive) -> Receive:
        """Bodies that come in chunks do not say their size before."""
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body_bytes:
                raise HTTPException(413)
            return message

        return bounded


class _Exchange:
    """One request and its answer."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._started = time.perf_counter()
        self.status = 0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started

    def described(self) -> dict[str, object]:
        key = self._scope.get("draftmill.key")
        return {
            "request_id": self._scope["draftmill.request_id"],
            "method": self._scope["method"],
            "path": self._scope["path"],
            "status": self.status,
            "seconds": round(self.seconds, 6),
            "key": None if key is None else key.id,
        }

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._scope["draftmill.request_id"]
            headers["X-Content-Type-Options"] = "nosniff"
        await self._send(message)

    async def refuse(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        response = problems.answer(problem, request_id=self._scope["draftmill.request_id"], headers=headers)
        await response(self._scope, _nothing, self.send)


async def _drain(receive: Receive) -> None:
    """Takes a refused body, within bounds: one who sends all of it before reading would see a reset, not the answer."""
    left = DRAIN_BYTES
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and (message := await receive()).get("more_body"):
                left -= len(message["body"])


async def _nothing() -> Message:
    return {"type": "http.disconnect"}

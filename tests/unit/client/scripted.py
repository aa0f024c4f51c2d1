"""An HTTP server over a real socket that answers from a script, and can break off where it is told to."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from draftmill.jobs import Job
from draftmill.problems import URN


@dataclass(frozen=True)
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """Close the connection after this many bytes of the body, though its length promised more."""
    hang_up: bool = False
    """Close the connection without any answer."""


def document(value: Any, status: int = 200) -> Answer:
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    return Answer(status, body, {"Content-Type": "application/json"})


def job_answer(job: Job) -> Answer:
    return document(job.model_dump_json())


def problem(slug: str, status: int, detail: str = "no", **more: Any) -> Answer:
    value = {"type": URN + slug, "title": slug, "status": status, "detail": detail, **more}
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/problem+json"})


Script = list[Answer] | Callable[[Seen], Answer]


class Scripted:
    """`script` is a list of answers in turn, the last of which repeats, or a function of the request."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.seen: list[Seen] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                length = int(self.headers.get("content-length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen = Seen(self.command, self.path, headers, self.rfile.read(length))
                outer.send(self, outer.answer(seen))

            do_GET = do_POST = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                del format, args

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that breaks off is part of the tests."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, seen: Seen) -> Answer:
        with self._lock:
            self.seen.append(seen)
            if callable(self.script):
                return self.script(seen)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]

    def send(self, handler: BaseHTTPRequestHandler, answer: Answer) -> None:
        if answer.hang_up:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(answer.body if answer.cut is None else answer.body[: answer.cut])
        handler.close_connection = answer.cut is not None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""A server whose every answer the test writes, for what no well-behaved framework would send."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answer:
    status: int = 200
    body: bytes | Iterator[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    """Content-Length is set for a body of bytes unless it is given here."""


@dataclass
class Seen:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    """Names in lower case."""
    sent: int = 0
    """Bytes of the body that the kernel took."""


Reply = Callable[[Seen], Answer]


@contextmanager
def wire(reply: Reply) -> Iterator[tuple[str, list[Seen]]]:
    """URL of a server that answers each GET by `reply`, and the requests it got."""
    seen: list[Seen] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request = Seen(self.path, {name.lower(): value for name, value in self.headers.items()})
            seen.append(request)
            answer = reply(request)
            self.send_response(answer.status)
            headers = dict(answer.headers)
            if isinstance(answer.body, bytes):
                headers.setdefault("Content-Length", str(len(answer.body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self._send(request, [answer.body] if isinstance(answer.body, bytes) else answer.body)
            self.close_connection = True

        def _send(self, request: Seen, body: "list[bytes] | Iterator[bytes]") -> None:
            try:
                for chunk in body:
                    self.wfile.write(chunk)
                    request.sent += len(chunk)
            except OSError:  # the client hung up, as it may
                return

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
            connection, address = super().get_request()
            # A small buffer: what the client leaves unread must not count as sent.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            return connection, address

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)

"""A stage process as the supervisor sees it: asked of the template, listened to, killed."""

import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Self

import psutil

from draftmill_worker import process

PACKET = 1 << 16


class TemplateDownError(Exception):
    """The template cannot be reached, or went away and took the stage with it."""


def _secret_pipe(secrets: dict[str, str]) -> int:
    """A pipe that holds the secrets and is read once, by the stage: no file, no environment of a process that stays."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as file:
        json.dump(secrets, file)
    return reading


class StageProcess:
    """Starts when the template answers, which may first have its imports to do. Leaving the context kills the stage."""

    def __init__(self, template: Path, request: Path, *, secrets: dict[str, str], patience: float) -> None:
        self._template = template
        self._request = request
        self._secrets = secrets
        self._give_up = time.monotonic() + patience
        self._connection: socket.socket | None = None
        self._process: psutil.Process | None = None
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is None:
            return
        self.kill(1.0)
        self._connection.close()

    def receive(self, timeout: float) -> dict[str, Any] | None:
        """The next message of the template or the stage; None when there is none within `timeout` seconds."""
        if self._connection is None:
            self._connection = self._connect()
        if self._connection is None:
            time.sleep(timeout)
            return None
        try:
            return self._read(self._connection, timeout)
        except TemplateDownError:
            if self._process is not None:
                raise
        # It stopped before it took the request: its successor will.
        self._connection.close()
        self._connection = None
        return None

    def kill(self, timeout: float) -> bool:
        """Kill the stage and all it started; True when nothing of it is left after at most about `timeout` seconds."""
        if self._ended or self._connection is None:
            return True
        deadline = time.monotonic() + timeout
        try:
            self._connection.shutdown(socket.SHUT_WR)
            while not self._ended and (left := deadline - time.monotonic()) > 0:
                self._read(self._connection, left)
        except (TemplateDownError, OSError):
            # The stage dies with the template; make sure of it.
            pass
        return self._ended or self._process is None or process.kill_tree(self._process, timeout)

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(self._template))
            self._send_request(connection)
        except (FileNotFoundError, ConnectionError) as error:
            connection.close()
            if time.monotonic() > self._give_up:
                raise TemplateDownError("no template answers") from error
            return None
        return connection

    def _send_request(self, connection: socket.socket) -> None:
        packet = json.dumps({"request": str(self._request)}).encode()
        if not self._secrets:
            connection.send(packet)
            return
        pipe = _secret_pipe(self._secrets)
        try:
            socket.send_fds(connection, [packet], [pipe])
        finally:
            os.close(pipe)

    def _read(self, connection: socket.socket, timeout: float) -> dict[str, Any] | None:
        connection.settimeout(timeout)
        try:
            packet = connection.recv(PACKET)
        except TimeoutError:
            return None
        except ConnectionError as error:
            raise TemplateDownError("the template went away") from error
        if not packet:
            raise TemplateDownError("the template went away")
        message: dict[str, Any] = json.loads(packet)
        if "started" in message:
            self._process = process.find(message["started"])
        self._ended = "ended" in message
        return message

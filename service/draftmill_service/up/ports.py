"""Ports on the loopback."""

import socket

from draftmill_service.up.errors import UpError


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def usable(port: int) -> int:
    """The port, or a free one for 0. Raises UpError when something listens there."""
    if port == 0:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UpError(f"port {port} is taken ({error.strerror}); choose another with --port") from error
    return port

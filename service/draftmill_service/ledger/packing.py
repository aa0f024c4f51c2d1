"""Commands to Redis packed in C, as redis-py does it in its synchronous client; its asynchronous one uses Python."""

from typing import Any

import hiredis
from redis.asyncio import ConnectionPool
from redis.exceptions import DataError


class _Packing:
    """Goes before a class of connections."""

    def pack_command(self, *args: Any) -> list[bytes]:
        name, *rest = args
        # A command of two words, as `SCRIPT LOAD`, goes as two.
        words = (name.encode() if isinstance(name, str) else name).split()
        try:
            return [hiredis.pack_command((*words, *rest))]
        except TypeError as error:
            raise DataError(str(error)) from error


def pool(url: str, **options: Any) -> ConnectionPool:
    """Connections to the server at `url`: TCP, TLS or a Unix socket."""
    made = ConnectionPool.from_url(url, **options)
    made.connection_class = type("Connection", (_Packing, made.connection_class), {})
    return made

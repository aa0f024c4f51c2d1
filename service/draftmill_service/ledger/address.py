"""Where Redis is, as a setting."""

from typing import Annotated

from pydantic import AfterValidator
from redis.connection import parse_url


def redis_url(url: str) -> str:
    """The URL as it is. ValueError, which does not repeat it, when Redis' client cannot read it."""
    try:
        parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise ValueError("must be redis://[[user]:password@]host[:port][/database], rediss:// or unix://") from None
    return url


RedisUrl = Annotated[str, AfterValidator(redis_url)]

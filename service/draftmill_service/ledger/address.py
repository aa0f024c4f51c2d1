"""Where Redis is, as a setting."""

from typing import Annotated

from pydantic import AfterValidator
from redis.connection import parse_url

from draftmill._environment import secret

DEFAULT_URL = "redis://127.0.0.1:6379/0"


def redis_url(url: str) -> str:
    """The URL as it is. ValueError, which does not repeat it, when Redis' client cannot read it."""
    try:
        parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise ValueError("must be redis://[[user]:password@]host[:port][/database], rediss:// or unix://") from None
    return url


def configured_url() -> str:
    """From DRAFTMILL_REDIS_URL or the file that DRAFTMILL_REDIS_URL_FILE names, else this machine's."""
    return secret("DRAFTMILL_REDIS_URL") or DEFAULT_URL


RedisUrl = Annotated[str, AfterValidator(redis_url)]

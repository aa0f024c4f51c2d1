"""Secrets taken out of text: by the look of a value, by the name it goes under, and those this process knows."""

import re
from collections.abc import Mapping

REDACTED = "<redacted>"
MIN_KNOWN = 8
"""Shorter values of secret variables are not looked for in other text: they would hit ordinary words."""

SECRET_NAME = re.compile(r"TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY", re.I)
_LOOKS = re.compile(
    r"""
    \bhf_[A-Za-z0-9]{16,}                         # Hugging Face
  | \bdm_[A-Za-z0-9]+_[A-Za-z0-9_-]{16,}          # this service's keys
  | \b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}
  | \bgh[pousr]_[A-Za-z0-9]{20,} | \bgithub_pat_[A-Za-z0-9_]{20,}
  | \bglpat-[A-Za-z0-9_-]{16,}
  | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
  | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*   # a JSON web token
  | \bBearer\s+[A-Za-z0-9._~+/=-]{8,}
  | (?<=://)[^/\s@:]*:[^/\s@]+(?=@)               # credentials in a URL
  | -----BEGIN[ A-Z]*PRIVATE\ KEY-----
    """,
    re.X,
)


class Redactor:
    """Knows the secrets of environments by their values, and others by their look."""

    def __init__(self, *environs: Mapping[str, str]) -> None:
        variables = {variable for environ in environs for variable in environ.items()}
        known = {value for name, value in variables if SECRET_NAME.search(name) and len(value) >= MIN_KNOWN}
        # A secret that is part of another goes after it.
        self._known = sorted(known, key=len, reverse=True)

    def text(self, text: str) -> str:
        for secret in self._known:
            text = text.replace(secret, REDACTED)
        return _LOOKS.sub(REDACTED, text)

    def variable(self, name: str, value: str) -> str:
        return REDACTED if SECRET_NAME.search(name) and value else self.text(value)


def looks_secret(text: str) -> bool:
    return _LOOKS.search(text) is not None


def is_secret_name(name: str) -> bool:
    return SECRET_NAME.search(name) is not None

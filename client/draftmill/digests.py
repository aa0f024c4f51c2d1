"""Canonical JSON and SHA-256 digests: the identity of specs, manifests and variants."""

import hashlib
import json
from typing import Any

from pydantic import BaseModel


def canonical(value: Any) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8; models by their JSON form. NaN and Inf raise ValueError."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """SHA-256 of the canonical JSON, 64 hex digits."""
    return hashlib.sha256(canonical(value)).hexdigest()

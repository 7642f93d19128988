"""Cached percent-encoding of names in URLs: the names of one object occur in many requests."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote

_SAFE: Final = "-._~:"


@lru_cache(maxsize=4096)
def quote_url_part(text: str) -> str:
    """Return a name or a parameter's value, percent-encoded."""
    return quote(text, safe=_SAFE)

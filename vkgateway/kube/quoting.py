"""Percent-encoding of names in URLs, remembered: those of one object are written time and again."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import quote

_SAFE: Final = "-._~:"


@lru_cache(maxsize=4096)
def quote_url_part(text: str) -> str:
    """A name, or a parameter's value, as it may stand in a URL."""
    return quote(text, safe=_SAFE)

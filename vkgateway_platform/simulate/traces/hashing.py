"""Choices by the name of a job: the same each time, and about evenly distributed."""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32


def choose_by_name(name: str, among: Sequence[str]) -> str:
    """Return one of several values by a name."""
    return among[crc32(name.encode()) % len(among)]


def share_by_name(name: str) -> float:
    """Return a number from 0 to 1 by a name."""
    return crc32(f"share of {name}".encode()) / 0x1_0000_0000

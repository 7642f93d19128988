"""Ranges of etcd keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """Keys from `start`, inclusive, to `end`, exclusive."""

    start: bytes
    end: bytes

    @classmethod
    def for_prefix(cls, prefix: str) -> KeyRange:
        """Return the range of all keys under `prefix/`: `/a` includes `/a/x`, but neither `/a` nor `/ab`."""
        return cls(f"{prefix}/".encode(), f"{prefix}0".encode())  # "0" follows "/" in ASCII

"""Ranges of etcd's keys."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class KeyRange:
    """The keys from `start` up to, not with, `end`."""

    start: bytes
    end: bytes

    @classmethod
    def for_prefix(cls, prefix: str) -> KeyRange:
        """Every key under `prefix/` and no other: `/a` takes in `/a/x`, but not `/a` nor `/ab`."""
        return cls(f"{prefix}/".encode(), f"{prefix}0".encode())  # "0" follows "/" in ASCII

"""Keeps the C library's heap small: what pods came and went with leaves gaps in it.

The size of what is in use stays; but between what lives long and what lives short, gaps add up, by 0.7 MiB for a
thousand pods, and the allocator by itself only ever gives back what lies at the end of the heap. So what is free is
given back now and then, and what is large never gets there. What remains is gaps smaller than a page.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

TRIM_SECONDS: Final = 30.0
"""A heap of 40 MiB takes some 2 ms to go through."""
_M_MMAP_THRESHOLD: Final = -3
"""mallopt(3)'s number for it."""
_LARGE_BYTES: Final = 64 * 1024
"""Bytes from which on something has pages of its own: what a busy watch brings at once, an answer of many objects."""


def mmap_large_blocks() -> bool:
    """Give each large block pages of its own, which go back to the system with it; False where that cannot be asked.

    By itself glibc does so only until the first such block was freed, and puts all up to that size into the heap then.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))


async def trim_loop(*, every: float = TRIM_SECONDS) -> None:
    """Trim the heap now and then until cancelled; returns at once where the C library has no way to (musl)."""
    trim = find_trim()
    if trim is None:
        return
    while True:
        await asyncio.sleep(every)
        trim()


def find_trim() -> Callable[[], object] | None:
    """What gives free memory back (malloc_trim(3), of glibc alone); None where there is nothing that does."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    malloc_trim.argtypes, malloc_trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: malloc_trim(0)

"""Limits fragmentation of the C library's heap.

Short-lived objects between long-lived ones leave gaps: 0.7 MiB per thousand pods that are created and deleted. By
itself, the allocator returns only memory at the end of the heap. The gateway therefore trims the heap periodically and
allocates large blocks outside of it. Gaps smaller than a page remain.
"""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

TRIM_SECONDS: Final = 30.0
"""Interval between trims; trimming a heap of 40 MiB takes about 2 ms."""
_M_MMAP_THRESHOLD: Final = -3
"""Parameter number of mallopt(3)."""
_LARGE_BYTES: Final = 64 * 1024
"""Size from which a block is allocated with mmap, such as a large list response or a burst of watch events."""


def mmap_large_blocks() -> bool:
    """Allocate large blocks with mmap, so that freeing them returns memory to the system; False if unsupported.

    By default, glibc raises the threshold as soon as such a block is freed.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES))


async def trim_loop(*, every: float = TRIM_SECONDS) -> None:
    """Trim the heap periodically until cancelled; return at once if the C library cannot trim (musl)."""
    trim = find_trim()
    if trim is None:
        return
    while True:
        await asyncio.sleep(every)
        trim()


def find_trim() -> Callable[[], object] | None:
    """Return a function that returns free memory to the system (malloc_trim(3) of glibc); None if unavailable."""
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    malloc_trim.argtypes, malloc_trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda: malloc_trim(0)

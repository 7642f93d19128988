"""Writes that are repeated while a server is overloaded, as clients of Kubernetes do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from vkgateway.kube import errors

_TRIES: Final = 30
_PAUSE: Final = 1.0
_OVERLOADED: Final = (errors.ServerError, errors.TooManyRequests, errors.Unreachable)


async def persist(write: Callable[[], Awaitable[object]]) -> None:
    """Repeat a write that an overloaded server did not answer.

    The server may have carried it out nevertheless, so `write` must accept that. Raises the last error after 30 s.
    """
    for _ in range(_TRIES):
        try:
            await write()
        except _OVERLOADED:
            await asyncio.sleep(_PAUSE)
        else:
            return
    await write()

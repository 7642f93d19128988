"""Namespaces of a tenant that a reader without a right for the whole tenant may see.

Kubernetes has no request for the namespaces of a user. So the gateway asks for each namespace, up to a limit, and
remembers the answer. It asks again for the found namespaces with each request, through the cache of the reviewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.nodes.token_reviewer import TokenReviewer, User
from vkgateway.nodes.ttl_cache import TtlCache

MOST_NAMESPACES: Final = 200
"""Namespaces of a tenant, by name, that are asked for. Each costs its API server a review."""
FOUND_SECONDS: Final = 300.0
"""Time after which namespaces to which the reader has got a right are found."""
NONE_SECONDS: Final = 30.0
"""Shortest time between two searches for a reader who may see no namespace."""
_SEARCH_SECONDS: Final = 10.0
_MOST_READERS: Final = 64

_Key = tuple[str, str]
MayRead = Callable[[str, User, str], Awaitable[bool]]
"""Returns whether a user of a tenant may see a namespace."""


class NamespaceFinder:
    """Search for the namespaces that users may see."""

    def __init__(self, reviewer: TokenReviewer, may_read: MayRead, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._reviewer = reviewer
        self._may_read = may_read
        self._found = TtlCache(clock, most=_MOST_READERS)
        self._searching: dict[str, asyncio.Lock] = {}

    async def find(self, tenant: str, user: User) -> tuple[str, ...]:
        """Return the names of the namespaces that a user may see now, in order. Raises ApiError and TimeoutError."""
        key = tenant, user.digest
        known: tuple[str, ...] | None = self._found.get(key)
        if known is None:
            known = await self._search(key, user)
        return await self._allowed(tenant, user, known)

    async def _search(self, key: _Key, user: User) -> tuple[str, ...]:
        """Ask for each namespace, for one user of a tenant at a time."""
        tenant = key[0]
        lock = self._searching.setdefault(tenant, asyncio.Lock())
        try:
            async with asyncio.timeout(_SEARCH_SECONDS), lock:
                known: tuple[str, ...] | None = self._found.get(key)
                if known is not None:
                    return known
                every = await self._reviewer.list_namespaces(tenant, most=MOST_NAMESPACES)
                found = await self._allowed(tenant, user, every)
        finally:
            if not lock.locked():
                self._searching.pop(tenant, None)
        self._found.put(key, found, seconds=FOUND_SECONDS if found else NONE_SECONDS)
        return found

    async def _allowed(self, tenant: str, user: User, names: Iterable[str]) -> tuple[str, ...]:
        return tuple([name for name in names if await self._may_read(tenant, user, name)])

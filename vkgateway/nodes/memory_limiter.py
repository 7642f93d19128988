"""Memory limits of requests: bodies, output of commands, and replies that the client has not read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from vkgateway.nodes.shared_limit import SharedLimit

CountBytes = Callable[[int], None]
"""Counts a number of bytes of a request. Raises MemoryLimitError."""
TENANT_MEMORY_MAX = 64 * 1024 * 1024
"""Limit of one tenant. A single reply may exceed it."""
TOTAL_MEMORY_MAX = 512 * 1024 * 1024


def ignore_bytes(_size: int) -> None:
    """Count nothing."""


class MemoryLimitError(Exception):
    """A tenant's requests exceed the memory limit. The message is for the tenant."""


class RequestMemory:
    """Bytes of one request."""

    def __init__(self, limit: SharedLimit, tenant: str) -> None:
        self._limit = limit
        self._tenant = tenant
        self.counted_bytes = 0

    def count_bytes(self, size: int) -> None:
        """Count a number of bytes. Raises MemoryLimitError."""
        if not self._limit.try_acquire(self._tenant, size):
            amount = self._limit.tenant_amount(self._tenant)
            raise MemoryLimitError(
                f"{amount} bytes of requests and replies are in memory; read the replies and try again"
            )
        self.counted_bytes += size


class MemoryLimiter:
    """Limits of bytes by tenant."""

    def __init__(self, per_tenant: int = TENANT_MEMORY_MAX) -> None:
        self._limit = SharedLimit(per_tenant, TOTAL_MEMORY_MAX)

    @contextlib.contextmanager
    def track_request(self, tenant: str) -> Iterator[RequestMemory]:
        """Yield the memory account of a request, and release its bytes at the end of the block."""
        memory = RequestMemory(self._limit, tenant)
        try:
            yield memory
        finally:
            self._limit.release_amount(tenant, memory.counted_bytes)

    def total_bytes(self) -> int:
        """Return the counted bytes of all tenants."""
        return self._limit.total_taken

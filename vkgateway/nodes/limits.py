"""Fair limits of a resource that all tenants share."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator

from vkgateway.api.errors import ConflictError


class SharedLimit:
    """Amounts by tenant, limited to `per_tenant` and to the part of `total` that is left.

    So one tenant gets at most half of the total, and two greedy tenants get a third each. The next tenant always finds
    a free amount, without revoking amounts of others (dynamic thresholds, like in switches with shared buffers).
    """

    def __init__(self, per_tenant: int, total: int) -> None:
        self.per_tenant = per_tenant
        self.total = total
        self._taken: Counter[str] = Counter()

    def try_acquire(self, tenant: str, amount: int = 1) -> bool:
        """Acquire an amount, or return False. A tenant without any amount may exceed `per_tenant` once.

        So a single large reply is possible.
        """
        current = self._taken[tenant]
        if (current and current + amount > self.per_tenant) or current + amount > self.total_left:
            return False
        self._taken[tenant] += amount
        return True

    def release_amount(self, tenant: str, amount: int = 1) -> None:
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def tenant_amount(self, tenant: str) -> int:
        return self._taken.get(tenant, 0)

    @property
    def total_taken(self) -> int:
        """The amount of all tenants."""
        return self._taken.total()

    @property
    def total_left(self) -> int:
        """The free amount."""
        return self.total - self.total_taken


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


class TooManyStreamsError(ConflictError):
    """A tenant has reached its limit of streams. The message is for the tenant."""


class StreamLimiter:
    """Limit of concurrent streams (logs, exec, attach, port-forward) or, with `what`, of something else.

    `limit` applies to each tenant, `total` to all tenants together; see `SharedLimit`.
    """

    def __init__(
        self,
        limit: int,
        *,
        total: int = sys.maxsize,
        what: str = "logs, exec, attach and port-forward streams",
    ) -> None:
        self._limit = SharedLimit(limit, total)
        self._counted = what

    @contextlib.contextmanager
    def hold_stream(self, tenant: str) -> Iterator[None]:
        """Count one stream while the block runs. Raises TooManyStreamsError."""
        if not self._limit.try_acquire(tenant):
            raise TooManyStreamsError(self._refusal_message(self._limit.tenant_amount(tenant)))
        try:
            yield
        finally:
            self._limit.release_amount(tenant)

    def _refusal_message(self, count: int) -> str:
        if count >= self._limit.per_tenant:
            return f"{count} {self._counted} are open already, the most that are allowed; end one and try again"
        return (
            f"{count} {self._counted} are open already, and as many are left for all others; end one or try again later"
        )

    def total_count(self) -> int:
        """Return the number of all open streams."""
        return self._limit.total_taken

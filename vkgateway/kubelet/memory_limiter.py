"""What requests keep in memory: bodies as they come, output of commands, answers that are not read yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from vkgateway.kubelet.shared_limit import SharedLimit

CountBytes = Callable[[int], None]
"""Counts so many bytes more of a request. Raises HeldError."""
TENANT_MEMORY_MAX = 64 * 1024 * 1024
"""Bytes of one tenant; one answer alone may be as large as it is."""
TOTAL_MEMORY_MAX = 512 * 1024 * 1024


def ignore_bytes(_size: int) -> None:
    """Count nothing."""


class MemoryLimitError(Exception):
    """A tenant has too much in memory; the message is for the tenant."""


class RequestMemory:
    """Bytes of one request."""

    def __init__(self, shares: SharedLimit, tenant: str) -> None:
        self._limit = shares
        self._tenant = tenant
        self.counted_bytes = 0

    def count_bytes(self, size: int) -> None:
        """Count so many more. Raises HeldError."""
        if not self._limit.try_acquire(self._tenant, size):
            known = self._limit.tenant_amount(self._tenant)
            raise MemoryLimitError(
                f"{known} bytes of requests and answers are under way; read the answers and try again"
            )
        self.counted_bytes += size


class MemoryLimiter:
    """Counts bytes by tenant."""

    def __init__(self, most: int = TENANT_MEMORY_MAX, total: int = TOTAL_MEMORY_MAX) -> None:
        self._limit = SharedLimit(most, total)

    @contextlib.contextmanager
    def track_request(self, tenant: str) -> Iterator[RequestMemory]:
        """Give an account that counts while the block lasts."""
        account = RequestMemory(self._limit, tenant)
        try:
            yield account
        finally:
            self._limit.release_amount(tenant, account.counted_bytes)

    def total_bytes(self) -> int:
        """How many bytes are held now."""
        return self._limit.total_taken

"""Limits of the streams and concurrent requests of each tenant."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from vkgateway.api.errors import ConflictError
from vkgateway.nodes.shared_limit import SharedLimit


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

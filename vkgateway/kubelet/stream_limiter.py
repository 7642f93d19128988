"""How many streams each tenant holds open, and how many questions it asks at once, and the bounds on that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from vkgateway.kubelet.shared_limit import SharedLimit
from vkgateway.model.errors import ConflictError


class TooManyStreamsError(ConflictError):
    """A tenant holds all the streams it may; the message is for the tenant."""


class StreamLimiter:
    """Counts streams (logs, exec, attach, port-forward) by tenant; `limit` is what each may hold at once.

    `total_count` is what there are for all, shared as `SharedLimit` does. `what` says what is counted, where it is
    something else.
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

    def _refusal_message(self, known: int) -> str:
        if known >= self._limit.per_tenant:
            return f"{known} {self._counted} are open already, the most that are allowed; end one and try again"
        return (
            f"{known} {self._counted} are open already, and as many are left for all others; end one or try again later"
        )

    def tenant_count(self, tenant: str) -> int:
        """How many streams a tenant holds open now."""
        return self._limit.tenant_amount(tenant)

    def total_count(self) -> int:
        """How many streams are open now."""
        return self._limit.total_taken

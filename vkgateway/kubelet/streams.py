"""How many streams each tenant holds open, and how many questions it asks at once, and the bounds on that."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from vkgateway.kubelet.shares import Shares
from vkgateway.model.errors import ConflictError


class TooManyStreamsError(ConflictError):
    """A tenant holds all the streams it may; the message is for the tenant."""


class Streams:
    """Counts streams (logs, exec, attach, port-forward) by tenant; `limit` is what each may hold at once.

    `total` is what there are for all, shared as `Shares` does. `what` says what is counted, where it is something else.
    """

    def __init__(
        self,
        limit: int,
        *,
        total: int = sys.maxsize,
        what: str = "logs, exec, attach and port-forward streams",
    ) -> None:
        self._shares = Shares(limit, total)
        self._what = what

    @contextlib.contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Count one stream while the block runs. Raises TooManyStreamsError."""
        if not self._shares.take(tenant):
            raise TooManyStreamsError(self._refusal(self._shares.of(tenant)))
        try:
            yield
        finally:
            self._shares.give(tenant)

    def _refusal(self, known: int) -> str:
        if known >= self._shares.each:
            return f"{known} {self._what} are open already, the most that are allowed; end one and try again"
        return f"{known} {self._what} are open already, and as many are left for all others; end one or try again later"

    def count(self, tenant: str) -> int:
        """How many streams a tenant holds open now."""
        return self._shares.of(tenant)

    def total(self) -> int:
        """How many streams are open now."""
        return self._shares.taken

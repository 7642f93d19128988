"""How many streams each tenant holds open, and how many questions it asks at once, and the bounds on that."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from vkgateway.model.errors import ConflictError


class TooManyStreamsError(ConflictError):
    """A tenant holds all the streams it may; the message is for the tenant."""


class Streams:
    """Counts streams (logs, exec, attach, port-forward) by tenant; `limit` is what each may hold at once.

    `what` says what is counted, where it is something else.
    """

    def __init__(self, limit: int, *, what: str = "logs, exec, attach and port-forward streams") -> None:
        self.limit = limit
        self._what = what
        self._open: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, tenant: str) -> Iterator[None]:
        """Count one stream while the block runs. Raises TooManyStreamsError."""
        if self._open[tenant] >= self.limit:
            raise TooManyStreamsError(
                f"{self.limit} {self._what} are open already, the most that are allowed; end one and try again"
            )
        self._open[tenant] += 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

    def count(self, tenant: str) -> int:
        """How many streams a tenant holds open now."""
        return self._open.get(tenant, 0)

    def total(self) -> int:
        """How many streams are open now."""
        return self._open.total()

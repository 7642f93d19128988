"""Answers that their callers have not read yet: how many bytes of them each tenant may leave in memory."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

UNREAD_MAX = 64 * 1024 * 1024
"""Bytes of a tenant's answers; one alone may be as large as it is."""


class UnreadError(Exception):
    """A tenant leaves too much unread; the message is for the tenant."""


class Unread:
    """Counts bytes by tenant."""

    def __init__(self, most: int = UNREAD_MAX) -> None:
        self._most = most
        self._bytes: Counter[str] = Counter()

    @contextlib.contextmanager
    def hold(self, tenant: str, size: int) -> Iterator[None]:
        """Count an answer while the block sends it. Raises UnreadError."""
        known = self._bytes[tenant]
        if known and known + size > self._most:
            raise UnreadError(f"{known} bytes of answers were not read yet; read them and try again")
        self._bytes[tenant] += size
        try:
            yield
        finally:
            self._bytes[tenant] -= size
            if not self._bytes[tenant]:
                del self._bytes[tenant]

"""Counts of requests and open watches, shared by all clients of one kind of cluster."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

WATCH: Final = "WATCH"
"""Method under which watches are counted."""


class Traffic:
    """Requests so far by method, and the number of open watches."""

    def __init__(self) -> None:
        self.requests: Final[Counter[str]] = Counter()
        self.open_watches = 0

    def count_request(self, method: str) -> None:
        """Count a request that is not a watch."""
        self.requests[method] += 1

    @contextlib.contextmanager
    def count_watch(self) -> Iterator[None]:
        """Count a watch, which is open within the block."""
        self.requests[WATCH] += 1
        self.open_watches += 1
        try:
            yield
        finally:
            self.open_watches -= 1

"""Whether what is kept of a server's objects may be trusted, and how soon to ask again after a failure."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable
from typing import Final

from vkgateway.kube.backoff import Backoff, Random

_RELIST_AFTER_FAILURES: Final = 3
"""Refusals in a row after which the resource version itself is doubted (a store restored from a backup)."""

_EXPIRY_RESET_SECONDS: Final = 60.0
"""Seconds without a list after which the next one is taken at once."""

_SHORT_WATCH_SECONDS: Final = 1.0
"""Seconds that a watch lasts which a server means to serve."""

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for cluster-scoped objects."""


class WatchState:
    """How a reflector stands with its server; what is told when is said at `Reflector`."""

    def __init__(
        self,
        *,
        on_reachable: Callable[[bool, str], None] | None = None,
        on_complete: Callable[[], None] | None = None,
        random: Random = random_module.random,
    ) -> None:
        self.is_current = False
        """Whether the watch continues what was known: nothing was missed."""
        self.complete_event = asyncio.Event()
        self.unreadable_keys: set[Key] = set()
        self.is_reachable = False
        self._was_reported = False
        self._failures = 0
        self._expirations = 0
        self._short_watches = 0
        self._expired_at = float("-inf")
        self._on_reachable = on_reachable
        self._on_complete = on_complete
        self._random = random
        self._backoff = Backoff(base=0.2, cap=30.0, random=random)

    def mark_complete(self) -> None:
        """The watch is up and nothing was missed."""
        self.is_current = True
        self._failures = 0
        if not self.unreadable_keys and not self.complete_event.is_set():
            self.complete_event.set()
            if self._on_complete is not None:
                self._on_complete()
        self._report_reachable(True, "")

    def mark_unreadable(self, key: Key) -> None:
        """An object says what cannot be read: nothing's absence may be trusted."""
        self.unreadable_keys.add(key)
        self.complete_event.clear()

    def mark_readable(self, key: Key) -> None:
        """It can be read, or is gone."""
        if key in self.unreadable_keys:
            self.unreadable_keys.discard(key)
            if self.is_current and not self.unreadable_keys:
                self.mark_complete()

    def mark_stale(self) -> None:
        """What happened since can only be found by a list."""
        self.is_current = False
        self.complete_event.clear()

    def handle_expired(self, now: float) -> float:
        """What is known is too old to be followed up; returns the seconds to wait before the next list.

        The first is taken at once; a server that forgets faster than it lists is not asked for one after the other.
        """
        self.mark_stale()
        self._expirations = self._expirations + 1 if now - self._expired_at < _EXPIRY_RESET_SECONDS else 0
        self._expired_at = now
        return self._backoff.delay_after(self._expirations) if self._expirations else 0.0

    def handle_watch_end(self, *, lasted: float, told: bool) -> float:
        """The server has ended a watch as it may, after `lasted` seconds; returns those to wait before the next.

        One that ends every watch at once, with nothing `told`, is not asked for one after the other.
        """
        self._short_watches = self._short_watches + 1 if lasted < _SHORT_WATCH_SECONDS and not told else 0
        return (
            0.05 + 0.1 * self._random()
            if self._short_watches < 2
            else self._backoff.delay_after(self._short_watches - 1)
        )

    def handle_failure(self, why: str, *, at_least: float | None) -> float:
        """Note a failure; returns the seconds to wait before the next try, `at_least` those that the server asked for.

        One connection that is lost is nothing yet.
        """
        self._failures += 1
        if self._failures == 1 and self.is_current:
            return 0.1 * self._random() if at_least is None else at_least
        self.mark_stale()
        self._report_reachable(False, why)
        return self._backoff.delay_after(self._failures, at_least=at_least)

    @property
    def should_relist(self) -> bool:
        """Whether so many failed in a row that the version that is asked for may be the cause."""
        return not self.is_current and self._failures >= _RELIST_AFTER_FAILURES

    def _report_reachable(self, reachable: bool, why: str) -> None:
        if self._was_reported and self.is_reachable == reachable:
            return
        self.is_reachable, self._was_reported = reachable, True
        if self._on_reachable is not None:
            self._on_reachable(reachable, why)

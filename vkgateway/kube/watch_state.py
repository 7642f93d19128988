"""State of a reflector: whether its store is complete, and the delays after failures."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable
from typing import Final

from vkgateway.kube.backoff import Backoff, Random

_RELIST_AFTER_FAILURES: Final = 3
"""Consecutive refusals after which the resource version may be invalid (a datastore was restored from a backup)."""

_EXPIRY_RESET_SECONDS: Final = 60.0
"""Seconds without an expiry after which the next list starts immediately."""

_SHORT_WATCH_SECONDS: Final = 1.0
"""Watches that end sooner count as failed."""

Key = tuple[str, str]
"""Namespace and name. The namespace of cluster-scoped objects is empty."""


class WatchState:
    """State of a reflector. For the callbacks, see `Reflector`."""

    def __init__(
        self,
        *,
        on_reachable: Callable[[bool, str], None] | None = None,
        on_complete: Callable[[], None] | None = None,
        random: Random = random_module.random,
    ) -> None:
        self.is_current = False
        """Whether the watch continues from the store's version, so that no event was missed."""
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
        """Note that the watch works and no event was missed."""
        self.is_current = True
        self._failures = 0
        if not self.unreadable_keys and not self.complete_event.is_set():
            self.complete_event.set()
            if self._on_complete is not None:
                self._on_complete()
        self._report_reachable(True, "")

    def mark_unreadable(self, key: Key) -> None:
        """Note an object that cannot be decoded, so that the store is incomplete."""
        self.unreadable_keys.add(key)
        self.complete_event.clear()

    def mark_readable(self, key: Key) -> None:
        """Note that an object was decoded or deleted."""
        if key in self.unreadable_keys:
            self.unreadable_keys.discard(key)
            if self.is_current and not self.unreadable_keys:
                self.mark_complete()

    def mark_stale(self) -> None:
        """Note that events may be missing until the next list."""
        self.is_current = False
        self.complete_event.clear()

    def handle_expired(self, now: float) -> float:
        """Note that the resource version expired. Return the delay before the next list, in seconds.

        The first list starts immediately. The delay grows if versions expire before a list completes.
        """
        self.mark_stale()
        self._expirations = self._expirations + 1 if now - self._expired_at < _EXPIRY_RESET_SECONDS else 0
        self._expired_at = now
        return self._backoff.delay_after(self._expirations) if self._expirations else 0.0

    def handle_watch_end(self, *, duration: float, had_events: bool) -> float:
        """Note that the server ended a watch regularly. Return the delay before the next watch, in seconds.

        The delay grows if the server ends consecutive watches immediately and without events.
        """
        is_short = duration < _SHORT_WATCH_SECONDS and not had_events
        self._short_watches = self._short_watches + 1 if is_short else 0
        return (
            0.05 + 0.1 * self._random()
            if self._short_watches < 2
            else self._backoff.delay_after(self._short_watches - 1)
        )

    def handle_failure(self, reason: str, *, at_least: float | None) -> float:
        """Note a failure. Return the delay before the next attempt: `at_least` the delay that the server requests.

        A single lost connection does not change the state.
        """
        self._failures += 1
        if self._failures == 1 and self.is_current:
            return 0.1 * self._random() if at_least is None else at_least
        self.mark_stale()
        self._report_reachable(False, reason)
        return self._backoff.delay_after(self._failures, at_least=at_least)

    @property
    def should_relist(self) -> bool:
        """Whether consecutive failures suggest that the resource version is invalid."""
        return not self.is_current and self._failures >= _RELIST_AFTER_FAILURES

    def _report_reachable(self, reachable: bool, reason: str) -> None:
        if self._was_reported and self.is_reachable == reachable:
            return
        self.is_reachable, self._was_reported = reachable, True
        if self._on_reachable is not None:
            self._on_reachable(reachable, reason)

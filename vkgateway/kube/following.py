"""Whether what is kept of a server's objects may be trusted, and how soon to ask again after a failure."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable
from typing import Final

from vkgateway.kube.backoff import Backoff, Random

_DOUBTED_AFTER: Final = 3
"""Refusals in a row after which the resource version itself is doubted (a store restored from a backup)."""

_CALM: Final = 60.0
"""Seconds without a list after which the next one is taken at once."""

_LASTING: Final = 1.0
"""Seconds that a watch lasts which a server means to serve."""

Key = tuple[str, str]
"""Namespace and name; the namespace is empty for cluster-scoped objects."""


class Following:
    """How a reflector stands with its server; what is told when is said at `Reflector`."""

    def __init__(
        self,
        *,
        on_reachable: Callable[[bool, str], None] | None = None,
        on_complete: Callable[[], None] | None = None,
        random: Random = random_module.random,
    ) -> None:
        self.known = False
        """Whether the watch continues what was known: nothing was missed."""
        self.complete = asyncio.Event()
        self.unreadable: set[Key] = set()
        self.reachable = False
        self._told = False
        self._failures = 0
        self._outdated = 0
        self._in_vain = 0
        self._outdated_at = float("-inf")
        self._on_reachable = on_reachable
        self._on_complete = on_complete
        self._random = random
        self._backoff = Backoff(base=0.2, cap=30.0, random=random)

    def settle(self) -> None:
        """The watch is up and nothing was missed."""
        self.known = True
        self._failures = 0
        if not self.unreadable and not self.complete.is_set():
            self.complete.set()
            if self._on_complete is not None:
                self._on_complete()
        self._tell(True, "")

    def doubt(self, key: Key) -> None:
        """An object says what cannot be read: nothing's absence may be trusted."""
        self.unreadable.add(key)
        self.complete.clear()

    def relieve(self, key: Key) -> None:
        """It can be read, or is gone."""
        if key in self.unreadable:
            self.unreadable.discard(key)
            if self.known and not self.unreadable:
                self.settle()

    def lose(self) -> None:
        """What happened since can only be found by a list."""
        self.known = False
        self.complete.clear()

    def outdated(self, now: float) -> float:
        """What is known is too old to be followed up; returns the seconds to wait before the next list.

        The first is taken at once; a server that forgets faster than it lists is not asked for one after the other.
        """
        self.lose()
        self._outdated = self._outdated + 1 if now - self._outdated_at < _CALM else 0
        self._outdated_at = now
        return self._backoff.delay(self._outdated) if self._outdated else 0.0

    def ended(self, *, lasted: float, told: bool) -> float:
        """The server has ended a watch as it may, after `lasted` seconds; returns those to wait before the next.

        One that ends every watch at once, with nothing `told`, is not asked for one after the other.
        """
        self._in_vain = self._in_vain + 1 if lasted < _LASTING and not told else 0
        return 0.05 + 0.1 * self._random() if self._in_vain < 2 else self._backoff.delay(self._in_vain - 1)

    def failed(self, why: str, *, at_least: float | None) -> float:
        """Note a failure; returns the seconds to wait before the next try, `at_least` those that the server asked for.

        One connection that is lost is nothing yet.
        """
        self._failures += 1
        if self._failures == 1 and self.known:
            return 0.1 * self._random() if at_least is None else at_least
        self.lose()
        self._tell(False, why)
        return self._backoff.delay(self._failures, at_least=at_least)

    @property
    def doubted(self) -> bool:
        """Whether so many failed in a row that the version that is asked for may be the cause."""
        return not self.known and self._failures >= _DOUBTED_AFTER

    def _tell(self, reachable: bool, why: str) -> None:
        if self._told and self.reachable == reachable:
            return
        self.reachable, self._told = reachable, True
        if self._on_reachable is not None:
            self._on_reachable(reachable, why)

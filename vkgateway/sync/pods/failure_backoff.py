"""Backoff for failing pods: a controller that replaces failed pods immediately must not flood the cluster."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from vkgateway.sync.views.pods import Owner

_FREE_FAILURES: Final = 3
"""Consecutive failures of an owner without a delay: users see their mistakes, and Jobs count their retries."""
_FIRST_DELAY: Final = 10.0
_MAX_DELAY: Final = 300.0
_REMEMBERED_SECONDS: Final = 600.0
_OWNERS_MAX: Final = 1024
_FAILURES_MAX: Final = 16
"""Failures retained per owner; with this number of failures, the delay is at its maximum."""


class FailureBackoff:
    """Failure times by owner, in seconds of the caller's clock.

    `earlier_failures` are owners and times of failures before a restart; they are read once, on first use. At most 10
    pods of an owner fail in any 5 minutes.
    """

    def __init__(self, earlier_failures: Iterable[tuple[Owner, float]] = ()) -> None:
        self._earlier_failures: Iterable[tuple[Owner, float]] | None = earlier_failures
        self._failures: OrderedDict[Owner, deque[float]] = OrderedDict()

    def remaining_delay(self, owner: Owner, *, now: float) -> float:
        """Return the seconds until a pod of the owner may fail; 0 means now."""
        self._load_earlier(now)
        recent = [time for time in self._failures.get(owner, ()) if now - time < _REMEMBERED_SECONDS]
        if len(recent) < _FREE_FAILURES:
            return 0.0
        delay = min(_FIRST_DELAY * 2.0 ** (len(recent) - _FREE_FAILURES), _MAX_DELAY)
        return max(0.0, max(recent) + delay - now)

    def record_failure(self, owner: Owner, *, now: float) -> None:
        """Record the failure of a pod of the owner."""
        self._load_earlier(now)
        self._add_failure(owner, now)
        while len(self._failures) > _OWNERS_MAX or self._has_expired(now):
            self._failures.popitem(last=False)

    def _load_earlier(self, now: float) -> None:
        if self._earlier_failures is None:
            return
        before, self._earlier_failures = self._earlier_failures, None
        for owner, time in sorted(before, key=lambda failure: failure[1]):
            self._add_failure(owner, min(time, now))

    def _add_failure(self, owner: Owner, time: float) -> None:
        self._failures.setdefault(owner, deque(maxlen=_FAILURES_MAX)).append(time)
        self._failures.move_to_end(owner)

    def _has_expired(self, now: float) -> bool:
        oldest = next(iter(self._failures.values()), None)
        return oldest is not None and now - oldest[-1] >= _REMEMBERED_SECONDS

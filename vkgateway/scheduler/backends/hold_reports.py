"""Reports of waiting gangs to their tenants: why each waits, and its place in the queue (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.backends.amounts import sum_requests
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.gang_split import AttemptPods
from vkgateway.scheduler.backends.mode import ModeInput
from vkgateway.scheduler.backends.places import queue_places, queue_usages
from vkgateway.scheduler.core.decisions import PERMANENT_REASONS, PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import Gang


class HoldReports:
    """Reports of one cycle, in the order in which they were added."""

    def __init__(self, given: ModeInput) -> None:
        self._given = given
        self._reports: list[tuple[PendingReport, str]] = []
        """Each with the name of its pending attempt; empty: none."""
        self._pending: dict[str, tuple[Attempt, MilliResources]] = {
            attempt.name: (attempt, {}) for attempt in given.attempts.values() if _is_queued(attempt)
        }
        """Pending attempts by name, each with the sum of its requests; those of unknown tenants count without."""

    def add(self, gang: Gang, code: PendingReason, message: str) -> None:
        """Report why a gang waits."""
        self._reports.append((_report(gang, code, message), ""))

    def add_part(self, part: AttemptPods, wait: Wait, attempt: Attempt | None = None) -> None:
        """Report why the pods of an attempt wait. The wait of surplus is reported with that of the other surplus."""
        name = attempt.name if attempt is not None else ""
        if attempt is not None and name in self._pending:
            self._pending[name] = attempt, sum_requests(part.request.pods)
        if part.waiting and not part.request.is_surplus:
            self._reports.append((_report(part.request.gang, wait.code, wait.message), name))

    def with_places(self) -> Iterator[PendingReport]:
        """Yield the reports, each with the place of its gang."""
        usages = queue_usages(self._given.snapshot, self._given.specs) if self._pending else {}
        places = queue_places(self._pending.values(), usages)
        for report, name in self._reports:
            place = places.get(name, 0)
            yield replace(report, place=place) if place else report


def _is_queued(attempt: Attempt) -> bool:
    """Return whether an attempt has a place: the scheduler has an object for it, and starts it some time."""
    never = attempt.wait is not None and attempt.wait.code in PERMANENT_REASONS
    return attempt.state is AttemptState.PENDING and bool(attempt.uid) and not never


def _report(gang: Gang, code: PendingReason, message: str) -> PendingReport:
    return PendingReport(gang=gang.id, code=code, message=message, pool=gang.pools[0])

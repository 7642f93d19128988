"""Rate-limited reports of pending reasons, the same for all pods of a gang at the same time (pure).

A gang is reported in rounds. The first pod that is reconciled when a round is due opens it with the current reason; the
other pods report the same. A pod that joins a gang after a round waits for the next one. Otherwise it would show
another reason than the others, and could not report theirs for half a minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from vkgateway.sync.admission.verdict_store import PendingMessage

_PATIENCE: Final = 1.0
"""Seconds that a pod waits before its first report, as most start sooner; in a growing gang, since its newest pod."""
_MAX_WAIT: Final = 10.0
"""Seconds after which a growing gang is reported nevertheless."""
_WRITE_INTERVAL: Final = 30.0
"""Minimum seconds between two writes to one waiting pod."""
_ROUND_SECONDS: Final = 5.0
"""Seconds for which a round is open."""


@dataclass(slots=True)
class _GangReport:
    """Last report to the pods of one gang."""

    first_seen: float
    """When the first pod was reconciled (seconds since the epoch)."""
    newest: float
    pods: set[str] = field(default_factory=set)
    round: int = 0
    opened_at: float = 0.0
    last_write: float = 0.0
    """Time of the last write to any of its pods."""
    last_status: PendingMessage | None = None


@dataclass(slots=True)
class _PodReport:
    """Last report to one pod; empty at first."""

    group: str
    since: float
    last_write: float = 0.0
    round: int = 0
    last_status: PendingMessage | None = None


class ReportAction(NamedTuple):
    """Action for a waiting pod."""

    report_now: PendingMessage | None = None
    """Reason to report now; None: nothing."""
    is_new: bool = False
    """Whether the reason differs from the last one."""
    requeue_after: float | None = None
    """Seconds after which to reconcile the pod again; None: only after a change."""


class PendingReporter:
    """State of the reports to one tenant's waiting pods."""

    def __init__(self) -> None:
        self._pod_reports: dict[str, _PodReport] = {}
        self._gang_reports: dict[str, _GangReport] = {}

    def plan_report(self, uid: str, group: str, waits: PendingMessage, *, now: float) -> ReportAction:
        """Return what to report to a pod if its gang waits for this reason; the report counts as written."""
        told, line = self._get_reports(uid, group, now)
        if line.last_status is not None and self._joins_round(told, line, waits, now):
            told.round = line.round
            if _report_text(told.last_status) != _report_text(line.last_status):
                return self._report_now(told, line, line.last_status, waits, now)
        if _report_text(told.last_status) == _report_text(waits):
            return ReportAction()
        due = max(told.since + _PATIENCE, told.last_write + _WRITE_INTERVAL if told.last_write else 0.0)
        due = max(
            due,
            min(line.newest + _PATIENCE, line.first_seen + _MAX_WAIT)
            if line.last_status is None
            else line.last_write + _WRITE_INTERVAL,
        )
        if due > now:
            soon = told.since + _PATIENCE - now
            may_join = not told.last_write and 0 < soon < line.opened_at + _ROUND_SECONDS - now
            return ReportAction(requeue_after=soon if may_join else due - now)
        line.round, line.opened_at, line.last_status = line.round + 1, now, waits
        return self._report_now(told, line, waits, waits, now)

    def report_failed(self, uid: str) -> None:
        """Record that a report could not be written."""
        told = self._pod_reports.get(uid)
        if told is not None:
            told.last_status, told.last_write, told.round = None, 0.0, 0

    def was_reported(self, uid: str) -> bool:
        """Return whether anything was reported to a pod."""
        told = self._pod_reports.get(uid)
        return told is not None and told.last_status is not None

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a pod that does not wait any more."""
        told = self._pod_reports.pop(uid, None)
        line = self._gang_reports.get(told.group) if told is not None else None
        if told is not None and line is not None:
            line.pods.discard(uid)
            if not line.pods:
                del self._gang_reports[told.group]

    def _get_reports(self, uid: str, group: str, now: float) -> tuple[_PodReport, _GangReport]:
        told = self._pod_reports.get(uid)
        if told is not None and told.group != group:
            self.forget_pod(uid)
            told = _PodReport(group, told.since, told.last_write, 0, told.last_status)
        self._pod_reports[uid] = told = told or _PodReport(group, now)
        line = self._gang_reports.setdefault(group, _GangReport(now, now))
        if uid not in line.pods:
            line.pods.add(uid)
            line.newest, line.last_write = now, max(line.last_write, told.last_write)
        return told, line

    @staticmethod
    def _joins_round(told: _PodReport, line: _GangReport, waits: PendingMessage, now: float) -> bool:
        """Return whether a pod reports the reason of the open round; a later pod only if its reason is the same."""
        if told.round == line.round or now >= line.opened_at + _ROUND_SECONDS:
            return False
        if told.last_write:
            return told.last_write + _WRITE_INTERVAL <= now
        settled = told.since + _PATIENCE <= now
        return told.since <= line.opened_at or (settled and _report_text(line.last_status) == _report_text(waits))

    def _report_now(
        self, told: _PodReport, line: _GangReport, said: PendingMessage, waits: PendingMessage, now: float
    ) -> ReportAction:
        is_new = told.last_status is None or told.last_status.code != said.code
        told.last_write, told.round, told.last_status, line.last_write = now, line.round, said, now
        return ReportAction(said, is_new, None if _report_text(said) == _report_text(waits) else _WRITE_INTERVAL)


def _report_text(waits: PendingMessage | None) -> tuple[str, str] | None:
    return None if waits is None else (waits.code, waits.text)

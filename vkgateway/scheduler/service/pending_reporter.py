"""Rate-limited reports of pending reasons, the same for all pods of a gang at the same time (pure).

A gang is reported in rounds. The first pod that is reconciled when a round is due opens it with the current reason; the
other pods report the same. A pod that joins a gang after a round waits for the next one. Otherwise it would show
another reason than the others, and could not report theirs for half a minute.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

_PATIENCE: Final = 1.0
"""Seconds that a pod waits before its first report, as most start sooner; in a growing gang, since its newest pod."""
_MAX_WAIT: Final = 10.0
"""Seconds after which a growing gang is reported nevertheless."""
_WRITE_INTERVAL: Final = 30.0
"""Minimum seconds between two writes to one waiting pod."""
_UPDATES_PER_SECOND: Final = 1.0
"""Writes per second to all waiting pods of a tenant, if only queue positions or expected starts changed. A start moves
every pod behind it, so hundreds of waiting pods would keep the tenant's API server busy."""
_ROUND_SECONDS: Final = 5.0
"""Seconds for which a round is open."""


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """Why a pod's gang does not start now. Reports with the same text are equal."""

    code: str
    reason: str
    """The reason in a sentence."""
    text: str
    """The same with queue position and expected start."""


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
        self.pod_reports: dict[str, _PodReport] = {}
        """By UID."""
        self._gang_reports: dict[str, _GangReport] = {}

    def plan_report(self, uid: str, group: str, message: PendingMessage, *, now: float) -> ReportAction:
        """Return what to report to a pod if its gang waits for this reason; the report counts as written."""
        pod_report, gang_report = self._get_reports(uid, group, now)
        if gang_report.last_status is not None and self._joins_round(pod_report, gang_report, message, now):
            pod_report.round = gang_report.round
            if _report_text(pod_report.last_status) != _report_text(gang_report.last_status):
                return self._report_now(pod_report, gang_report, gang_report.last_status, message, now)
        if _report_text(pod_report.last_status) == _report_text(message):
            return ReportAction()
        interval = self._write_interval(pod_report, message)
        due = max(pod_report.since + _PATIENCE, pod_report.last_write + interval if pod_report.last_write else 0.0)
        due = max(
            due,
            min(gang_report.newest + _PATIENCE, gang_report.first_seen + _MAX_WAIT)
            if gang_report.last_status is None
            else gang_report.last_write + interval,
        )
        if due > now:
            patience_left = pod_report.since + _PATIENCE - now
            may_join = not pod_report.last_write and 0 < patience_left < gang_report.opened_at + _ROUND_SECONDS - now
            return ReportAction(requeue_after=patience_left if may_join else due - now)
        gang_report.round, gang_report.opened_at, gang_report.last_status = gang_report.round + 1, now, message
        return self._report_now(pod_report, gang_report, message, message, now)

    def report_failed(self, uid: str) -> None:
        """Record that a report could not be written."""
        pod_report = self.pod_reports.get(uid)
        if pod_report is not None:
            pod_report.last_status, pod_report.last_write, pod_report.round = None, 0.0, 0

    def was_reported(self, uid: str) -> bool:
        """Return whether anything was reported to a pod."""
        pod_report = self.pod_reports.get(uid)
        return pod_report is not None and pod_report.last_status is not None

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a pod that does not wait any more."""
        pod_report = self.pod_reports.pop(uid, None)
        gang_report = self._gang_reports.get(pod_report.group) if pod_report is not None else None
        if pod_report is not None and gang_report is not None:
            gang_report.pods.discard(uid)
            if not gang_report.pods:
                del self._gang_reports[pod_report.group]

    def _get_reports(self, uid: str, group: str, now: float) -> tuple[_PodReport, _GangReport]:
        pod_report = self.pod_reports.get(uid)
        if pod_report is not None and pod_report.group != group:
            self.forget_pod(uid)
            pod_report = _PodReport(group, pod_report.since, pod_report.last_write, 0, pod_report.last_status)
        self.pod_reports[uid] = pod_report = pod_report or _PodReport(group, now)
        gang_report = self._gang_reports.setdefault(group, _GangReport(now, now))
        if uid not in gang_report.pods:
            gang_report.pods.add(uid)
            gang_report.newest, gang_report.last_write = now, max(gang_report.last_write, pod_report.last_write)
        return pod_report, gang_report

    def _write_interval(self, pod_report: _PodReport, message: PendingMessage) -> float:
        """Return the seconds between two writes to a pod: more with many waiting pods, unless its reason changed."""
        last = pod_report.last_status
        if last is None or (last.code, last.reason) != (message.code, message.reason):
            return _WRITE_INTERVAL
        return max(_WRITE_INTERVAL, len(self.pod_reports) / _UPDATES_PER_SECOND)

    @staticmethod
    def _joins_round(pod_report: _PodReport, gang_report: _GangReport, message: PendingMessage, now: float) -> bool:
        """Return whether a pod reports the reason of the open round; a later pod only if its reason is the same."""
        if pod_report.round == gang_report.round or now >= gang_report.opened_at + _ROUND_SECONDS:
            return False
        if pod_report.last_write:
            return pod_report.last_write + _WRITE_INTERVAL <= now
        settled = pod_report.since + _PATIENCE <= now
        return pod_report.since <= gang_report.opened_at or (
            settled and _report_text(gang_report.last_status) == _report_text(message)
        )

    def _report_now(
        self,
        pod_report: _PodReport,
        gang_report: _GangReport,
        reported: PendingMessage,
        message: PendingMessage,
        now: float,
    ) -> ReportAction:
        is_new = pod_report.last_status is None or pod_report.last_status.code != reported.code
        pod_report.last_write, pod_report.round, pod_report.last_status, gang_report.last_write = (
            now,
            gang_report.round,
            reported,
            now,
        )
        return ReportAction(
            reported, is_new, None if _report_text(reported) == _report_text(message) else _WRITE_INTERVAL
        )


def _report_text(message: PendingMessage | None) -> tuple[str, str] | None:
    return None if message is None else (message.code, message.text)

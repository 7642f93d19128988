"""Length and start of eviction notices."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.scheduler.core.snapshot import Gang, Pod


def notice_seconds(gang: Gang, pods: Iterable[Pod], now: float) -> float:
    """Return the seconds between notice and deletion for these pods of a gang, notified together now.

    If one pod ran for longer than `brief_run`, all pods get the full notice.
    """
    first_start = min((pod.since for pod in pods), default=now)
    return min(gang.notice, gang.brief_notice) if now - first_start < gang.brief_run else gang.notice


def notice_start(gang: Gang, pods: Iterable[Pod]) -> float:
    """Return when these pods of a gang, notified together, got their notice (seconds since the epoch).

    The deadline identifies a brief notice: pods that had run for longer by then would have got the full one.
    """
    pods = list(pods)
    deadline = min(pod.deadline for pod in pods)
    brief_start = deadline - min(gang.notice, gang.brief_notice)
    is_brief = brief_start - min(pod.since for pod in pods) < gang.brief_run
    return brief_start if is_brief else deadline - gang.notice

"""The notice of an eviction: how long it is, and when it was given."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.arbiter.snapshot import Gang, Pod


def notice_seconds(gang: Gang, pods: Iterable[Pod], now: float) -> float:
    """Return the seconds between notice and deletion for these pods of a gang, notified together now.

    One pod that ran for longer gives all of them the full notice.
    """
    began = min((pod.since for pod in pods), default=now)
    return min(gang.notice, gang.brief_notice) if now - began < gang.brief_run else gang.notice


def notice_start(gang: Gang, pods: Iterable[Pod]) -> float:
    """Return when these pods of a gang, notified together, got their notice (seconds since the epoch).

    A brief notice is told by the deadline: if the pods had run for longer by then, they would have had the full one.
    """
    pods = list(pods)
    deadline = min(pod.deadline for pod in pods)
    briefly = deadline - min(gang.notice, gang.brief_notice)
    is_brief = briefly - min(pod.since for pod in pods) < gang.brief_run
    return briefly if is_brief else deadline - gang.notice

"""Names of gangs in messages."""

from __future__ import annotations

from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.reasons.gang_names import name_gangs

NAMES = {"u1": ("ns", "big-0"), "u2": ("ns", "web-0")}


def report(message: str, behind: str = "", ends: str = "") -> PendingReport:
    return PendingReport(gang="a/ns/gang/waits", code=PendingReason.ROOM, message=message, behind=behind, ends=ends)


def test_message_names_pod_or_gang_ahead() -> None:
    message = "capacity is free, but reserved for ns/pod/u1, which is ahead"
    assert (
        name_gangs(report(message, "a/ns/pod/u1"), NAMES)
        == "capacity is free, but reserved for pod ns/big-0, which is ahead"
    )
    assert "for a pod of namespace ns, " in name_gangs(report(message, "a/ns/pod/u1"), {})
    assert name_gangs(report("kept for ns/gang/x", "a/ns/gang/x"), {}) == "kept for gang ns/x"


def test_message_names_the_gang_ahead_and_the_gang_whose_end_helps() -> None:
    message = "reserved for ns/gang/x; the end of ns/pod/u2 lets it start"
    named = name_gangs(report(message, "a/ns/gang/x", "a/ns/pod/u2"), NAMES)
    assert named == "reserved for gang ns/x; the end of pod ns/web-0 lets it start"


def test_message_without_gang_ahead_is_unchanged() -> None:
    message = "capacity is free, but reserved for another tenant's gang"
    assert name_gangs(report(message, "b/ns/pod/u1"), NAMES) == message
    assert name_gangs(report(message), NAMES) == message
    assert name_gangs(report("kept for wide", "a/wide"), NAMES) == "kept for wide"

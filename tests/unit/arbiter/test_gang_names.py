"""Names of gangs in messages."""

from __future__ import annotations

from vkgateway.arbiter.reasons.gang_names import name_gang_ahead

NAMES = {"u1": ("ns", "big-0")}


def test_message_names_pod_or_gang_ahead() -> None:
    message = "capacity is free, but reserved for ns/pod/u1, which is ahead"
    assert (
        name_gang_ahead(message, "a/ns/pod/u1", NAMES)
        == "capacity is free, but reserved for pod ns/big-0, which is ahead"
    )
    assert "for a pod of namespace ns, " in name_gang_ahead(message, "a/ns/pod/u1", {})
    assert name_gang_ahead("kept for ns/gang/x", "a/ns/gang/x", {}) == "kept for gang ns/x"


def test_message_without_gang_ahead_is_unchanged() -> None:
    message = "capacity is free, but reserved for another tenant's gang"
    assert name_gang_ahead(message, "b/ns/pod/u1", NAMES) == message
    assert name_gang_ahead(message, "", NAMES) == message
    assert name_gang_ahead("kept for wide", "a/wide", NAMES) == "kept for wide"

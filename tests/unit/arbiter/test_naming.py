"""What gangs are called where people read of them."""

from __future__ import annotations

from vkgateway.arbiter.naming import ahead_named

NAMES = {"u1": ("ns", "big-0")}


def test_a_pod_ahead_is_called_by_its_name_and_a_gang_by_its_own() -> None:
    said = "there is room, but it is kept for ns/pod/u1, which is ahead"
    assert ahead_named(said, "a/ns/pod/u1", NAMES) == "there is room, but it is kept for pod ns/big-0, which is ahead"
    assert "for a pod of namespace ns, " in ahead_named(said, "a/ns/pod/u1", {})
    assert ahead_named("kept for ns/gang/x", "a/ns/gang/x", {}) == "kept for gang ns/x"


def test_what_names_nobody_stays_as_it_is() -> None:
    said = "there is room, but it is kept for another tenant's gang"
    assert ahead_named(said, "b/ns/pod/u1", NAMES) == said
    assert ahead_named(said, "", NAMES) == said
    assert ahead_named("kept for wide", "a/wide", NAMES) == "kept for wide"

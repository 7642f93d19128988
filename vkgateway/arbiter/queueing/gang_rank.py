"""Order of the gangs of one tenant."""

from __future__ import annotations

from vkgateway.arbiter.snapshot import Band, Gang


def priority_key(gang: Gang) -> tuple[int, float, str]:
    """Return the sort key of a tenant's guaranteed gangs: priority, then age."""
    return -gang.priority, gang.created, gang.id


def is_ranked_after(other: Gang, gang: Gang) -> bool:
    """Return whether a gang was created later than another gang, and has no higher band or priority."""
    if other.created <= gang.created:
        return False
    return (other.band is Band.LOW, -other.priority) >= (gang.band is Band.LOW, -gang.priority)

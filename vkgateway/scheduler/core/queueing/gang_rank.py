"""Order of the gangs of one tenant."""

from __future__ import annotations

from vkgateway.scheduler.core.snapshot import Band, Gang


def priority_key(gang: Gang) -> tuple[bool, int, float, str]:
    """Return the sort key of a tenant's guaranteed gangs: running gangs that lost members, then priority, then age.
    The rest of such a gang holds its nodes in vain until it is complete again.
    """
    return not gang.short, -gang.priority, gang.created, gang.id


def is_ranked_after(other: Gang, gang: Gang) -> bool:
    """Return whether a gang was created later than another gang, and has no higher band or priority."""
    if other.created <= gang.created:
        return False
    return (other.band is Band.LOW, -other.priority) >= (gang.band is Band.LOW, -gang.priority)

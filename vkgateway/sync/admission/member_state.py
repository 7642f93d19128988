"""Where a member of a gang stands, above and below, at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.arbiter.snapshot import PodState, PoolKey


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """The state of a member. It counts as done if it has succeeded."""

    state: PodState | None = None
    """None: it does not exist any more, or has ended."""
    has_succeeded: bool = False
    has_failed: bool = False
    ended_at: float = 0.0
    """When it ended (seconds since the epoch); 0: it has not."""
    pool: PoolKey | None = None
    node: str = ""
    borrowed: bool = False
    since: float = 0.0
    deadline: float = 0.0
    evicted_for: str = ""
    behind: str = ""

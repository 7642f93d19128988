"""The state of a gang's member at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.arbiter.snapshot import PodState, PoolKey


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberState:
    """State of a member. A succeeded member counts as done."""

    state: PodState | None = None
    """None: the pod does not exist any more, or has ended."""
    has_succeeded: bool = False
    has_failed: bool = False
    ended_at: float = 0.0
    """Time of its end (seconds since the epoch); 0: it has not ended."""
    pool: PoolKey | None = None
    node: str = ""
    borrowed: bool = False
    since: float = 0.0
    deadline: float = 0.0
    evicted_for: str = ""
    behind: str = ""

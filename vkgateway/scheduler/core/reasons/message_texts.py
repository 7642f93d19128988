"""Phrases in the messages of pending reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vkgateway.api.requests import render_milli
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.snapshot import Pod, PoolKey, node_name


def pods_text(pods: Sequence[Pod]) -> str:
    """Return `2 pods of cpu 1, 4 pods of nvidia.com/gpu 1`."""
    shapes = Counter(tuple(each for each in pod.shape.requests if each[0] != "pods") for pod in pods)
    return ", ".join(
        f"{count_text(number, 'pod')} of {render_milli(dict(requests))}" for requests, number in shapes.items()
    )


def pools_text(keys: Iterable[PoolKey]) -> str:
    """Return pools by their virtual nodes, the names that tenants know."""
    return ", ".join(node_name(key) for key in keys)


def reserve_text(pool_state: PoolState) -> str:
    """Return `a100.local keeps nvidia.com/gpu 4 idle for guarantees`."""
    idle = {pool_state.pool.unit_resource: pool_state.facts.idle_reserve}
    return f"{pools_text([pool_state.pool.key])} keeps {render_milli(idle)} idle for guarantees"


def count_text(number: int, what: str) -> str:
    """Return `1 pod`, `2 pods`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def terminated_text(pods: int) -> str:
    """Return `2 pods have terminated`."""
    return f"{count_text(pods, 'pod')} {'has' if pods == 1 else 'have'} terminated"


def duration_text(seconds: float) -> str:
    """Return a coarse duration, rounded up, that stays the same for a while: `1 min`, `20 min`, `3 h`, `2 days`."""
    for unit, length, steps in _DURATION_STEPS:
        count = -(-max(0.0, seconds) // length)
        step = next((step for step in steps if count <= step), None)
        if step is not None:
            return count_text(step, unit) if unit == "day" else f"{step} {unit}"
    return "more than a month"


_DURATION_STEPS = (
    ("min", 60, (1, 2, 5, 10, 15, 20, 30, 45)),
    ("h", 3600, (1, 2, 3, 4, 6, 8, 12, 18)),
    ("day", 86_400, (1, 2, 3, 5, 7, 10, 14, 21, 31)),
)
"""Steps of durations in messages."""

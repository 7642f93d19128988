"""Message of gangs that wait because a budget is used up. It loads no other module of the arbiter's phases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from vkgateway.arbiter.snapshot import Pod


def budget_text(stopped: Iterable[str], pods: Sequence[Pod], now: float) -> str:
    """Return `the budget of November for nvidia.com/gpu is used up: ...`, with the start of the next month in UTC.

    `stopped`: the resources whose budget is used up, of which those that the pods request are named.
    """
    month = datetime.fromtimestamp(now, UTC).replace(day=1)
    following = month + timedelta(days=31)
    names = ", ".join(name for name in stopped if any(pod.shape.amount_of(name) for pod in pods))
    return (
        f"the budget of {month:%B} for {names} is used up: only the guarantee is available until 1 {following:%B} (UTC)"
    )

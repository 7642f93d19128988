"""Message of gangs that wait because a budget is used up. It loads no other module of the arbiter's phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.scheduler.core.snapshot import LOW, Band, Pod, Quota


def budget_text(quota: Quota, pods: Sequence[Pod], now: float, *, band: Band) -> str:
    """Return `the budget of November for 100 hours of nvidia.com/gpu is used up: ...`, with the start of the next month
    in UTC.

    Of the used-up budgets, those of resources that the pods request are named. Pods of the low band cannot use the
    guarantee: only a budget lets them start.
    """
    month = datetime.fromtimestamp(now, UTC).replace(day=1)
    following = month + timedelta(days=31)
    needed = _needed(quota, pods)
    hours = [quota.budget_hours.get(name) for name in needed]
    parts = (
        name if amount is None else f"{amount:.10g} hours of {name}" for name, amount in zip(needed, hours, strict=True)
    )
    until = "" if 0 in hours else f" until 1 {following:%B} (UTC)"
    what = (
        f"needs {render_milli(needed)}, and low-priority pods do not use the guarantee: none starts{until} without a "
        "higher budget"
        if band is LOW
        else f"only the guarantee is available{until}; needs {render_milli(needed)}"
    )
    return f"the budget of {month:%B} for {', '.join(parts)} is used up: {what}"


def budget_numbers(quota: Quota, pods: Sequence[Pod]) -> Mapping[str, float]:
    """Return the hours of the used-up budgets, and what the pods need of their resources, in units."""
    needed = _needed(quota, pods)
    return {
        **{f"needed {name}": amount / 1000 for name, amount in needed.items()},
        **{f"budget {name}": hours for name, hours in quota.budget_hours.items() if name in needed},
    }


def _needed(quota: Quota, pods: Sequence[Pod]) -> MilliResources:
    amounts = ((name, sum(pod.shape.amount_of(name) for pod in pods)) for name in quota.stopped)
    return {name: amount for name, amount in amounts if amount}

"""Verdict on the schedulers of a compute cluster's pools, from the state of each scheduler."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from vkgateway.api.scheduling import with_mode
from vkgateway.api.types import KUEUE, NATIVE, VOLCANO, Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.scheduler.backends.check import SchedulerState, TenantsIn
from vkgateway.scheduler.backends.kueue.check import read_kueue
from vkgateway.scheduler.backends.volcano.check import read_volcano

ReadState = Callable[[ComputeLink], Awaitable[SchedulerState]]
"""Returns the state of a scheduler. Raises ApiError if the cluster does not answer."""
READERS: Final[Mapping[str, ReadState]] = {KUEUE: read_kueue, VOLCANO: read_volcano}
"""By scheduling mode. Modes that are missing have no state to read."""
SchedulerStates = Mapping[str, SchedulerState]
"""Last known states by scheduling mode."""


async def read_schedulers(link: ComputeLink, pools: Iterable[Pool]) -> SchedulerStates:
    """Return the states of the schedulers that pools request. Raises ApiError."""
    modes = {pool.scheduling.mode for pool in pools}
    return {mode: await read(link) for mode, read in READERS.items() if mode in modes}


def scheduler_verdict(
    pools: Iterable[Pool],
    modes: Mapping[str, str],
    states: SchedulerStates,
    *,
    tenants: TenantsIn = lambda _pool: (),
) -> Verdict | None:
    """Return the verdict on the schedulers of a cluster's pools; None: the arbiter schedules all pools.

    `pools` have the requested modes, `modes` the modes in effect by pool. `tenants` returns the tenants that use a
    pool.
    """
    requested = tuple(pools)
    current = [with_mode(pool, modes.get(pool.name, "")) for pool in requested]
    by_mode: dict[str, list[Pool]] = {}
    for pool in current:
        if pool.scheduling.mode != NATIVE:
            by_mode.setdefault(pool.scheduling.mode, []).append(pool)
    verdicts = [_mode_verdict(mode, members, states, tenants) for mode, members in by_mode.items()]
    worst = min(verdicts, key=lambda verdict: ("False", "Unknown", "True").index(verdict.status), default=None)
    if worst is not None and worst.status != "True":
        return worst
    if postponed := [pool for pool, now in zip(requested, current, strict=True) if pool != now]:
        return _postponed_verdict(postponed, modes)
    return true_verdict("SchedulersReady", "; ".join(verdict.message for verdict in verdicts)) if verdicts else None


def _postponed_verdict(pools: Iterable[Pool], modes: Mapping[str, str]) -> Verdict:
    """Return the verdict on pools whose requested mode is not in effect yet. Their gangs start as before."""
    texts = (f"pool {pool.name!r} stays in mode {modes[pool.name]} instead of {pool.scheduling.mode}" for pool in pools)
    hint = "pods with devices or gang marks run there; the mode changes when they have ended"
    return false_verdict("ModeChangeRefused", f"{'; '.join(texts)}: {hint}")


def _mode_verdict(mode: str, pools: list[Pool], states: SchedulerStates, tenants: TenantsIn) -> Verdict:
    names = ", ".join(pool.name for pool in pools)
    if mode not in READERS:
        schedulers = ", ".join(sorted({pool.scheduling.scheduler_name for pool in pools}))
        return true_verdict("SchedulersReady", f"{schedulers} gets the pods of {names}; its state is not checked")
    if mode not in states:
        return unknown_verdict("SchedulerUnknown", f"the state of {mode}, which schedules {names}, is not known yet")
    return states[mode].verdict(pools, tenants)

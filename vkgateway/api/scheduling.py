"""Scheduling modes of pools: names of queues, errors in the settings, and the mode in effect. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from vkgateway.api.templates import template_problems
from vkgateway.api.types import EXTERNAL, NATIVE, Pool, PoolScheduling, PoolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerMarks:
    """What the scheduler of a pool needs on a compute pod that it admitted."""

    scheduler_name: str = ""
    """Empty: the default scheduler binds the pod."""
    priority_class: str = ""
    """Priority class of the scheduler; empty: that of the pod's band."""
    grace: int | None = None
    """Longest termination grace period in seconds, for a scheduler that deletes pods itself."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


_QUEUE_FORM: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_PLACEHOLDERS: Final = ("{tenant}", "{pool}")


def queue_name(scheduling: PoolScheduling, *, tenant: str, pool: str) -> str:
    """Return the name of the scheduler's queue of a tenant in a pool."""
    return scheduling.queue.replace("{tenant}", tenant).replace("{pool}", pool)


def scheduling_problems(pool: Pool) -> Iterator[str]:
    """Yield the errors in the scheduling of a pool. API servers reject such pools if the CRD is up to date."""
    scheduling = pool.scheduling
    name = f"pool {pool.name!r}: queue {scheduling.queue!r}"
    if _QUEUE_FORM.fullmatch(queue_name(scheduling, tenant="t", pool="p")) is None:
        yield f"{name} is not of lower-case letters, digits, dashes and dots, apart from {{tenant}} and {{pool}}"
    missing = [each for each in _PLACEHOLDERS if each not in scheduling.queue]
    if scheduling.manage_queues and scheduling.mode != EXTERNAL and missing:
        yield f"{name} does not name {' and '.join(missing)}; add them, or set manageQueues to false"
    if scheduling.queue == "default":
        yield f"{name} would receive all pods of its namespace; choose another name"
    yield from template_problems(pool)


def effective_pools(pools: Iterable[Pool], statuses: Iterable[PoolStatus]) -> tuple[Pool, ...]:
    """Return the pools of a compute cluster, each with the scheduling mode in effect instead of the requested mode."""
    modes: Mapping[str, str] = {status.name: status.scheduling_mode for status in statuses}
    return tuple(with_mode(pool, modes.get(pool.name, "")) for pool in pools)


def with_mode(pool: Pool, mode: str) -> Pool:
    """Return a pool in another scheduling mode; empty: in the requested mode."""
    if not mode or mode == pool.scheduling.mode:
        return pool
    return replace(pool, scheduling=replace(pool.scheduling, mode=mode))


def next_mode(pool: Pool, *, current: str, has_pods: bool) -> str:
    """Return the mode that is in effect from now on.

    `current` is the mode so far; empty: unknown, as for a new pool. Pods that the former mode started would lose their
    scheduler, so a pool keeps its mode while such pods run there (`has_pods`). In a pool of an unknown mode, the
    arbiter started them.
    """
    former = current or (NATIVE if has_pods else pool.scheduling.mode)
    return former if has_pods else pool.scheduling.mode

"""The interface of the check of one scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from vkgateway.api.objects import Condition, Meta
from vkgateway.api.scheduling import queue_name
from vkgateway.api.times import parse_seconds
from vkgateway.api.types import Pool
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.status import Verdict, false_verdict
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.scheduler.backends.kinds import ModeKinds, View

_CHECKED_MAX: Final = 500
"""Most attempts that one check reads."""
_ANSWER_SECONDS: Final = 60.0
TenantsIn = Callable[[str], Iterable[str]]
"""Returns the tenants that use a pool."""


class SchedulerState(Protocol):
    """State of a scheduler in a compute cluster, as it was read last."""

    def verdict(self, pools: Sequence[Pool], tenants: TenantsIn) -> Verdict:
        """Return the verdict on the scheduler of some pools."""


class _AttemptStatus(msgspec.Struct):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class _AttemptView(msgspec.Struct):
    metadata: Meta
    status: _AttemptStatus = msgspec.field(default_factory=_AttemptStatus)


class _AttemptList(msgspec.Struct):
    items: tuple[_AttemptView, ...] = ()


_decode: Final = msgspec.json.Decoder(_AttemptList).decode


async def find_unanswered(link: ComputeLink, kinds: ModeKinds[View], *, clock: Clock = SYSTEM_CLOCK) -> str:
    """Return an attempt that the scheduler has not handled for a minute, as `NAMESPACE/NAME`; empty: none.

    Raises ApiError.
    """
    params = {"labelSelector": kinds.own_selector(link.gateway.value), "limit": str(_CHECKED_MAX)}
    items = _decode(await link.client.request("GET", kinds.attempts.path(), params=params)).items
    latest = clock.time() - _ANSWER_SECONDS
    return next(
        (
            "/".join(each.metadata.key)
            for each in items
            if not (each.status.phase or each.status.conditions)
            and parse_seconds(each.metadata.creation_timestamp) < latest
        ),
        "",
    )


def unanswered_verdict(title: str, kind: str, name: str) -> Verdict:
    """Return the verdict on a scheduler that has not handled an attempt."""
    return false_verdict(
        "SchedulerSilent",
        f"{title} has not handled {kind} {name} for a minute; check that its controllers and scheduler run",
    )


def missing_verdict(title: str, api: str, pools: Iterable[Pool]) -> Verdict:
    """Return the verdict on a scheduler whose API the cluster does not serve."""
    names = ", ".join(pool.name for pool in pools)
    way_out = f"install {title} there, or set scheduling.mode of the pool to native"
    return false_verdict(
        "SchedulerMissing", f"pools {names} need {title}, and the cluster does not serve {api}; {way_out}"
    )


def missing_queues(pools: Iterable[Pool], existing: frozenset[str], tenants: TenantsIn) -> Iterator[str]:
    """Yield the names of queues that the administrator manages and that do not exist."""
    for pool in pools:
        if not pool.scheduling.manage_queues:
            wanted = {queue_name(pool.scheduling, tenant=tenant, pool=pool.name) for tenant in tenants(pool.name)}
            yield from wanted - existing

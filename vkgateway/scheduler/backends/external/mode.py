"""An external scheduler as a scheduling mode."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from vkgateway.api.names import SCHEDULING_MODE
from vkgateway.api.objects import Object
from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.api.scheduling import SchedulerMarks, queue_name
from vkgateway.api.templates import BAND_GUARANTEED, BAND_LOW, render_template, render_templates, template_problems
from vkgateway.api.types import EXTERNAL
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.amounts import pool_capacity, sum_requests
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.gang_split import AttemptPods, GangSplitter, min_members
from vkgateway.scheduler.backends.guarantee import UsageSums
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.pod_sets import count_pod_sets
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import GUARANTEED, WAITING, Gang, Pod, Pool, Quota, Shape

_RETRY_SECONDS: Final = 10.0


class ExternalMode:
    """Implementation of `SchedulingMode`. The scheduler has no object of the gateway: it gets pods."""

    max_pod_sets = sys.maxsize
    retry_seconds = _RETRY_SECONDS
    takes_slots_back = False

    def marks(self, request: Request, _pod: Pod) -> SchedulerMarks:
        """See `SchedulingMode`. The scheduler gives no notice, and deletes pods with the grace of their creation."""
        scheduling, values = request.spec.scheduling, _template_values(request)
        return SchedulerMarks(
            scheduler_name=scheduling.scheduler_name,
            priority_class=render_template(scheduling.priority_class_name, values),
            grace=int(request.gang.grace),
            labels=render_templates(scheduling.pod_labels, values),
            annotations={**render_templates(scheduling.pod_annotations, values), SCHEDULING_MODE: EXTERNAL},
        )

    def implied_attempts(self, given: ModeInput, splitter: GangSplitter) -> Mapping[str, Attempt]:
        """See `SchedulingMode`."""
        return ImpliedAttempts(given, splitter, retry_seconds=self.retry_seconds).by_name()

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`. No gang waits for one."""
        raise NotImplementedError(f"{request.name}: an external scheduler has no object for a gang")

    def digest(self, _request: Request) -> str:
        """See `SchedulingMode`. An implied attempt always asks for the current pods."""
        return ""

    def levels(self, _pool: Pool, _spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`."""
        return ()

    def pool_objects(
        self, _pool: Pool, _spec: PoolSpec, _quotas: Sequence[Quota], _gangs: Sequence[Gang]
    ) -> list[Object]:
        """See `SchedulingMode`. The queues belong to the administrator."""
        return []


def _template_values(request: Request) -> dict[str, str]:
    """Return the value of each placeholder. Surplus belongs to its gang, too."""
    gang, spec = request.gang, request.spec
    return {
        "tenant": gang.tenant,
        "pool": spec.name,
        "queue": queue_name(spec.scheduling, tenant=gang.tenant, pool=spec.name),
        "gang": attempt_name(gang.tenant, gang.id),
        "minimum": str(min_members(gang)),
        "size": str(max(len(gang.pods), min_members(gang))),
        "band": BAND_LOW if request.is_borrowed else BAND_GUARANTEED,
    }


# A gang is passed on as a whole while the pods of its tenant stay within the tenant's limit and the capacity of the
# pool, so that the tenant's scheduler can bind all of them to the virtual node. Other gangs wait in the tenant
# cluster. The external scheduler decides between the gangs of all tenants that were passed on.
_OVER_LIMIT: Final = "its start would exceed your limit of {amounts}"
_OVER_CAPACITY: Final = "together with your other pods of the pool, it would exceed {amounts}"
_INVALID: Final = Wait(
    PendingReason.ROOM, "the settings of the pool are invalid; an administrator sees why at the compute cluster"
)
_ABOVE_LIMIT: Final = "its pods request more than your limit of {amounts}"


class ImpliedAttempts:
    """Attempts of all gangs at an external scheduler in one cycle."""

    def __init__(self, given: ModeInput, splitter: GangSplitter, *, retry_seconds: float) -> None:
        self._given = given
        self._splitter = splitter
        self._retry_seconds = retry_seconds
        self._sizes = {pool.key: PoolSizes(pool, given.specs[pool.key]) for pool in given.snapshot.pools}
        self._invalid = {key for key in self._sizes if any(template_problems(given.specs[key]))}
        """Pools whose templates would make invalid pods."""
        self._sums = UsageSums(given.snapshot, given.specs)
        self._found: dict[str, Attempt] = {}

    def by_name(self) -> dict[str, Attempt]:
        """Return the attempts by name."""
        for gang in sorted(self._given.snapshot.gangs, key=_queue_order):
            if gang.tenant in self._given.known_tenants:
                self._add_gang(gang)
        return self._found

    def _add_gang(self, gang: Gang) -> None:
        part, surplus = self._splitter.split_gang(gang)
        breach = self._given.breaches.get(gang.id)
        if breach is not None and not part.holding and self._given.now < breach.last_pod + self._retry_seconds:
            return
        if part.request.pods and not self._add_core(part):
            return
        started = len(part.request.pods)
        for each in surplus:
            if gang.maximum is not None and started >= gang.maximum:
                return
            started += 1
            self._add(each, self._wait(gang, each.waiting))

    def _add_core(self, part: AttemptPods) -> bool:
        """Add the attempt of the pods that start as a whole; return whether it is admitted."""
        gang = part.request.gang
        if part.holding:
            self._add_running(part)
            return True
        if not part.is_complete:
            return False
        wait = self._infeasible(gang, part.waiting) or self._wait(gang, part.waiting)
        self._add(part, wait)
        return wait is None

    def _add_running(self, part: AttemptPods) -> None:
        """Add the attempt of a running gang. Missing pods start again one by one, as far as the limit allows."""
        gang, pods, alone = part.request.gang, list(part.holding), list[str]()
        for pod in part.waiting:
            wait = self._wait(gang, [pod])
            if wait is None:
                pods.append(pod)
                self._count_start(gang, [pod])
            else:
                name = attempt_name(gang.tenant, gang.id, pod.uid)
                self._found[name] = _attempt(name, gang, [pod], wait)
                alone.append(pod.uid)
        self._found[part.request.name] = _attempt(part.request.name, gang, pods, None)
        if alone:
            self._splitter.split_off(gang, alone)

    def _add(self, part: AttemptPods, wait: Wait | None) -> None:
        gang = part.request.gang
        self._found[part.request.name] = _attempt(part.request.name, gang, part.request.pods, wait)
        if wait is None:
            self._count_start(gang, part.waiting)

    def _count_start(self, gang: Gang, pods: Sequence[Pod]) -> None:
        borrowed = not self._sums.fits_guarantee(gang, pods)
        self._sums.count(gang.tenant, gang.pools[0], pods, borrowed=borrowed)

    def _wait(self, gang: Gang, pods: Sequence[Pod]) -> Wait | None:
        """Return why pods may not start now; None: they may."""
        if gang.pools[0] in self._invalid:
            return _INVALID
        if stopped := self._sums.budget_wait(gang, pods, self._given.now):
            return stopped
        if amounts := self._sums.over_limit(gang, pods):
            return Wait(PendingReason.QUOTA, _OVER_LIMIT.format(amounts=amounts))
        if amounts := self._sums.over(self._sizes[gang.pools[0]].usable, gang, pods):
            return Wait(PendingReason.ROOM, _OVER_CAPACITY.format(amounts=amounts))
        return None

    def _infeasible(self, gang: Gang, pods: Sequence[Pod]) -> Wait | None:
        """Return why pods cannot start, even if no other pod runs; None: they can."""
        if amounts := self._sums.above_limit(gang, pods):
            return Wait(PendingReason.INFEASIBLE, _ABOVE_LIMIT.format(amounts=amounts))
        if problem := self._sizes[gang.pools[0]].problem(pods):
            return Wait(PendingReason.INFEASIBLE, problem)
        return None


def _attempt(name: str, gang: Gang, pods: Iterable[Pod], wait: Wait | None) -> Attempt:
    """Return an attempt with a slot for each pod; with a wait, it is pending."""
    return Attempt(
        name=name,
        uid="",
        resource_version="",
        tenant=gang.tenant,
        pool=gang.pools[0],
        digest="",
        state=AttemptState.ADMITTED if wait is None else AttemptState.PENDING,
        created=gang.created,
        priority=gang.priority,
        slots={each.name: {"": each.count} for each in count_pod_sets(pods)} if wait is None else {},
        wait=wait,
        is_ready=True,
    )


def _queue_order(gang: Gang) -> tuple[bool, bool, int, float, str]:
    """Return the sort key by which gangs get the limits of their tenants: running gangs, then by rank and age."""
    return not _is_running(gang), gang.band is not GUARANTEED, -gang.priority, gang.created, gang.id


def _is_running(gang: Gang) -> bool:
    return any(pod.state is not WAITING for pod in gang.pods)


class PoolSizes:
    """Sizes of a pool in thousandths, without the resources that no node reports."""

    def __init__(self, pool: Pool, spec: PoolSpec) -> None:
        self._nodes = pool.nodes
        self._skip: Collection[str] = spec.passed_through
        self.usable = pool_capacity(pool, spec)
        """What the virtual node of a tenant without a limit offers."""
        self._whole = _whole_capacity(pool, spec)
        self._largest: dict[Shape, bool] = {}

    def problem(self, pods: Sequence[Pod]) -> str:
        """Return why pods do not fit an empty pool; empty: they do. A pool without nodes fits everything."""
        requested = sum_requests(pods, skip=self._skip)
        over = {name: size for name, size in self._whole.items() if requested.get(name, 0) > size}
        if over:
            return f"its pods request more than the pool has: {render_milli(over)}"
        if not all(self._fits_a_node(pod.shape) for pod in pods):
            return "one of its pods requests more than any node of the pool has"
        return ""

    def _fits_a_node(self, shape: Shape) -> bool:
        known = self._largest.get(shape)
        if known is None:
            requests = [(name, amount) for name, amount in shape.requests if name in self._whole]
            known = self._largest[shape] = not self._nodes or any(
                all(node.allocatable.get(name, 0) >= amount for name, amount in requests) for node in self._nodes
            )
        return known


def _whole_capacity(pool: Pool, spec: PoolSpec) -> MilliResources:
    """Return the sum of all nodes' resources; empty for a pool without nodes."""
    nodes = tuple(replace(node, usable=True, used={}) for node in pool.nodes)
    return pool_capacity(replace(pool, nodes=nodes), spec) if nodes else {}

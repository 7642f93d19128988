"""Attempts that the gangs of an external scheduler imply: which gangs are passed on, and why the others wait.

A gang is passed on as a whole while the pods of its tenant stay within the tenant's limit and the capacity of the pool,
so that the tenant's scheduler can bind all of them to the virtual node. Other gangs wait in the tenant cluster. The
external scheduler decides between the gangs of all tenants that were passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from vkgateway.api.templates import template_problems
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.external.pool_sizes import PoolSizes
from vkgateway.scheduler.backends.gang_split import AttemptPods, GangSplitter
from vkgateway.scheduler.backends.guarantee import UsageSums
from vkgateway.scheduler.backends.mode import ModeInput
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.pod_sets import count_pod_sets
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import GUARANTEED, WAITING, Gang, Pod

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

"""Pools whose gangs another scheduler than the arbiter admits: their part of a scheduling cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import structlog

from vkgateway.api.types import EXTERNAL, KUEUE, NATIVE, VOLCANO
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.link import ComputeLink
from vkgateway.kube.clock import Clock
from vkgateway.scheduler.backends.attempt import Attempt, Breach
from vkgateway.scheduler.backends.attempt_reconciler import AttemptReconciler
from vkgateway.scheduler.backends.attempts import plan_attempts
from vkgateway.scheduler.backends.breaches import Eviction, update_breaches
from vkgateway.scheduler.backends.external.kinds import NoReconciler
from vkgateway.scheduler.backends.external.mode import ExternalMode
from vkgateway.scheduler.backends.guarantee import guarantee_losses
from vkgateway.scheduler.backends.kueue.kinds import KUEUE_KINDS
from vkgateway.scheduler.backends.kueue.mode import KueueMode
from vkgateway.scheduler.backends.mode import ModeInput, ModeResult, SchedulingMode
from vkgateway.scheduler.backends.split import split_snapshot
from vkgateway.scheduler.backends.volcano.kinds import VOLCANO_KINDS
from vkgateway.scheduler.backends.volcano.mode import VolcanoMode
from vkgateway.scheduler.core.decisions import Decisions, GuaranteeLoss, PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import PodState, PoolKey, Snapshot

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitrated_tenants import ArbitratedTenants

log = structlog.get_logger(__name__)

_UNAVAILABLE: Final = "the scheduler of the pool does not answer; an administrator sees why at the compute cluster"

SchedulerKey = tuple[str, str]
"""A compute cluster, and the scheduling mode of some of its pools."""
PoolSpecs = Mapping[str, Iterable[PoolSpec]]
"""Pools by compute cluster, each with the scheduling mode in effect."""
ModeReconciler = AttemptReconciler[Any] | NoReconciler
"""Reconciler of the objects of one mode in one compute cluster."""


class ModeParts(NamedTuple):
    """A scheduling mode: its rules, and its reconciler."""

    rules: SchedulingMode
    reconciler: Callable[..., ModeReconciler]


MODES: Final[dict[str, ModeParts]] = {
    KUEUE: ModeParts(KueueMode(), partial(AttemptReconciler, KUEUE_KINDS)),
    VOLCANO: ModeParts(VolcanoMode(), partial(AttemptReconciler, VOLCANO_KINDS)),
    EXTERNAL: ModeParts(ExternalMode(), NoReconciler),
}
"""The scheduling modes other than native."""


@dataclass(frozen=True, slots=True)
class ModeCycle:
    """Input of all modes in one cycle. `plan` may run in another thread."""

    native: Snapshot
    """The arbiter's part of the snapshot."""
    inputs: Mapping[SchedulerKey, ModeInput]
    unsettled_tenants: frozenset[str] | None
    """Tenants whose quotas may not be known yet; None: any tenant."""
    holds: tuple[PendingReport, ...] = ()
    losses: tuple[GuaranteeLoss, ...] = ()
    """Guarantees that the nodes of these pools cannot hold."""

    def plan(self) -> dict[SchedulerKey, ModeResult]:
        """Return the results of all schedulers."""
        return {key: plan_attempts(MODES[key[1]].rules, given) for key, given in self.inputs.items()}


class PoolModes:
    """The schedulers of pools in other modes than native. Without such a pool, a cycle costs nothing here."""

    def __init__(self, tenants: ArbitratedTenants, *, on_change: Callable[[], None], clock: Clock) -> None:
        """Create them; `on_change` requests a cycle after a change of an attempt."""
        self._tenants = tenants
        self._on_change = on_change
        self._clock = clock
        self._specs: dict[PoolKey, PoolSpec] = {}
        self._reconcilers: dict[SchedulerKey, tuple[ModeReconciler, asyncio.Task[None]]] = {}
        self._preempted: dict[str, Eviction] = {}
        """Evictions by gang, as long as the gang's attempts are not known."""
        self._breaches: dict[SchedulerKey, dict[str, Breach]] = {}
        """By gang."""
        self.next_retry: float | None = None
        """When the first broken gang may start again (seconds since the epoch); None: no gang waits for that."""

    def is_foreign(self, pool: PoolKey) -> bool:
        """Return whether another scheduler than the arbiter admits the gangs of a pool."""
        return pool in self._specs

    def foreign_pools(self) -> frozenset[PoolKey]:
        """The pools of other schedulers."""
        return frozenset(self._specs)

    def unmanaged_pools(self) -> frozenset[PoolKey]:
        """The pools whose queues an administrator manages: guarantees have no effect there."""
        return frozenset(key for key, spec in self._specs.items() if not spec.scheduling.has_guarantees)

    def is_outdated(self, specs: PoolSpecs) -> bool:
        """Return whether pools of other schedulers changed since the last cycle."""
        return _foreign_specs(specs) != self._specs

    def update_pools(self, specs: PoolSpecs, links: Mapping[str, ComputeLink]) -> None:
        """Follow the pools and their compute clusters."""
        self._specs = _foreign_specs(specs)
        if not self._specs and not self._reconcilers:
            return
        wanted: dict[SchedulerKey, ComputeLink] = {
            (cluster, spec.scheduling.mode): links[cluster]
            for (cluster, _), spec in self._specs.items()
            if cluster in links
        }
        for key, (reconciler, task) in list(self._reconcilers.items()):
            if wanted.get(key) is not reconciler.link:
                task.cancel()
                del self._reconcilers[key]
        for key, link in wanted.items():
            if key not in self._reconcilers:
                self._reconcilers[key] = self._start(key, link)

    def _start(self, key: SchedulerKey, link: ComputeLink) -> tuple[ModeReconciler, asyncio.Task[None]]:
        reconciler = MODES[key[1]].reconciler(
            link,
            on_change=self._on_change,
            on_missing_namespace=lambda gang: self._tenants.request_namespace(gang, link.name),
            clock=self._clock,
        )
        task = asyncio.create_task(reconciler.run(), name=f"compute/{link.name}/{key[1]}")
        task.add_done_callback(lambda done: self._ended(key, done))
        return reconciler, task

    def _ended(self, key: SchedulerKey, task: asyncio.Task[None]) -> None:
        """Start a reconciler that failed because of a defect again, with the next cycle."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("reconciler of a scheduling mode failed", compute=key[0], mode=key[1], exc_info=error)
        known = self._reconcilers.get(key)
        if known is not None and known[1] is task:
            del self._reconcilers[key]

    async def close(self) -> None:
        """Stop all reconcilers."""
        tasks = [task for _, task in self._reconcilers.values()]
        self._reconcilers.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def begin_cycle(
        self, snapshot: Snapshot, *, expected: Callable[[], Iterable[str] | None], now: float
    ) -> ModeCycle | None:
        """Return the input of all modes; None: the arbiter schedules all pools.

        `expected` returns the names of all tenants that exist; None: unknown.
        """
        self.next_retry = None
        if not self._specs:
            return None
        split = split_snapshot(snapshot, self._specs.keys())
        self._preempted.update(self._tenants.take_preempted())
        inputs: dict[SchedulerKey, ModeInput] = {}
        holds: list[PendingReport] = []
        tenants, listed = self._tenants.known_names(), expected()
        names = tuple(listed) if listed is not None else None
        for key, pools in self._known_pools(split.foreign).items():
            part = _with_pools(split.foreign, pools)
            reconciler = self._known_reconciler(key)
            if reconciler is None:
                holds += _unavailable(part)
                continue
            attempts = reconciler.attempts()
            named = {attempt.tenant for attempt in attempts.values()}
            inputs[key] = ModeInput(
                snapshot=part,
                specs=self._specs,
                attempts=attempts,
                known_tenants=tenants,
                removed_tenants=_removed(named - tenants, names, reconciler.link),
                breaches=self._update_breaches(key, part, attempts, now=now),
                now=now,
            )
        settled = tenants & {quota.tenant for quota in snapshot.quotas}
        unsettled = frozenset(names) - settled if names is not None else None
        losses = tuple(guarantee_losses(split.foreign, self._specs))
        return ModeCycle(split.native, inputs, unsettled, tuple(holds), losses)

    def _update_breaches(
        self, key: SchedulerKey, part: Snapshot, attempts: Mapping[str, Attempt], *, now: float
    ) -> Mapping[str, Breach]:
        known, retry = self._breaches.get(key, {}), MODES[key[1]].rules.retry_seconds
        preempted = {gang: each.at for gang, each in self._preempted.items() if each.is_explained or key[1] == EXTERNAL}
        breaches = self._breaches[key] = update_breaches(
            known, part.gangs, attempts, preempted=preempted, retry_seconds=retry, now=now
        )
        for gang in part.gangs:
            self._preempted.pop(gang.id, None)
        due = (breach.last_pod + retry for breach in breaches.values())
        self.next_retry = min((at for at in (*due, self.next_retry) if at is not None and at > now), default=None)
        return breaches

    def _known_pools(self, foreign: Snapshot) -> dict[SchedulerKey, set[PoolKey]]:
        """Return the pools of each scheduler; those of unreachable clusters are missing."""
        found: dict[SchedulerKey, set[PoolKey]] = {}
        for pool in foreign.pools:
            found.setdefault((pool.key[0], self._specs[pool.key].scheduling.mode), set()).add(pool.key)
        return found

    def _known_reconciler(self, key: SchedulerKey) -> ModeReconciler | None:
        """Return a reconciler if all its attempts are known."""
        entry = self._reconcilers.get(key)
        return entry[0] if entry is not None and entry[0].is_known else None

    def finish_cycle(
        self, cycle: ModeCycle, results: Mapping[SchedulerKey, ModeResult], native: Decisions
    ) -> Decisions:
        """Pass the results on to the reconcilers, and return the decisions of the arbiter and of all modes."""
        for key, result in results.items():
            if (entry := self._reconcilers.get(key)) is not None:
                ready = tuple(self._ready_attempts(result))
                entry[0].apply(replace(result, ready=ready, unsettled_tenants=cycle.unsettled_tenants))
        found = [result.decisions for result in results.values()]
        return replace(
            native,
            admits=(*native.admits, *(each for one in found for each in one.admits)),
            evicts=(*native.evicts, *(each for one in found for each in one.evicts)),
            holds=(*native.holds, *(each for one in found for each in one.holds), *cycle.holds),
            losses=(*native.losses, *cycle.losses),
        )

    def _ready_attempts(self, result: ModeResult) -> Iterator[Attempt]:
        for started in result.started:
            if all(self._tenants.is_ready(started.attempt.tenant, uid) for uid in started.pods):
                yield started.attempt


def _foreign_specs(specs: PoolSpecs) -> dict[PoolKey, PoolSpec]:
    return {
        (cluster, spec.name): spec
        for cluster, pools in specs.items()
        for spec in pools
        if spec.scheduling.mode != NATIVE
    }


def _with_pools(foreign: Snapshot, keys: set[PoolKey]) -> Snapshot:
    """Return some pools of a snapshot, with their quotas and gangs."""
    return replace(
        foreign,
        pools=tuple(pool for pool in foreign.pools if pool.key in keys),
        quotas=tuple(quota for quota in foreign.quotas if quota.pool in keys),
        gangs=tuple(gang for gang in foreign.gangs if gang.pools[0] in keys),
    )


def _unavailable(part: Snapshot) -> list[PendingReport]:
    return [
        PendingReport(gang=gang.id, code=PendingReason.ROOM, message=_UNAVAILABLE, pool=gang.pools[0])
        for gang in part.gangs
        if any(pod.state is PodState.WAITING for pod in gang.pods)
    ]


def _removed(named: Iterable[str], expected: Iterable[str] | None, link: ComputeLink) -> frozenset[str]:
    """Return which named tenants do not exist any more and have no pods in the cluster."""
    if expected is None:
        return frozenset()
    gone = set(named) - set(expected)
    return frozenset(name for name in gone if next(iter(link.pods.of_tenant(name)), None) is None)

"""Runs the arbiter's scheduling cycles whenever something changed, and dispatches the decisions to the tenants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from vkgateway.clusters.compute_clusters import ComputeClusters
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.runtime.metrics import DEFECT, RETRIES
from vkgateway.runtime.views.pods import ComputePodView
from vkgateway.scheduler.backends.pool_modes import PoolModes
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.outcome import apply_decisions
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import Policy, Pool, PoolKey, PreemptionPlan, Snapshot
from vkgateway.scheduler.service.accounting import PodRun
from vkgateway.scheduler.service.arbitrated_tenants import ArbitratedTenants
from vkgateway.scheduler.service.cluster_cache import ClusterCaches
from vkgateway.scheduler.service.decisionlog import Journal
from vkgateway.scheduler.service.gang_builder import EvictionTerms
from vkgateway.scheduler.service.metrics import forget_tenant
from vkgateway.scheduler.service.snapshots import StoppedBorrowing, build_snapshot
from vkgateway.scheduler.service.start_meter import StartMeter
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

if TYPE_CHECKING:
    from vkgateway.scheduler.core.cache import Cache

log = structlog.get_logger(__name__)

Decide = Callable[[Snapshot, float], Decisions]
ObserveShares = Callable[[Snapshot, float], tuple[PastShare, ...]]
"""Returns the past shares at a snapshot and time, and counts the snapshot's usage from then on."""

_START_TIMEOUT: Final = 20.0
"""Seconds after the start within which the first cycle waits for the pods of every expected tenant."""
_REFRESH: Final = 30.0
"""Seconds between two cycles without a change, while gangs are pending."""
_AFTER_DEFECT: Final = 5.0
"""Seconds after which a failed cycle is retried."""
_REST_RATIO: Final = 0.5
"""Part of a cycle's duration that passes before the next cycle, so that the rest of the gateway gets CPU time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArbitrationSettings:
    """Settings of the arbitration; times in seconds."""

    policy: Policy = field(default_factory=Policy)
    notice: float = 30.0
    grace_max: float = 120.0
    gather: float = 0.05
    minimum_run: float = 0.0
    bind_timeout: float = 60.0
    """Time after which a compute pod that its node has not accepted is reverted and placed again."""
    unplaced_delay: float = 1.0
    """Time after which a change in the usage of pods that the arbiter does not place starts a cycle."""


class CycleObserver(Protocol):
    """Observer of scheduling cycles and of the ends of pods."""

    def log_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        """Log a cycle after its dispatch, in a separate thread; `snapshot` is None if too many cycles wait."""

    def cycle_decided(self, snapshot: Snapshot, decisions: Decisions, *, now: float, seconds: float) -> None:
        """Observe a finished cycle; `seconds` is the duration of the decision."""

    def pod_ended(self, tenant: str, ran: PodRun) -> None:
        """Observe the end of a pod that ran."""


class CycleTrigger:
    """Request for the next scheduling cycle: at once, or by a timer."""

    def __init__(self) -> None:
        self._is_set = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def due_at(self) -> float | None:
        """Time of the event loop at which the timer requests a cycle; None: no timer is set."""
        return self._timer.when() if self._timer is not None else None

    async def wait(self, *, gather: float) -> None:
        """Wait for a request, and some seconds for further changes; then accept the next request."""
        await self._is_set.wait()
        await asyncio.sleep(gather)
        self._is_set.clear()

    def set(self) -> None:
        """Request a cycle now."""
        self._is_set.set()

    def set_within(self, seconds: float) -> None:
        """Request a cycle within a number of seconds."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._on_timer)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self) -> None:
        self._timer = None
        self.set()


class Arbitration:
    """Arbitration of the governed pods of all tenants in all compute clusters.

    The first cycle waits until the pods of all `expected_tenants` (None while unknown) are known, or until some seconds
    have passed. `notices_ended` is called after each cycle without pods under notice: the clock may be set then.
    `stopped_borrowing` returns the resources that new pods of a tenant may not borrow in a pool: their budget is used
    up. Another thread calls `observe_shares` with the snapshot of a cycle, and with its outcome.
    """

    def __init__(
        self,
        settings: ArbitrationSettings,
        clusters: ComputeClusters,
        *,
        tenants: ArbitratedTenants,
        modes: PoolModes,
        cycle_trigger: CycleTrigger,
        expected_tenants: Callable[[], Iterable[str] | None],
        notices_ended: Callable[[], None] = lambda: None,
        observer: CycleObserver | None = None,
        stopped_borrowing: StoppedBorrowing = lambda _tenant, _pool: {},
        observe_shares: ObserveShares = lambda _snapshot, _now: (),
        clock: Clock = SYSTEM_CLOCK,
        decide: Decide | None = None,
    ) -> None:
        self.settings = settings
        self.bind_timeout = settings.bind_timeout
        self._clusters = clusters
        self._expected_tenants = expected_tenants
        self._notices_ended = notices_ended
        self._observer = observer
        self._journal = Journal(observer.log_cycle) if observer is not None else None
        self.clock = clock
        """Time of day by which notices run."""
        self._decide = decide or incremental_decide()
        self.start_meter = StartMeter()
        self.tenants = tenants
        self._caches = ClusterCaches(self.tenants, self)
        self.cycle_trigger = cycle_trigger
        self.modes = modes
        self._plans: Mapping[str, PreemptionPlan] = {}
        self._has_pending = True
        """Whether gangs are pending, or may be: then released capacity starts a cycle soon."""
        self._started = False
        self._stopped_borrowing = stopped_borrowing
        self._observe_shares = observe_shares
        self.waiting_since: float | None = None
        """Since when the first cycle waits for clusters and tenants; None: no cycle was requested."""

    def add_tenant(self, tenant: TenantAdmission) -> None:
        """Include a tenant in the cycles from now on."""
        self.tenants.by_name[tenant.name] = tenant
        self.trigger()

    def remove_tenant(self, name: str) -> None:
        """Exclude a tenant; the capacity of its compute pods counts as used until they are deleted."""
        forget_tenant(name)
        self.start_meter.forget_tenant(name)
        if self.tenants.by_name.pop(name, None) is not None:
            self._caches.recount_tenant(name)
        self.trigger()

    def trigger(self) -> None:
        """Request a cycle soon, because something changed."""
        self.cycle_trigger.set()

    def eviction_terms(self, pool: PoolKey | None) -> EvictionTerms:
        """Return the terms of evictions from a pool."""
        settings = self.settings
        known = (
            ()
            if pool is None
            else (spec for spec in self._clusters.pool_specs().get(pool[0], ()) if spec.name == pool[1])
        )
        spec = next(iter(known), None)
        notice = settings.notice if spec is None or spec.notice_seconds is None else float(spec.notice_seconds)
        grace = settings.grace_max if spec is None or spec.grace_seconds is None else float(spec.grace_seconds)
        if spec is None or spec.brief_run_seconds is None or spec.brief_notice_seconds is None:
            return EvictionTerms(notice, grace, settings.minimum_run)
        brief_run, brief_notice = float(spec.brief_run_seconds), min(notice, float(spec.brief_notice_seconds))
        return EvictionTerms(notice, grace, settings.minimum_run, brief_run=brief_run, brief_notice=brief_notice)

    def recount_pod(self, pod: ComputePodView, cluster: str) -> None:
        """Count a compute pod's usage again, after its tenant pod was read or forgotten."""
        if cluster in self._caches.by_name:
            self._caches.by_name[cluster].recount_pod(pod)

    def pod_ended(self, tenant: str, ran: PodRun) -> None:
        """Pass the end of a pod that ran to the observer."""
        if self._observer is not None:
            self._observer.pod_ended(tenant, ran)

    def is_foreign(self, pool: PoolKey) -> bool:
        """Return whether another scheduler than the arbiter admits the gangs of a pool."""
        return self.modes.is_foreign(pool)

    def avoid_node(self, cluster: str, node: str) -> bool:
        """Exclude a node from placement for a while, because it did not accept a pod.

        Return False if too many nodes are excluded: then the cause is whatever binds pods there, and not the nodes.
        """
        cache = self._caches.by_name.get(cluster)
        return cache is not None and cache.avoid_node(node, until=self.clock.time() + 5 * self.bind_timeout)

    def record_failure(self, cluster: str, node: str, gang: str) -> None:
        """Record that a container of a gang's pod ended with an error on a node."""
        cache = self._caches.by_name.get(cluster)
        if cache is not None:
            cache.node_failures.record_failure(node, gang, self.clock.time())

    async def run(self) -> None:
        """Run cycles until cancelled."""
        try:
            while True:
                await self.cycle_trigger.wait(gather=self.settings.gather)
                if self._is_ready():
                    await self._try_cycle()
        finally:
            self.cycle_trigger.close()
            self._caches.close()
            await self.modes.close()
            await self.finish_journal()

    async def finish_journal(self) -> None:
        """Wait until all decisions are logged. Later ones are not logged, because they are not carried out."""
        if self._journal is not None:
            await self._journal.finish()

    async def _try_cycle(self) -> None:
        """Run one cycle. An unexpected error is logged and the cycle retried, so that the rest of the gateway keeps
        running.
        """
        try:
            await self._run_cycle()
        except Exception:
            log.exception("scheduling cycle failed; it is retried")
            RETRIES.labels(DEFECT).inc()
            self.cycle_trigger.set_within(_AFTER_DEFECT)

    def _is_ready(self) -> bool:
        """Return whether enough is known for a cycle. At a start, partly read gangs must not count as incomplete."""
        self._caches.set_links(self._clusters.links)
        self.modes.update_pools(self._clusters.pool_specs(), self._clusters.links)
        if self._started:
            return True
        now = self.clock.time()
        self.waiting_since = now if self.waiting_since is None else self.waiting_since
        timed_out = now - self.waiting_since >= _START_TIMEOUT
        expected = self._expected_tenants()
        known = expected is not None and self._caches.are_known and self.tenants.are_known(expected)
        if known or timed_out:
            self._started = True
            log.info("first scheduling cycle", tenants=len(self.tenants.by_name), everything_known=known)
        else:
            self.cycle_trigger.set_within(0.25)
        return self._started

    async def _run_cycle(self) -> None:
        now = self.clock.time()
        snapshot, unjudged_reports = build_snapshot(
            self.tenants.by_name,
            self._caches.by_name,
            self._clusters.pool_specs(),
            plans=self._plans,
            policy=self.settings.policy,
            stopped=self._stopped_borrowing,
            now=now,
        )
        if self.settings.policy.half_life:
            snapshot = replace(snapshot, past_shares=await asyncio.to_thread(self._observe_shares, snapshot, now))
        modes = self.modes.begin_cycle(snapshot, expected=self._expected_tenants, now=now)
        native = snapshot if modes is None else modes.native
        begun = time.perf_counter()
        decisions = await asyncio.to_thread(self._decide, native, now)
        seconds = time.perf_counter() - begun
        all_decisions = replace(decisions, holds=(*decisions.holds, *unjudged_reports))
        if modes is not None:
            results = await asyncio.to_thread(modes.plan)
            all_decisions = self.modes.finish_cycle(modes, results, all_decisions)
        self._plans = all_decisions.plans
        self.tenants.dispatch_decisions(all_decisions, snapshot, now=now)
        self.start_meter.cycle_decided(
            {gang.id: gang for gang in snapshot.gangs}, all_decisions, at=now, now=self.clock.time()
        )
        if self._observer is not None:
            self._observer.cycle_decided(snapshot, all_decisions, now=now, seconds=seconds)
        if self._journal is not None:
            self._journal.add_cycle(native, decisions, now)
        if self.settings.policy.half_life:
            await asyncio.to_thread(self._observe_outcome, snapshot, all_decisions, now)
        self._has_pending = bool(all_decisions.holds or all_decisions.plans)
        if not all_decisions.evicts and not self.tenants.has_notices:
            self._notices_ended()
        self._set_timer(all_decisions, self.clock.time())
        await asyncio.sleep(seconds * _REST_RATIO)

    def _observe_outcome(self, snapshot: Snapshot, decisions: Decisions, now: float) -> None:
        """Let what starts now count from now on, however long the next cycle takes to come."""
        self._observe_shares(apply_decisions(snapshot, decisions, now), now)

    def _set_timer(self, decisions: Decisions, now: float) -> None:
        times = self.tenants.next_deadline(), self.modes.next_retry, decisions.next_notice
        due = min((at for at in times if at is not None), default=None)
        wait = None if due is None else max(0.01, due - now + 0.01)
        if decisions.holds:
            wait = min(_REFRESH, _REFRESH if wait is None else wait)
        if wait is not None:
            self.cycle_trigger.set_within(wait)

    def trigger_later(self) -> None:
        """Request a cycle after a while; later if no gang is pending."""
        self.cycle_trigger.set_within(self.settings.unplaced_delay if self._has_pending else _REFRESH)


def incremental_decide() -> Decide:
    """Return a `decide` function that reuses what did not change since its last call.

    The arbiter is loaded for the first gang, or for a guarantee that must be reduced: it imports numpy, for which the
    start of the gateway should not wait.
    """
    carry: Cache | None = None

    def decide(snapshot: Snapshot, now: float) -> Decisions:
        nonlocal carry
        if carry is None and not snapshot.gangs and all(_covers_guarantees(pool, snapshot) for pool in snapshot.pools):
            return Decisions()
        from vkgateway.scheduler.core import cycle
        from vkgateway.scheduler.core.cache import Cache

        carry = carry or Cache()
        return cycle.decide(snapshot, now, carry)

    return decide


def _covers_guarantees(pool: Pool, snapshot: Snapshot) -> bool:
    """Return whether all nodes of the pools are available and the guarantees fit into what other pods leave."""
    guaranteed = sum(quota.guarantee.get(pool.unit_resource, 0) for quota in snapshot.quotas if quota.pool == pool.key)
    left = sum(
        node.allocatable.get(pool.unit_resource, 0) - node.used.get(pool.unit_resource, 0) for node in pool.nodes
    )
    return all(node.usable for node in pool.nodes) and guaranteed <= left

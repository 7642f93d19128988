"""Runs the arbiter's scheduling cycles whenever something changed, and dispatches the decisions to the tenants."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.snapshot import Policy, PoolKey, PreemptionPlan, Shape, Snapshot
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.sync.admission.cluster_cache import ClusterCache
from vkgateway.sync.admission.deciding import Decide, incremental_decide
from vkgateway.sync.admission.dispatch import dispatch_decisions
from vkgateway.sync.admission.gangs import EvictionTerms
from vkgateway.sync.admission.journal import Journal
from vkgateway.sync.admission.snapshots import build_snapshot
from vkgateway.sync.admission.start_meter import StartMeter
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.admission.verdict_store import PodRun
from vkgateway.sync.arbiter_metrics import forget_tenant
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.metrics import RETRIES
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import ComputePodView

log = structlog.get_logger(__name__)

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


class Platform(Protocol):
    """The compute clusters, pools and tenants that the arbiter arbitrates."""

    @property
    def links(self) -> Mapping[str, ComputeLink]:
        """The connected compute clusters by name."""

    def pool_specs(self) -> Mapping[str, Iterable[PoolSpec]]:
        """Return the pools of each compute cluster."""

    def expected_tenants(self) -> Iterable[str] | None:
        """Return the tenants whose pods must be known before the first cycle; None while that is not known."""

    def notices_ended(self) -> None:
        """Called after each cycle without pods under notice: the clock may be set then."""


class Arbitration:
    """Arbitration of the governed pods of all tenants in all compute clusters.

    The first cycle waits until the pods of all expected tenants are known, or until some seconds have passed.
    """

    def __init__(
        self,
        settings: ArbitrationSettings,
        platform: Platform,
        *,
        observer: CycleObserver | None = None,
        clock: Clock = SYSTEM_CLOCK,
        decide: Decide | None = None,
    ) -> None:
        self.settings = settings
        self._platform = platform
        self._observer = observer
        self._journal = Journal(observer.log_cycle) if observer is not None else None
        self.clock = clock
        """Time of day by which notices run."""
        self._decide = decide or incremental_decide()
        self.start_meter = StartMeter()
        self._tenants: dict[str, TenantAdmission] = {}
        self._clusters: dict[str, ClusterCache] = {}
        self._plans: Mapping[str, PreemptionPlan] = {}
        self._triggered = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._has_pending = True
        """Whether gangs are pending, or may be: then released capacity starts a cycle soon."""
        self._started = False
        self._started_at: float | None = None

    @property
    def bind_timeout(self) -> float:
        """Seconds after which a compute pod that its node has not accepted is reverted."""
        return self.settings.bind_timeout

    def add_tenant(self, tenant: TenantAdmission) -> None:
        """Include a tenant in the cycles from now on."""
        self._tenants[tenant.name] = tenant
        self.trigger()

    def remove_tenant(self, name: str) -> None:
        """Exclude a tenant; the capacity of its compute pods counts as used until they are deleted."""
        forget_tenant(name)
        tenant = self._tenants.pop(name, None)
        if tenant is not None:
            for cluster in self._clusters.values():
                for pod in cluster.link.pods.of_tenant(name):
                    cluster.recount_pod(pod)
        self.trigger()

    def trigger(self) -> None:
        """Request a cycle soon, because something changed."""
        self._triggered.set()

    def pod_names(self) -> dict[str, Key]:
        """Return namespaces and names of all members by UID. May be called from another thread."""
        return {member.uid: member.key for tenant in list(self._tenants.values()) for member in tenant.gangs}

    def eviction_terms(self, pool: PoolKey | None) -> EvictionTerms:
        """Return the terms of evictions from a pool."""
        settings = self.settings
        known = (
            ()
            if pool is None
            else (spec for spec in self._platform.pool_specs().get(pool[0], ()) if spec.name == pool[1])
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
        if cluster in self._clusters:
            self._clusters[cluster].recount_pod(pod)

    def pod_ended(self, tenant: str, ran: PodRun) -> None:
        """Pass the end of a pod that ran to the observer."""
        if self._observer is not None:
            self._observer.pod_ended(tenant, ran)

    def avoid_node(self, cluster: str, node: str) -> bool:
        """Exclude a node from placement for a while, because it did not accept a pod.

        Return False if too many nodes are excluded: then the cause is whatever binds pods there, and not the nodes.
        """
        cache = self._clusters.get(cluster)
        return cache is not None and cache.avoid_node(node, until=self.clock.time() + 5 * self.settings.bind_timeout)

    async def run(self) -> None:
        """Run cycles until cancelled."""
        try:
            while True:
                await self._triggered.wait()
                await asyncio.sleep(self.settings.gather)
                self._triggered.clear()
                if self._is_ready():
                    await self._try_cycle()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for cluster in self._clusters.values():
                cluster.close()
            if self._journal is not None:
                await self._journal.close()

    async def _try_cycle(self) -> None:
        """Run one cycle. An unexpected error is logged and the cycle retried, so that the rest of the gateway keeps
        running.
        """
        try:
            await self._run_cycle()
        except Exception:
            log.exception("scheduling cycle failed; it is retried")
            RETRIES.labels("defect").inc()
            self._trigger_within(_AFTER_DEFECT)

    def _is_ready(self) -> bool:
        """Return whether enough is known for a cycle. At a start, partly read gangs must not count as incomplete."""
        self._sync_clusters()
        if self._started:
            return True
        now = self.clock.time()
        self._started_at = now if self._started_at is None else self._started_at
        timed_out = now - self._started_at >= _START_TIMEOUT
        expected = self._platform.expected_tenants()
        known = (
            expected is not None
            and all(cluster.is_known for cluster in self._clusters.values())
            and all(name in self._tenants and self._tenants[name].is_known for name in expected)
        )
        if known or timed_out:
            self._started = True
            log.info("first scheduling cycle", tenants=len(self._tenants), everything_known=known)
        else:
            self._trigger_within(0.25)
        return self._started

    def _sync_clusters(self) -> None:
        links = self._platform.links
        for name in [name for name, cache in self._clusters.items() if links.get(name) is not cache.link]:
            self._clusters.pop(name).close()
        for name, link in links.items():
            if name not in self._clusters:
                self._clusters[name] = ClusterCache(link, self)

    def cluster_returned(self, cluster: str) -> None:
        """Postpone evictions in a cluster that is reachable again, so that they are decided once more."""
        for tenant in self._tenants.values():
            tenant.postpone_evictions(cluster)

    def is_member(self, tenant: str, uid: str) -> bool:
        """See `ClusterOwner`."""
        known = self._tenants.get(tenant)
        return known is not None and known.is_governed_pod(uid)

    def shape_of(self, tenant: str, uid: str) -> Shape | None:
        """See `ClusterOwner`."""
        known = self._tenants.get(tenant)
        member = known.gangs.find_member(uid) if known is not None else None
        return member.shape if member is not None and member.governed else None

    async def _run_cycle(self) -> None:
        now = self.clock.time()
        snapshot, unjudged_reports = build_snapshot(
            self._tenants,
            self._clusters,
            self._platform.pool_specs(),
            plans=self._plans,
            policy=self.settings.policy,
            now=now,
        )
        begun = time.perf_counter()
        decisions = await asyncio.to_thread(self._decide, snapshot, now)
        seconds = time.perf_counter() - begun
        all_decisions = replace(decisions, holds=(*decisions.holds, *unjudged_reports))
        self._plans = all_decisions.plans
        dispatch_decisions(all_decisions, snapshot, self._tenants, now=now)
        self.start_meter.cycle_decided(
            {gang.id: gang for gang in snapshot.gangs}, all_decisions, at=now, now=self.clock.time()
        )
        if self._observer is not None:
            self._observer.cycle_decided(snapshot, all_decisions, now=now, seconds=seconds)
        if self._journal is not None:
            self._journal.add_cycle(snapshot, decisions, now)
        self._has_pending = bool(all_decisions.holds or all_decisions.plans)
        if not all_decisions.evicts and not any(one.has_notices for one in self._tenants.values()):
            self._platform.notices_ended()
        self._set_timer(all_decisions, self.clock.time())
        await asyncio.sleep(seconds * _REST_RATIO)

    def _set_timer(self, decisions: Decisions, now: float) -> None:
        times = [tenant.next_deadline() for tenant in self._tenants.values()]
        due = min((time for time in times if time is not None), default=None)
        wait = None if due is None else max(0.01, due - now + 0.01)
        if decisions.holds:
            wait = min(_REFRESH, _REFRESH if wait is None else wait)
        if wait is not None:
            self._trigger_within(wait)

    def trigger_later(self) -> None:
        """Request a cycle after a while; later if no gang is pending."""
        self._trigger_within(self.settings.unplaced_delay if self._has_pending else _REFRESH)

    def _trigger_within(self, seconds: float) -> None:
        """Request a cycle within a number of seconds."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.trigger()

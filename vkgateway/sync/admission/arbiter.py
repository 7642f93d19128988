"""Asks the arbiter again whenever something changed, and carries its answers to the tenants' pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Plan, Policy, PoolKey, Shape, Snapshot
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.sync.admission.answers import carry_out
from vkgateway.sync.admission.cluster import ClusterFacts
from vkgateway.sync.admission.deciding import Decide, incremental
from vkgateway.sync.admission.gangs import Bounds
from vkgateway.sync.admission.journal import Journal
from vkgateway.sync.admission.snapshots import snapshot_of
from vkgateway.sync.admission.startmeter import StartMeter
from vkgateway.sync.admission.tenant import TenantAdmission
from vkgateway.sync.admission.verdicts import Ran
from vkgateway.sync.arbiter_metrics import forget
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.metrics import RETRIES
from vkgateway.sync.pods.views import ComputePodView

log = structlog.get_logger(__name__)

_PATIENCE: Final = 20.0
"""Seconds after a start for which it is waited until every tenant's pods are known."""
_REFRESH: Final = 30.0
"""Seconds between two looks where nothing happens but time, as long as something waits."""
_AFTER_DEFECT: Final = 5.0
"""Seconds after which it is tried again where a cycle failed."""
_REST: Final = 0.5
"""Part of a cycle's time that is rested after it: the rest of the gateway wants to live, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Rules of the platform; times in seconds."""

    policy: Policy = field(default_factory=Policy)
    notice: float = 30.0
    grace_max: float = 120.0
    gather: float = 0.05
    minimum_run: float = 0.0
    bind: float = 60.0
    """A compute pod that its node has not taken for so long is taken back, and planned again."""
    later: float = 1.0
    """After so long it is looked at what pods that the arbiter does not place hold on nodes."""


class Observer(Protocol):
    """Hears of each cycle, and of pods that have ended."""

    def log(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        """Write a cycle down; called in a thread of its own, after it was carried out. None: without its facts."""

    def decided(self, snapshot: Snapshot, decisions: Decisions, *, now: float, seconds: float) -> None:
        """A cycle is done; `seconds` is what deciding took."""

    def ended(self, tenant: str, ran: Ran) -> None:
        """A pod that ran has ended."""


class Arbitration:
    """All tenants' governed pods in all compute clusters.

    `links` and `specs` tell the compute clusters and their pools as they are now, by name. `expected` names the
    tenants that will come, or none at all while that is not known: until they are known, or some seconds have passed,
    nothing is decided. `calm` is called after each cycle while nobody is under notice: then the clock may be set.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        links: Callable[[], Mapping[str, ComputeLink]],
        specs: Callable[[], Mapping[str, Iterable[PoolSpec]]],
        expected: Callable[[], Iterable[str] | None] = tuple,
        observer: Observer | None = None,
        clock: Callable[[], float] = time.time,
        calm: Callable[[], None] | None = None,
        decide: Decide | None = None,
    ) -> None:
        self.settings = settings
        self._links = links
        self._specs = specs
        self._expected = expected
        self._observer = observer
        self._journal = Journal(observer.log) if observer is not None else None
        self.clock = clock
        """The time by which notices run."""
        self._calm = calm
        self._decide = decide or incremental()
        self.meter = StartMeter()
        self._tenants: dict[str, TenantAdmission] = {}
        self._clusters: dict[str, ClusterFacts] = {}
        self._plans: Mapping[str, Plan] = {}
        self._news = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = True
        """Something waits, or may: what others give up is news."""
        self._started = False
        self._begun: float | None = None

    @property
    def bind_seconds(self) -> float:
        """Seconds after which a compute pod that its node has not taken is taken back."""
        return self.settings.bind

    def add(self, tenant: TenantAdmission) -> None:
        """Arbitrate for a tenant from now on."""
        self._tenants[tenant.name] = tenant
        self.poke()

    def remove(self, name: str) -> None:
        """Do so no longer; what it has below counts as taken until it is gone."""
        forget(name)
        tenant = self._tenants.pop(name, None)
        if tenant is not None:
            for cluster in self._clusters.values():
                for pod in cluster.link.pods.of(name):
                    cluster.recount(pod)
        self.poke()

    def poke(self) -> None:
        """Something changed: decide again soon."""
        self._news.set()

    def names(self) -> dict[str, Key]:
        """Namespaces and names of all pods that take part, by uid; may be called from another thread."""
        return {member.uid: member.key for tenant in list(self._tenants.values()) for member in tenant.gangs}

    def bounds(self, pool: PoolKey | None) -> Bounds:
        """How those who are evicted from a pool are treated."""
        settings = self.settings
        known = () if pool is None else (spec for spec in self._specs().get(pool[0], ()) if spec.name == pool[1])
        spec = next(iter(known), None)
        notice = settings.notice if spec is None or spec.notice_seconds is None else float(spec.notice_seconds)
        grace = settings.grace_max if spec is None or spec.grace_seconds is None else float(spec.grace_seconds)
        if spec is None or spec.brief_run_seconds is None or spec.brief_notice_seconds is None:
            return Bounds(notice, grace, settings.minimum_run)
        brief_run, brief_notice = float(spec.brief_run_seconds), min(notice, float(spec.brief_notice_seconds))
        return Bounds(notice, grace, settings.minimum_run, brief_run=brief_run, brief_notice=brief_notice)

    def recount(self, pod: ComputePodView, cluster: str) -> None:
        """Look again at whose burden a pod is below: it was read, or forgotten."""
        if cluster in self._clusters:
            self._clusters[cluster].recount(pod)

    def ended(self, tenant: str, ran: Ran) -> None:
        """A pod that ran has ended."""
        if self._observer is not None:
            self._observer.ended(tenant, ran)

    def avoid(self, cluster: str, node: str) -> bool:
        """Leave a node alone for a while: it did not take a pod that was placed on it.

        False: so many do not that it is no fault of the nodes: what binds pods there is away.
        """
        facts = self._clusters.get(cluster)
        return facts is not None and facts.avoid(node, until=self.clock() + 5 * self.settings.bind)

    async def run(self) -> None:
        """Decide until cancelled."""
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(self.settings.gather)
                self._news.clear()
                if self._ready():
                    await self._try()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for cluster in self._clusters.values():
                cluster.close()
            if self._journal is not None:
                await self._journal.close()

    async def _try(self) -> None:
        """One cycle; a defect in it must not take the rest of the gateway along, and perhaps passes with its cause."""
        try:
            await self._cycle()
        except Exception:
            log.exception("nothing could be decided; it is tried again")
            RETRIES.labels("defect").inc()
            self._look_again(_AFTER_DEFECT)

    def _ready(self) -> bool:
        """Whether enough is known; at a start a gang that is half read must not be taken for half there."""
        self._follow_links()
        if self._started:
            return True
        now = self.clock()
        self._begun = now if self._begun is None else self._begun
        waited = now - self._begun >= _PATIENCE
        expected = self._expected()
        known = (
            expected is not None
            and all(cluster.known for cluster in self._clusters.values())
            and all(name in self._tenants and self._tenants[name].known for name in expected)
        )
        if known or waited:
            self._started = True
            log.info("the arbiter begins", tenants=len(self._tenants), everything_known=known)
        else:
            self._look_again(0.25)
        return self._started

    def _follow_links(self) -> None:
        links = self._links()
        for name in [name for name, facts in self._clusters.items() if links.get(name) is not facts.link]:
            self._clusters.pop(name).close()
        for name, link in links.items():
            if name not in self._clusters:
                self._clusters[name] = ClusterFacts(
                    link,
                    is_member=self._is_member,
                    shape_of=self._shape_of,
                    poke=self.poke,
                    poke_later=self._poke_later,
                    is_back=self._is_back,
                )

    def _is_back(self, cluster: str) -> None:
        """A cluster answers again: who was to leave it meanwhile is judged once more before it has to."""
        for tenant in self._tenants.values():
            tenant.put_off(cluster)

    def _is_member(self, tenant: str, uid: str) -> bool:
        known = self._tenants.get(tenant)
        return known is not None and known.places(uid)

    def _shape_of(self, tenant: str, uid: str) -> Shape | None:
        known = self._tenants.get(tenant)
        member = known.gangs.member(uid) if known is not None else None
        return member.shape if member is not None and member.governed else None

    async def _cycle(self) -> None:
        now = self.clock()
        snapshot, unjudged = snapshot_of(
            self._tenants, self._clusters, self._specs(), plans=self._plans, policy=self.settings.policy, now=now
        )
        begun = time.perf_counter()
        decisions = await asyncio.to_thread(self._decide, snapshot, now)
        seconds = time.perf_counter() - begun
        told = replace(decisions, holds=(*decisions.holds, *unjudged))
        self._plans = told.plans
        carry_out(told, snapshot, self._tenants, now=now)
        self.meter.decided({gang.id: gang for gang in snapshot.gangs}, told, at=now, now=self.clock())
        if self._observer is not None:
            self._observer.decided(snapshot, told, now=now, seconds=seconds)
        if self._journal is not None:
            self._journal.add(snapshot, decisions, now)
        self._waiting = bool(told.holds or told.plans)
        if self._calm is not None and not told.evicts and not any(one.under_notice for one in self._tenants.values()):
            self._calm()
        self._set_timer(told, self.clock())
        await asyncio.sleep(seconds * _REST)

    def _set_timer(self, decisions: Decisions, now: float) -> None:
        times = [tenant.next_deadline() for tenant in self._tenants.values()]
        due = min((time for time in times if time is not None), default=None)
        wait = None if due is None else max(0.01, due - now + 0.01)
        if decisions.holds:
            wait = min(_REFRESH, _REFRESH if wait is None else wait)
        if wait is not None:
            self._look_again(wait)

    def _poke_later(self) -> None:
        """Something changed that need not be looked at at once, and where nothing waits not soon."""
        self._look_again(self.settings.later if self._waiting else _REFRESH)

    def _look_again(self, seconds: float) -> None:
        """Decide again in so many seconds at the latest."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            if self._timer.when() <= loop.time() + seconds:
                return
            self._timer.cancel()
        self._timer = loop.call_later(seconds, self._timed)

    def _timed(self) -> None:
        self._timer = None
        self.poke()

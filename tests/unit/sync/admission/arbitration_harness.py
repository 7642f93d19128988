"""Arbitration over one compute cluster without servers, for unit tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.fakes.clock import EPOCH, FakeClock
from tests.support.waiting import let_pass, wait_until
from tests.unit.background import in_background
from tests.unit.sync.admission.samples import (
    GPU,
    NOBODY,
    TENANT,
    PodStores,
    make_member,
    tenant_view,
)
from tests.unit.sync.scopes import make_arbitration, tenant_scope
from vkgateway.api.objects import Condition, Meta, NodeImage, NodeStatusView, NodeView
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.unmanaged_pods import UnmanagedPodView, decode_unmanaged_pod
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.queueing.admission import AdmissionState
from vkgateway.scheduler.core.snapshot import PoolKey, Snapshot
from vkgateway.scheduler.service.arbitration import Arbitration, ArbitrationSettings, Decide, ObserveShares
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.member import GangMember
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

GANG = f"{TENANT}/default/pod/u1"
SPEC = PoolSpec(name="a100")


def make_node(name: str = "host-1", *images: str) -> NodeView:
    return NodeView(
        metadata=Meta(name=name),
        status=NodeStatusView(
            allocatable={GPU: "8"},
            conditions=(Condition(type="Ready", status="True"),),
            images=tuple(NodeImage(names=(image,)) for image in images),
        ),
    )


def complete_lists(link: ComputeLink) -> None:
    """Mark all lists as complete and the cluster as reachable."""
    link.reachability.is_reachable = True
    for reflector in (link.pods, link.namespaces, link.nodes, link.unmanaged_pods, *link.copies.values()):
        reflector.state.complete_event.set()  # type: ignore[attr-defined]
    link.topologies.is_known = True


class FakeTenant:
    """Tenant admission with manually added pods."""

    def __init__(self, name: str, pods: PodStores, arbitration: Arbitration) -> None:
        scope = tenant_scope(NOBODY, clock=arbitration.clock, links=pods.links, bindings=pods.bindings(), name=name)
        scope.cache = pods.scope.cache
        self.admission = TenantAdmission(scope, arbitration, CompanionObjects(scope), CompletionRecords(scope))

    def put_member(self, one: GangMember) -> None:
        self.admission.put_member(one)


class Harness:
    """Arbitration over one compute cluster, with a `decide` function that returns the test's answer."""

    def __init__(self, *, expected: Sequence[str] | None = (TENANT,), specs: Iterable[PoolSpec] = (SPEC,)) -> None:
        self.clock = FakeClock(1000.0, origin=EPOCH)
        self.pods = PodStores()
        self.expected = expected
        self.specs = tuple(specs)
        self.links: dict[str, ComputeLink] = {"local": self.pods.link}
        self.answer = Decisions()
        self.decide: Decide = self.record_snapshot
        self.asked: list[Snapshot] = []
        self.pods.link.nodes.store["", "host-1"] = make_node()
        complete_lists(self.pods.link)
        self.stopped: dict[tuple[str, PoolKey], Mapping[str, float]] = {}
        self.observe_shares: ObserveShares = lambda _snapshot, _now: ()
        self.arbitration = make_arbitration(
            ArbitrationSettings(gather=0.001, notice=7.0, grace_max=8.0, bind_timeout=60.0),
            self,
            clock=self.clock,
            decide=self._decide,
            stopped_borrowing=lambda tenant, pool: self.stopped.get((tenant, pool), {}),
            observe_shares=lambda snapshot, now: self.observe_shares(snapshot, now),  # noqa: PLW0108 - tests replace it
        )
        self._begun = self._ended = 0
        self._run_cycle = self.arbitration._run_cycle
        self.arbitration._run_cycle = self._count_cycle  # type: ignore[method-assign]
        self.alpha = FakeTenant(TENANT, self.pods, self.arbitration)
        self.calm = 0

    @property
    def now(self) -> float:
        """The time that the test has set."""
        return self.clock.seconds

    @now.setter
    def now(self, now: float) -> None:
        self.clock.seconds = now

    def pool_specs(self) -> dict[str, tuple[PoolSpec, ...]]:
        return {"local": self.specs}

    def expected_tenants(self) -> Sequence[str] | None:
        return self.expected

    def notices_ended(self) -> None:
        self.calm += 1

    def _decide(self, snapshot: Snapshot, now: float) -> Decisions:
        """Call what a test may replace."""
        return self.decide(snapshot, now)

    def record_snapshot(self, snapshot: Snapshot, _now: float) -> Decisions:
        self.asked.append(snapshot)
        return self.answer

    def add_tenant(self, part: FakeTenant | None = None) -> None:
        part = part or self.alpha
        part.admission.pods_listed()
        self.arbitration.add_tenant(part.admission)

    def add_waiting(self, uid: str = "u1", **other: Any) -> None:
        """Add a waiting pod."""
        self.pods.put_tenant(tenant_view(uid))
        self.alpha.put_member(make_member(uid, **other))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with in_background(self.arbitration.run()):
            yield

    async def run_cycle(self) -> Snapshot:
        """Run one more cycle and return its snapshot."""
        begun = self._begun
        self.arbitration.trigger()
        await wait_until(lambda: self._ended > begun)
        return self.asked[-1]

    async def settle(self) -> None:
        """Wait until no cycle runs or is requested."""
        begun = -1
        while begun != self._begun or begun != self._ended:
            begun = self._begun
            await let_pass(0.05)

    async def _count_cycle(self) -> None:
        self._begun += 1
        try:
            await self._run_cycle()
        finally:
            self._ended += 1

    def move_node(self, pool: str) -> None:
        """Change a node's labels to those of a pool."""
        nodes, old = self.pods.link.nodes, self.pods.link.nodes.store["", "host-1"]
        new = nodes.store["", "host-1"] = make_node()
        new.metadata.labels["gpu"] = pool
        nodes.handle_change(old, new)

    def verdict_of(self, uid: str = "u1") -> AdmissionState:
        return self.alpha.admission.verdict_store.verdicts[uid].verdict

    def add_unmanaged(self, *, uid: str = "s1", gpus: int = 2, node: str = "host-1") -> UnmanagedPodView:
        containers = [{"name": "x", "resources": {"limits": {GPU: gpus}}}]
        document = {
            "metadata": {"name": uid, "namespace": "x", "uid": uid},
            "spec": {"nodeName": node, "containers": containers},
        }
        return decode_unmanaged_pod(json.dumps(document).encode())

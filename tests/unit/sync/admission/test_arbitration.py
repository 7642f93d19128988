"""Arbitration: triggers of cycles, contents of snapshots, and delivery of decisions to tenants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.background import in_background
from tests.unit.sync.admission.samples import (
    GPU,
    NOBODY,
    POOL,
    TENANT,
    PodStores,
    compute_view,
    make_member,
    tenant_view,
)
from tests.unit.sync.scopes import tenant_scope
from vkgateway.arbiter.decisions import Admit, Decisions, Evict, PendingReason, PendingReport, Promote, Reprieve
from vkgateway.arbiter.queueing.admission import AdmissionState
from vkgateway.arbiter.snapshot import PodState, PreemptionPlan, Quota, Shape, Snapshot, Zone
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.names import COMPUTE_NODE_ANNOTATION, TENANT_LABEL
from vkgateway.model.objects import Condition, Meta, NodeImage, NodeStatusView, NodeView
from vkgateway.sync.admission import arbitration as module
from vkgateway.sync.admission.arbitration import Arbitration, ArbitrationSettings
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.gangs import EvictionTerms
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.admission.pod_reads import PodReads
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.compute.cluster_watches import PODS, TOPOLOGIES, TRUST, UNMANAGED_PODS
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.topology_views import TopologyView
from vkgateway.sync.compute.unmanaged_pods import UnmanagedPodView, decode_unmanaged_pod

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
        reflector._state.complete_event.set()  # type: ignore[attr-defined]
    link.topologies.is_known = True


class FakeTenant:
    """Tenant admission with manually added pods."""

    def __init__(self, name: str, pods: PodStores, arbitration: Arbitration) -> None:
        scope = tenant_scope(NOBODY, clock=arbitration.clock, links=pods.links, bindings=pods.bindings(), name=name)
        scope.cache = pods.scope.cache
        self.admission = TenantAdmission(scope, arbitration, PodReads(CompanionObjects(scope)))

    def put_member(self, one: GangMember) -> None:
        self.admission.put_member(one)


class Harness:
    """Arbitration over one compute cluster, with a `decide` function that returns the test's answer."""

    def __init__(self, *, expected: Sequence[str] | None = (TENANT,), specs: Iterable[PoolSpec] = (SPEC,)) -> None:
        self.now = 1000.0
        self.pods = PodStores()
        self.expected = expected
        self.specs = tuple(specs)
        self.links: dict[str, ComputeLink] = {"local": self.pods.link}
        self.answer = Decisions()
        self.asked: list[Snapshot] = []
        self.pods.link.nodes.store["", "host-1"] = make_node()
        complete_lists(self.pods.link)
        self.arbitration = Arbitration(
            ArbitrationSettings(gather=0.001, notice=7.0, grace_max=8.0, bind_timeout=60.0),
            self,
            clock=lambda: self.now,
            decide=self._decide,
        )
        self.alpha = FakeTenant(TENANT, self.pods, self.arbitration)
        self.calm = 0

    def pool_specs(self) -> dict[str, tuple[PoolSpec, ...]]:
        return {"local": self.specs}

    def expected_tenants(self) -> Sequence[str] | None:
        return self.expected

    def notices_ended(self) -> None:
        self.calm += 1

    def _decide(self, snapshot: Snapshot, _now: float) -> Decisions:
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
        number = len(self.asked)
        self.arbitration.trigger()
        await wait_until(lambda: len(self.asked) > number)
        await asyncio.sleep(0.01)
        return self.asked[-1]

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


@pytest.fixture
async def harness() -> Harness:
    return Harness()


# -- triggers ----------------------------------------------------------------------------------------------------------


async def test_no_decision_before_every_tenant_is_known(harness: Harness) -> None:
    async with harness.running():
        harness.arbitration.trigger()
        await asyncio.sleep(0.05)
        assert harness.asked == []
        harness.add_tenant()
        await wait_until(lambda: harness.asked)


@pytest.mark.parametrize("missing", ["tenant", "unread", "cluster", "expected"])
async def test_decisions_start_after_a_timeout_without_missing_tenants(harness: Harness, missing: str) -> None:
    if missing == "expected":
        harness.expected = None
    if missing == "unread":
        harness.alpha.admission.reads.unread.add(("default", "web"))
    if missing == "cluster":
        harness.pods.link.reachability.is_reachable = False
    if missing != "tenant":
        harness.add_tenant()
    async with harness.running():
        harness.arbitration.trigger()
        await wait_until(lambda: harness.arbitration._started_at is not None)
        assert harness.asked == []
        harness.now += 20
        await wait_until(lambda: harness.asked)


async def test_cycle_runs_only_after_a_change(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await asyncio.sleep(0.05)
        number = len(harness.asked)
        await asyncio.sleep(0.05)
        assert len(harness.asked) == number

        harness.add_waiting()
        await wait_until(lambda: len(harness.asked) == number + 1)
        assert [gang.id for gang in harness.asked[-1].gangs] == [GANG]


@pytest.mark.parametrize("change", ["reachable", "node", "stranger", "complete"])
async def test_change_in_compute_cluster_triggers_a_cycle(harness: Harness, change: str) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await asyncio.sleep(0.05)
        number = len(harness.asked)
        link = harness.pods.link
        if change == "reachable":
            link.reachability.set_watching(True, "")
            link.reachability.is_reachable = False
            link.reachability._update_reachable()
        elif change == "node":
            link.nodes.handle_change(None, make_node("host-2"))
        elif change == "stranger":
            harness.arbitration._has_pending = True
            link.watches.notify(UNMANAGED_PODS, None, harness.add_unmanaged())
        else:
            link.nodes._state.mark_stale()
            link.nodes._state.mark_complete()
        await wait_until(lambda: len(harness.asked) > number)


async def test_unmanaged_usage_is_not_polled_soon_while_no_gang_waits(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await asyncio.sleep(0.05)
        harness.pods.link.watches.notify(UNMANAGED_PODS, None, harness.add_unmanaged())
        timer = harness.arbitration._timer
        assert timer is not None
        assert timer.when() > asyncio.get_running_loop().time() + 10


async def test_cycle_runs_at_the_next_deadline(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting()
    harness.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    async with harness.running():
        await harness.run_cycle()
        evict = Evict(
            gang=GANG, pods=("u1",), whole=True, makes_room_for="beta/x", deadline=harness.now + 0.2, lost=0.0
        )
        harness.answer = Decisions(evicts=(evict,))
        await harness.run_cycle()
        harness.answer = Decisions()
        number = len(harness.asked)
        await wait_until(
            lambda: harness.alpha.admission.verdict_store.verdicts["u1"].verdict is AdmissionState.EVICTING
        )
        harness.now += 0.2
        await wait_until(lambda: len(harness.asked) > number)
        assert harness.alpha.admission.verdict_store.verdicts == {}


async def test_clock_may_be_adjusted_only_without_open_notices(harness: Harness) -> None:
    evict = Evict(
        gang=GANG, pods=("u1",), whole=True, makes_room_for="alpha/default/pod/u2", deadline=harness.now + 40, lost=0.0
    )
    harness.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    harness.add_waiting()
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.calm)
        harness.answer = Decisions(evicts=(evict,))
        await harness.run_cycle()
        calm = harness.calm
        harness.answer = Decisions()
        await harness.run_cycle()
        await harness.run_cycle()
        assert harness.calm == calm
        harness.answer = Decisions(reprieves=(Reprieve(gang=GANG, pods=("u1",)),))
        await harness.run_cycle()
        await harness.run_cycle()
        assert harness.calm > calm


@pytest.mark.parametrize("away", [False, True], ids=["held", "cluster away"])
async def test_waiting_gangs_are_reconsidered_periodically(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr(module, "_REFRESH", 0.05)
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await asyncio.sleep(0.1)
        assert len(harness.asked) == 1

        if away:
            harness.pods.link.reachability.is_reachable = False
        else:
            harness.answer = Decisions(holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),))
        harness.add_waiting()
        await wait_until(lambda: len(harness.asked) >= 4)


async def test_failed_cycle_is_logged_and_arbitration_continues(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AFTER_DEFECT", 0.05)
    harness.add_tenant()
    decide = harness.arbitration._decide

    def defect(_snapshot: Snapshot, _now: float) -> Decisions:
        harness.arbitration._decide = decide
        raise ZeroDivisionError

    harness.arbitration._decide = defect
    async with harness.running():
        await wait_until(lambda: harness.asked)


async def test_no_callback_or_task_remains_after_the_end(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        assert harness.pods.link.watches.has_handlers(PODS)
    watches = harness.pods.link.watches
    assert not watches.has_handlers(PODS)
    assert not watches.has_handlers(UNMANAGED_PODS)
    assert not watches.has_handlers(TOPOLOGIES)
    assert not watches.has_handlers(TRUST)


# -- snapshot ----------------------------------------------------------------------------------------------------------


async def test_snapshot_contains_pools_quotas_gangs_and_last_plans(harness: Harness) -> None:
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    harness.alpha.admission.quotas_changed([quota])
    harness.add_tenant()
    harness.add_waiting()
    plan = PreemptionPlan(pool=POOL, nodes={"u1": "host-1"}, borrowed=False)
    harness.answer = Decisions(plans={GANG: plan})
    async with harness.running():
        snapshot = await harness.run_cycle()
        assert [pool.key for pool in snapshot.pools] == [POOL]
        assert snapshot.quotas == (quota,)
        assert [pod.state for gang in snapshot.gangs for pod in gang.pods] == [PodState.WAITING]

        again = await harness.run_cycle()
        assert again.gangs[0].plan == plan
        assert again.pools[0] is snapshot.pools[0]

        harness.answer = Decisions()
        await harness.run_cycle()
        assert (await harness.run_cycle()).gangs[0].plan is None


async def test_unmanaged_and_unread_pods_use_capacity_but_members_do_not(harness: Harness) -> None:
    harness.pods.link.unmanaged_pods.store["x", "s1"] = harness.add_unmanaged(gpus=2)
    harness.pods.put_compute(compute_view("u1"))
    harness.pods.put_tenant(tenant_view("u1"))
    harness.pods.put_compute(compute_view("free", annotations={COMPUTE_NODE_ANNOTATION: ""}))
    harness.add_tenant()
    async with harness.running():
        await asyncio.sleep(0.05)
        harness.now += 20
        snapshot = await harness.run_cycle()
        assert snapshot.pools[0].nodes[0].used[GPU] == 4000

        harness.alpha.put_member(make_member("u1"))
        snapshot = await harness.run_cycle()
        assert snapshot.pools[0].nodes[0].used[GPU] == 3000
        assert snapshot.gangs[0].pods[0].state is PodState.PLACED

        harness.arbitration.remove_tenant(TENANT)
        snapshot = await harness.run_cycle()
        assert snapshot.pools[0].nodes[0].used[GPU] == 4000
        assert snapshot.gangs == ()

        harness.pods.link.watches.notify(UNMANAGED_PODS, harness.add_unmanaged(), None)
        harness.pods.drop_compute("u1")
        assert (await harness.run_cycle()).pools[0].nodes[0].used == {GPU: 1000}


async def test_pods_on_a_node_moved_to_another_pool_use_its_capacity(harness: Harness) -> None:
    harness.specs = tuple(PoolSpec(name=name, node_selector={"gpu": name}) for name in ("a100", "h100"))
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    harness.alpha.admission.quotas_changed([quota])
    harness.move_node("a100")
    harness.pods.put_tenant(tenant_view("u1"))
    harness.pods.put_compute(compute_view("u1"))
    harness.alpha.put_member(make_member("u1"))
    harness.add_tenant()

    def used(snapshot: Snapshot) -> dict[str, list[int]]:
        return {pool.key[1]: [each.used.get(GPU, 0) for each in pool.nodes] for pool in snapshot.pools}

    async with harness.running():
        assert used(await harness.run_cycle()) == {"a100": [0], "h100": []}

        harness.move_node("h100")
        snapshot = await harness.run_cycle()
        assert used(snapshot) == {"a100": [], "h100": [1000]}
        assert snapshot.quotas == (quota,), "it counts against the limit of the pool that it was placed in, once"

        harness.pods.drop_compute("u1")
        assert used(await harness.run_cycle())["h100"] == [0]

        harness.pods.put_compute(compute_view("u1"))
        harness.move_node("a100")
        assert used(await harness.run_cycle())["a100"] == [0]


async def test_labelled_pods_without_owner_count_for_no_tenant(harness: Harness) -> None:
    view = compute_view("u1", labels={TENANT_LABEL: "beta"})
    harness.pods.link.pods.store[view.metadata.key] = view
    harness.add_tenant()
    async with harness.running():
        assert (await harness.run_cycle()).pools[0].nodes[0].used == {}


def make_zones(*free: int) -> TopologyView:
    """Return the zones that host-1 publishes: two zones of four GPUs."""
    told = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: 4000}, available={GPU: each * 1000}) for at, each in enumerate(free)
    )
    return TopologyView(Meta(name="host-1"), "pod", told)


async def test_zones_report_published_pods(harness: Harness) -> None:
    link = harness.pods.link
    harness.add_tenant()
    harness.pods.put_compute(compute_view("u1"))
    harness.add_waiting("u1")
    async with harness.running():
        assert (await harness.run_cycle()).pools[0].nodes[0].topology is None
        link.watches.notify(TOPOLOGIES, "host-1", make_zones(3, 4))
        first = (await harness.run_cycle()).pools[0]
        topology = first.nodes[0].topology
        assert topology is not None
        assert (topology.scope, topology.counted, len(topology.zones)) == ("pod", frozenset({"u1"}), 2)
        assert (await harness.run_cycle()).pools[0] is first

        harness.pods.put_compute(compute_view("u2"))
        harness.add_waiting("u2")
        assert (await harness.run_cycle()).pools[0] == first, "what came since was not published"
        link.watches.notify(TOPOLOGIES, "host-1", make_zones(3, 3))
        topology = (await harness.run_cycle()).pools[0].nodes[0].topology
        assert topology is not None
        assert topology.counted == {"u1", "u2"}
        assert not topology.gone
        harness.pods.drop_compute("u1")
        topology = (await harness.run_cycle()).pools[0].nodes[0].topology
        assert topology is not None
        assert {uid: shape.amount_of(GPU) for uid, shape in topology.gone.items()} == {"u1": 1000}
        link.watches.notify(TOPOLOGIES, "host-1", None)
        assert (await harness.run_cycle()).pools[0].nodes[0].topology is None


async def test_no_decision_before_zones_are_known(harness: Harness) -> None:
    harness.pods.link.topologies.is_known = False
    harness.add_tenant()
    async with harness.running():
        harness.arbitration.trigger()
        await asyncio.sleep(0.05)
        assert harness.asked == []
        harness.pods.link.topologies.is_known = True
        await wait_until(lambda: harness.asked)


async def test_node_lists_only_requested_images(harness: Harness) -> None:
    def on_nodes(snapshot: Snapshot) -> list[set[str]]:
        return [set(found.images) for found in snapshot.pools[0].nodes]

    harness.add_tenant()
    harness.pods.link.nodes.store["", "host-1"] = make_node("host-1", "train:1", "serve:1")
    harness.pods.link.nodes.store["", "host-2"] = make_node("host-2")
    async with harness.running():
        first = await harness.run_cycle()
        assert on_nodes(first) == [set(), set()]

        harness.add_waiting("u1", shape=replace(Shape.from_requests({GPU: 1000}), images=frozenset({"train:1"})))
        second = await harness.run_cycle()
        assert on_nodes(second) == [{"train:1"}, set()]
        assert second.pools[0].nodes[1] is first.pools[0].nodes[1]

        # Neither a pulled image nor a deleted pod triggers a cycle; the next one takes it into account.
        cycles = len(harness.asked)
        harness.pods.link.nodes.handle_change(make_node("host-2"), make_node("host-2", "train:1"))
        harness.pods.link.nodes.store["", "host-2"] = make_node("host-2", "train:1")
        await asyncio.sleep(0.02)
        assert len(harness.asked) == cycles
        harness.now += 400
        assert on_nodes(await harness.run_cycle()) == [{"train:1"}, {"train:1"}]
        harness.alpha.admission.gangs.drop_member("u1")
        harness.now += 400
        assert on_nodes(await harness.run_cycle()) == [set(), set()]


async def test_remaining_limit_excludes_usage_outside_the_arbiter(harness: Harness) -> None:
    harness.alpha.admission.quotas_changed(
        [Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000, "cpu": 1000}, guarantee={GPU: 4000})]
    )
    harness.pods.put_compute(compute_view("free", annotations={COMPUTE_NODE_ANNOTATION: ""}))
    harness.add_tenant()
    async with harness.running():
        quota = (await harness.run_cycle()).quotas[0]
        assert quota.limit == {GPU: 7000, "cpu": 1000}
        assert quota.guarantee == {GPU: 4000}


async def test_nodes_that_did_not_take_a_pod_are_avoided_for_a_while(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        assert (await harness.run_cycle()).pools[0].nodes[0].usable
        assert harness.arbitration.avoid_node("local", "host-1")
        assert not (await harness.run_cycle()).pools[0].nodes[0].usable
        harness.now += 299
        assert not (await harness.run_cycle()).pools[0].nodes[0].usable
        harness.now += 2
        assert (await harness.run_cycle()).pools[0].nodes[0].usable


async def test_nodes_are_not_avoided_if_many_take_no_pod(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await harness.run_cycle()
        assert [harness.arbitration.avoid_node("local", f"host-{number}") for number in (1, 2, 3, 1)] == [
            True,
            True,
            False,
            True,
        ]
        assert not harness.arbitration.avoid_node("elsewhere", "host-1")


async def test_terminating_orphan_pods_are_reported_as_future_capacity(harness: Harness) -> None:
    harness.pods.put_compute(compute_view("gone"))
    harness.add_tenant()
    async with harness.running():
        snapshot = await harness.run_cycle()
        assert [(gang.id, gang.pods[0].state) for gang in snapshot.gangs] == [
            ("alpha/default/gone/gone", PodState.ENDING)
        ]
        assert snapshot.pools[0].nodes[0].used == {}


async def test_gangs_for_an_unreachable_cluster_wait_for_it(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting("u1")
    harness.add_waiting("u2", pools=(POOL, ("far", "a100")))
    harness.add_waiting("u3", pools=())
    async with harness.running():
        await harness.run_cycle()
        assert harness.alpha.admission.verdict_store.pending_messages == {}

        harness.pods.link.reachability.is_reachable = False
        snapshot = await harness.run_cycle()
        assert snapshot.pools == ()
        holds = harness.alpha.admission.verdict_store.pending_messages
        assert {gang: waits.reason for gang, waits in holds.items()} == {
            GANG: "the compute cluster cannot be reached now",
            f"{TENANT}/default/pod/u2": "the compute cluster cannot be reached now",
        }


async def test_reconnected_cluster_is_read_again(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await harness.run_cycle()
        old, new = harness.pods.link, PodStores().link
        new.nodes.store["", "host-9"] = make_node("host-9")
        complete_lists(new)
        harness.links["local"] = new
        snapshot = await harness.run_cycle()
        assert [found.name for found in snapshot.pools[0].nodes] == ["host-9"]
        assert not old.watches.has_handlers(PODS)

        del harness.links["local"]
        assert (await harness.run_cycle()).pools == ()


# -- delivery ----------------------------------------------------------------------------------------------------------


async def test_each_decision_reaches_the_tenant_of_its_gang(harness: Harness) -> None:
    beta = FakeTenant("beta", PodStores(), harness.arbitration)
    harness.add_tenant()
    harness.add_tenant(beta)
    harness.add_waiting()
    async with harness.running():
        harness.answer = Decisions(
            admits=(
                Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),
                Admit(gang="gone/x", pool=POOL, nodes={"u1": "host-1"}, borrowed=True),
            )
        )
        await harness.run_cycle()
        assert harness.verdict_of() is AdmissionState.ADMITTED
        assert beta.admission.verdict_store.verdicts == {}

        harness.answer = Decisions(
            evicts=(Evict(gang=GANG, pods=("u1",), whole=True, makes_room_for="beta/x", deadline=2000.0, lost=0.0),),
            holds=(PendingReport(gang="beta/default/pod/u9", code=PendingReason.ROOM, message="no room"),),
        )
        await harness.run_cycle()
        assert harness.verdict_of() is AdmissionState.EVICTING
        assert list(beta.admission.verdict_store.pending_messages) == ["beta/default/pod/u9"]
        assert harness.alpha.admission.verdict_store.pending_messages == {}

        harness.answer = Decisions(
            reprieves=(Reprieve(gang=GANG, pods=("u1",)),), promotes=(Promote(gang=GANG, pods=("u1",)),)
        )
        await harness.run_cycle()
        assert harness.verdict_of() is AdmissionState.ADMITTED
        assert not harness.alpha.admission.verdict_store.verdicts["u1"].borrowed
        assert beta.admission.verdict_store.pending_messages == {}


async def test_pod_deleted_during_a_cycle_is_not_admitted(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting()
    decide = harness.arbitration._decide

    def slow(snapshot: Snapshot, now: float) -> Decisions:
        harness.pods.above.store.clear()
        decide(snapshot, now)
        return Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))

    harness.arbitration._decide = slow
    async with harness.running():
        await harness.run_cycle()
        assert harness.alpha.admission.verdict_store.verdicts == {}


async def test_tenant_removed_during_a_cycle_does_not_fail_it(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting()
    harness.answer = Decisions(
        admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),),
        holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),),
    )
    decide = harness.arbitration._decide

    def slow(snapshot: Snapshot, now: float) -> Decisions:
        harness.arbitration._tenants.clear()
        return decide(snapshot, now)

    harness.arbitration._decide = slow
    async with harness.running():
        await harness.run_cycle()
        await harness.run_cycle()


# -- eviction terms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SPEC, EvictionTerms(7.0, 8.0)),
        (PoolSpec(name="a100", notice_seconds=1), EvictionTerms(1.0, 8.0)),
        (PoolSpec(name="a100", notice_seconds=0, grace_seconds=0), EvictionTerms(0.0, 0.0)),
        (PoolSpec(name="h100", notice_seconds=1, grace_seconds=2), EvictionTerms(7.0, 8.0)),
        (
            PoolSpec(name="a100", brief_run_seconds=600, brief_notice_seconds=2),
            EvictionTerms(7.0, 8.0, brief_run=600.0, brief_notice=2.0),
        ),
        (
            PoolSpec(name="a100", notice_seconds=1, brief_run_seconds=600, brief_notice_seconds=2),
            EvictionTerms(1.0, 8.0, brief_run=600.0, brief_notice=1.0),
        ),
        (PoolSpec(name="a100", brief_run_seconds=600), EvictionTerms(7.0, 8.0)),
    ],
)
async def test_pool_may_override_notice_and_grace(spec: PoolSpec, expected: EvictionTerms) -> None:
    arbitration = Harness(specs=(spec,)).arbitration
    assert arbitration.eviction_terms(POOL) == expected
    assert arbitration.eviction_terms(("elsewhere", "a100")) == EvictionTerms(7.0, 8.0)
    assert arbitration.eviction_terms(None) == EvictionTerms(7.0, 8.0)

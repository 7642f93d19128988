"""The arbitration: when it decides, from what, and that its answers reach the right tenants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.background import in_background
from tests.unit.sync.admission.samples import GPU, POOL, TENANT, Pods, above, below, member
from tests.unit.sync.world import until
from vkgateway.arbiter.decisions import Admit, Decisions, Evict, PendingReason, PendingReport, Promote, Reprieve
from vkgateway.arbiter.snapshot import PodState, PreemptionPlan, Quota, Shape, Snapshot, Zone
from vkgateway.model.api import Pool as PoolSpec
from vkgateway.model.names import COMPUTE_NODE_ANNOTATION, TENANT_LABEL
from vkgateway.model.objects import Condition, Meta, NodeImage, NodeStatusView, NodeView
from vkgateway.sync.admission import arbitration as module
from vkgateway.sync.admission.arbitration import Arbitration, ArbitrationSettings
from vkgateway.sync.admission.gangs import EvictionTerms
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.admission.verdict_store import VerdictState
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.topologies import TopologyView
from vkgateway.sync.compute.unmanaged_pods import UnmanagedPodView, decode_unmanaged_pod

GANG = f"{TENANT}/default/pod/u1"
SPEC = PoolSpec(name="a100")


def node(name: str = "host-1", *images: str) -> NodeView:
    return NodeView(
        metadata=Meta(name=name),
        status=NodeStatusView(
            allocatable={GPU: "8"},
            conditions=(Condition(type="Ready", status="True"),),
            images=tuple(NodeImage(names=(image,)) for image in images),
        ),
    )


def everything_known(link: ComputeLink) -> None:
    """As if all lists were complete and the cluster answered."""
    link.reachability.is_reachable = True
    for reflector in (link.pods, link.namespaces, link.nodes, link.unmanaged_pods, *link.copies.values()):
        reflector._state.complete_event.set()  # type: ignore[attr-defined]
    link.topologies.is_known = True


class Part:
    """A tenant's part, fed by hand."""

    def __init__(self, name: str, pods: Pods, arbitration: Arbitration) -> None:
        self.admission = TenantAdmission(
            name,
            pods.above,
            links=pods.links,
            bindings=pods.bindings(),
            service=arbitration,
            sent={},
            look=lambda _key: None,
            clock=arbitration.clock,
        )

    def put(self, one: GangMember) -> None:
        self.admission.put_member(one)


class Made:
    """An arbitration over one compute cluster, with a judge that answers what the test wants."""

    def __init__(self, *, expected: Sequence[str] | None = (TENANT,), specs: Iterable[PoolSpec] = (SPEC,)) -> None:
        self.now = 1000.0
        self.pods = Pods()
        self.expected = expected
        self.specs = tuple(specs)
        self.links: dict[str, ComputeLink] = {"local": self.pods.link}
        self.answer = Decisions()
        self.asked: list[Snapshot] = []
        self.pods.link.nodes.store["", "host-1"] = node()
        everything_known(self.pods.link)
        self.arbitration = Arbitration(
            ArbitrationSettings(gather=0.001, notice=7.0, grace_max=8.0, bind_timeout=60.0),
            links=lambda: self.links,
            specs=lambda: {"local": self.specs},
            expected=lambda: self.expected,
            clock=lambda: self.now,
            calm=self._calm,
            decide=self._decide,
        )
        self.alpha = Part(TENANT, self.pods, self.arbitration)
        self.calm = 0

    def _calm(self) -> None:
        self.calm += 1

    def _decide(self, snapshot: Snapshot, _now: float) -> Decisions:
        self.asked.append(snapshot)
        return self.answer

    def join(self, part: Part | None = None) -> None:
        part = part or self.alpha
        part.admission.pods_listed()
        self.arbitration.add_tenant(part.admission)

    def wait_above(self, uid: str = "u1", **other: Any) -> None:
        """A pod that waits."""
        self.pods.put_above(above(uid))
        self.alpha.put(member(uid, **other))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with in_background(self.arbitration.run()):
            yield

    async def cycle(self) -> Snapshot:
        """One more cycle; what was decided from."""
        number = len(self.asked)
        self.arbitration.trigger()
        await until(lambda: len(self.asked) > number)
        await asyncio.sleep(0.01)
        return self.asked[-1]

    def move(self, pool: str) -> None:
        """The node's labels put it into this pool."""
        nodes, old = self.pods.link.nodes, self.pods.link.nodes.store["", "host-1"]
        new = nodes.store["", "host-1"] = node()
        new.metadata.labels["gpu"] = pool
        nodes.handle_change(old, new)

    def said(self, uid: str = "u1") -> VerdictState:
        return self.alpha.admission.verdict_store.verdicts[uid].said

    def stranger(self, *, uid: str = "s1", gpus: int = 2, node: str = "host-1") -> UnmanagedPodView:
        containers = [{"name": "x", "resources": {"limits": {GPU: gpus}}}]
        document = {
            "metadata": {"name": uid, "namespace": "x", "uid": uid},
            "spec": {"nodeName": node, "containers": containers},
        }
        return decode_unmanaged_pod(json.dumps(document).encode())


@pytest.fixture
async def made() -> Made:
    return Made()


# -- when --------------------------------------------------------------------------------------------------------------


async def test_nothing_is_decided_before_every_tenant_is_known(made: Made) -> None:
    async with made.running():
        made.arbitration.trigger()
        await asyncio.sleep(0.05)
        assert made.asked == []
        made.join()
        await until(lambda: made.asked)


@pytest.mark.parametrize("missing", ["tenant", "unread", "cluster", "expected"])
async def test_after_a_while_it_begins_without_those_that_do_not_come(made: Made, missing: str) -> None:
    if missing == "expected":
        made.expected = None
    if missing == "unread":
        made.alpha.admission.unread_pods.add(("default", "web"))
    if missing == "cluster":
        made.pods.link.reachability.is_reachable = False
    if missing != "tenant":
        made.join()
    async with made.running():
        made.arbitration.trigger()
        await until(lambda: made.arbitration._started_at is not None)
        assert made.asked == []
        made.now += 20
        await until(lambda: made.asked)


async def test_it_decides_again_when_something_changed_and_not_otherwise(made: Made) -> None:
    made.join()
    async with made.running():
        await until(lambda: made.asked)
        await asyncio.sleep(0.05)
        number = len(made.asked)
        await asyncio.sleep(0.05)
        assert len(made.asked) == number

        made.wait_above()
        await until(lambda: len(made.asked) == number + 1)
        assert [gang.id for gang in made.asked[-1].gangs] == [GANG]


@pytest.mark.parametrize("change", ["reachable", "node", "stranger", "complete"])
async def test_a_change_in_a_compute_cluster_is_news(made: Made, change: str) -> None:
    made.join()
    async with made.running():
        await until(lambda: made.asked)
        await asyncio.sleep(0.05)
        number = len(made.asked)
        link = made.pods.link
        if change == "reachable":
            link.reachability.set_watching(True, "")
            link.reachability.is_reachable = False
            link.reachability._update_reachable()
        elif change == "node":
            link.nodes.handle_change(None, node("host-2"))
        elif change == "stranger":
            made.arbitration._has_pending = True
            link._unmanaged_pod_changed(None, made.stranger())
        else:
            link.nodes._state.mark_stale()
            link.nodes._state.mark_complete()
        await until(lambda: len(made.asked) > number)


async def test_where_nothing_waits_what_others_hold_is_not_looked_at_soon(made: Made) -> None:
    made.join()
    async with made.running():
        await until(lambda: made.asked)
        await asyncio.sleep(0.05)
        made.pods.link._unmanaged_pod_changed(None, made.stranger())
        timer = made.arbitration._timer
        assert timer is not None
        assert timer.when() > asyncio.get_running_loop().time() + 10


async def test_it_decides_when_the_next_deadline_has_come(made: Made) -> None:
    made.join()
    made.wait_above()
    made.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    async with made.running():
        await made.cycle()
        evict = Evict(gang=GANG, pods=("u1",), whole=True, makes_room_for="beta/x", deadline=made.now + 0.2, lost=0.0)
        made.answer = Decisions(evicts=(evict,))
        await made.cycle()
        made.answer = Decisions()
        number = len(made.asked)
        await until(lambda: made.alpha.admission.verdict_store.verdicts["u1"].said is VerdictState.EVICTING)
        made.now += 0.2
        await until(lambda: len(made.asked) > number)
        assert made.alpha.admission.verdict_store.verdicts == {}


async def test_the_clock_may_be_set_only_while_nobody_is_under_notice(made: Made) -> None:
    evict = Evict(
        gang=GANG, pods=("u1",), whole=True, makes_room_for="alpha/default/pod/u2", deadline=made.now + 40, lost=0.0
    )
    made.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    made.wait_above()
    made.join()
    async with made.running():
        await until(lambda: made.calm)
        made.answer = Decisions(evicts=(evict,))
        await made.cycle()
        calm = made.calm
        made.answer = Decisions()
        await made.cycle()
        await made.cycle()
        assert made.calm == calm
        made.answer = Decisions(reprieves=(Reprieve(gang=GANG, pods=("u1",)),))
        await made.cycle()
        await made.cycle()
        assert made.calm > calm


@pytest.mark.parametrize("away", [False, True], ids=["held", "cluster away"])
async def test_as_long_as_something_waits_it_looks_again_now_and_then(
    made: Made, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr(module, "_REFRESH", 0.05)
    made.join()
    async with made.running():
        await until(lambda: made.asked)
        await asyncio.sleep(0.1)
        assert len(made.asked) == 1

        if away:
            made.pods.link.reachability.is_reachable = False
        else:
            made.answer = Decisions(holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),))
        made.wait_above()
        await until(lambda: len(made.asked) >= 4)


async def test_a_defect_in_a_cycle_is_told_and_it_goes_on(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AFTER_DEFECT", 0.05)
    made.join()
    decide = made.arbitration._decide

    def defect(_snapshot: Snapshot, _now: float) -> Decisions:
        made.arbitration._decide = decide
        raise ZeroDivisionError

    made.arbitration._decide = defect
    async with made.running():
        await until(lambda: made.asked)


async def test_nothing_is_left_behind_when_it_ends(made: Made) -> None:
    made.join()
    async with made.running():
        await until(lambda: made.asked)
        assert made.pods.link.on_pod_changed
    link = made.pods.link
    assert (link.on_pod_changed, link.on_unmanaged_pod_changed, link.on_nodes_changed, link.on_reachable_changed) == (
        [],
        [],
        [],
        [],
    )


# -- from what ---------------------------------------------------------------------------------------------------------


async def test_a_snapshot_has_pools_quotas_gangs_and_last_plans(made: Made) -> None:
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    made.alpha.admission.quotas_changed([quota])
    made.join()
    made.wait_above()
    plan = PreemptionPlan(pool=POOL, nodes={"u1": "host-1"}, borrowed=False)
    made.answer = Decisions(plans={GANG: plan})
    async with made.running():
        snapshot = await made.cycle()
        assert [pool.key for pool in snapshot.pools] == [POOL]
        assert snapshot.quotas == (quota,)
        assert [pod.state for gang in snapshot.gangs for pod in gang.pods] == [PodState.WAITING]

        again = await made.cycle()
        assert again.gangs[0].plan == plan
        assert again.pools[0] is snapshot.pools[0]

        made.answer = Decisions()
        await made.cycle()
        assert (await made.cycle()).gangs[0].plan is None


async def test_strangers_and_pods_that_nobody_read_are_a_burden_and_members_are_none(made: Made) -> None:
    made.pods.link.unmanaged_pods.store["x", "s1"] = made.stranger(gpus=2)
    made.pods.put_below(below("u1"))
    made.pods.put_above(above("u1"))
    made.pods.put_below(below("free", marks={COMPUTE_NODE_ANNOTATION: ""}))
    made.join()
    async with made.running():
        await asyncio.sleep(0.05)
        made.now += 20
        snapshot = await made.cycle()
        assert snapshot.pools[0].nodes[0].used[GPU] == 4000

        made.alpha.put(member("u1"))
        snapshot = await made.cycle()
        assert snapshot.pools[0].nodes[0].used[GPU] == 3000
        assert snapshot.gangs[0].pods[0].state is PodState.PLACED

        made.arbitration.remove_tenant(TENANT)
        snapshot = await made.cycle()
        assert snapshot.pools[0].nodes[0].used[GPU] == 4000
        assert snapshot.gangs == ()

        made.pods.link._unmanaged_pod_changed(made.stranger(), None)
        made.pods.drop_below("u1")
        assert (await made.cycle()).pools[0].nodes[0].used == {GPU: 1000}


async def test_pods_on_a_node_that_was_given_to_another_pool_are_a_burden_there(made: Made) -> None:
    made.specs = tuple(PoolSpec(name=name, node_selector={"gpu": name}) for name in ("a100", "h100"))
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    made.alpha.admission.quotas_changed([quota])
    made.move("a100")
    made.pods.put_above(above("u1"))
    made.pods.put_below(below("u1"))
    made.alpha.put(member("u1"))
    made.join()

    def used(snapshot: Snapshot) -> dict[str, list[int]]:
        return {pool.key[1]: [each.used.get(GPU, 0) for each in pool.nodes] for pool in snapshot.pools}

    async with made.running():
        assert used(await made.cycle()) == {"a100": [0], "h100": []}

        made.move("h100")
        snapshot = await made.cycle()
        assert used(snapshot) == {"a100": [], "h100": [1000]}
        assert snapshot.quotas == (quota,), "it counts against the limit of the pool that it was placed in, once"

        made.pods.drop_below("u1")
        assert used(await made.cycle())["h100"] == [0]

        made.pods.put_below(below("u1"))
        made.move("a100")
        assert used(await made.cycle())["a100"] == [0]


async def test_pods_that_wear_our_label_and_are_nobodys_are_counted_for_no_tenant(made: Made) -> None:
    view = below("u1", labels={TENANT_LABEL: "beta"})
    made.pods.link.pods.store[view.metadata.key] = view
    made.join()
    async with made.running():
        assert (await made.cycle()).pools[0].nodes[0].used == {}


def zones(*free: int) -> TopologyView:
    """As host-1 publishes them: two zones of four GPUs."""
    told = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: 4000}, available={GPU: each * 1000}) for at, each in enumerate(free)
    )
    return TopologyView(Meta(name="host-1"), "pod", told)


async def test_zones_are_told_with_the_pods_that_are_in_what_was_published(made: Made) -> None:
    link = made.pods.link
    made.join()
    made.pods.put_below(below("u1"))
    made.wait_above("u1")
    async with made.running():
        assert (await made.cycle()).pools[0].nodes[0].topology is None
        link._topology_changed("host-1", zones(3, 4))
        first = (await made.cycle()).pools[0]
        topology = first.nodes[0].topology
        assert topology is not None
        assert (topology.scope, topology.counted, len(topology.zones)) == ("pod", frozenset({"u1"}), 2)
        assert (await made.cycle()).pools[0] is first

        made.pods.put_below(below("u2"))
        made.wait_above("u2")
        assert (await made.cycle()).pools[0] == first, "what came since was not published"
        link._topology_changed("host-1", zones(3, 3))
        topology = (await made.cycle()).pools[0].nodes[0].topology
        assert topology is not None
        assert topology.counted == {"u1", "u2"}
        assert not topology.gone
        made.pods.drop_below("u1")
        topology = (await made.cycle()).pools[0].nodes[0].topology
        assert topology is not None
        assert {uid: shape.amount_of(GPU) for uid, shape in topology.gone.items()} == {"u1": 1000}
        link._topology_changed("host-1", None)
        assert (await made.cycle()).pools[0].nodes[0].topology is None


async def test_nothing_is_decided_before_it_is_known_whether_there_are_zones(made: Made) -> None:
    made.pods.link.topologies.is_known = False
    made.join()
    async with made.running():
        made.arbitration.trigger()
        await asyncio.sleep(0.05)
        assert made.asked == []
        made.pods.link.topologies.is_known = True
        await until(lambda: made.asked)


async def test_a_node_has_those_of_its_images_that_a_pod_asks_for(made: Made) -> None:
    def on_nodes(snapshot: Snapshot) -> list[set[str]]:
        return [set(found.images) for found in snapshot.pools[0].nodes]

    made.join()
    made.pods.link.nodes.store["", "host-1"] = node("host-1", "train:1", "serve:1")
    made.pods.link.nodes.store["", "host-2"] = node("host-2")
    async with made.running():
        first = await made.cycle()
        assert on_nodes(first) == [set(), set()]

        made.wait_above("u1", shape=replace(Shape.from_requests({GPU: 1000}), images=frozenset({"train:1"})))
        second = await made.cycle()
        assert on_nodes(second) == [{"train:1"}, set()]
        assert second.pools[0].nodes[1] is first.pools[0].nodes[1]

        # Neither a node that fetches one nor a pod that went is worth a cycle; it is seen in time.
        cycles = len(made.asked)
        made.pods.link.nodes.handle_change(node("host-2"), node("host-2", "train:1"))
        made.pods.link.nodes.store["", "host-2"] = node("host-2", "train:1")
        await asyncio.sleep(0.02)
        assert len(made.asked) == cycles
        made.now += 400
        assert on_nodes(await made.cycle()) == [{"train:1"}, {"train:1"}]
        made.alpha.admission.gangs.drop_member("u1")
        made.now += 400
        assert on_nodes(await made.cycle()) == [set(), set()]


async def test_what_is_left_of_a_limit_is_less_by_what_the_arbiter_does_not_place(made: Made) -> None:
    made.alpha.admission.quotas_changed(
        [Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000, "cpu": 1000}, guarantee={GPU: 4000})]
    )
    made.pods.put_below(below("free", marks={COMPUTE_NODE_ANNOTATION: ""}))
    made.join()
    async with made.running():
        quota = (await made.cycle()).quotas[0]
        assert quota.limit == {GPU: 7000, "cpu": 1000}
        assert quota.guarantee == {GPU: 4000}


async def test_nodes_that_did_not_take_a_pod_are_left_alone_for_a_while(made: Made) -> None:
    made.join()
    async with made.running():
        assert (await made.cycle()).pools[0].nodes[0].usable
        assert made.arbitration.avoid_node("local", "host-1")
        assert not (await made.cycle()).pools[0].nodes[0].usable
        made.now += 299
        assert not (await made.cycle()).pools[0].nodes[0].usable
        made.now += 2
        assert (await made.cycle()).pools[0].nodes[0].usable


async def test_where_many_nodes_take_no_pod_it_is_not_their_fault(made: Made) -> None:
    made.join()
    async with made.running():
        await made.cycle()
        assert [made.arbitration.avoid_node("local", f"host-{number}") for number in (1, 2, 3, 1)] == [
            True,
            True,
            False,
            True,
        ]
        assert not made.arbitration.avoid_node("elsewhere", "host-1")


async def test_what_ends_of_pods_that_are_gone_is_told_as_room_to_come(made: Made) -> None:
    made.pods.put_below(below("gone"))
    made.join()
    async with made.running():
        snapshot = await made.cycle()
        assert [(gang.id, gang.pods[0].state) for gang in snapshot.gangs] == [
            ("alpha/default/gone/gone", PodState.ENDING)
        ]
        assert snapshot.pools[0].nodes[0].used == {}


async def test_gangs_that_only_a_cluster_away_could_run_wait_for_it(made: Made) -> None:
    made.join()
    made.wait_above("u1")
    made.wait_above("u2", pools=(POOL, ("far", "a100")))
    made.wait_above("u3", pools=())
    async with made.running():
        await made.cycle()
        assert made.alpha.admission.verdict_store.pending_messages == {}

        made.pods.link.reachability.is_reachable = False
        snapshot = await made.cycle()
        assert snapshot.pools == ()
        holds = made.alpha.admission.verdict_store.pending_messages
        assert {gang: waits.reason for gang, waits in holds.items()} == {
            GANG: "the compute cluster cannot be reached now",
            f"{TENANT}/default/pod/u2": "the compute cluster cannot be reached now",
        }


async def test_a_cluster_that_is_connected_anew_is_looked_at_anew(made: Made) -> None:
    made.join()
    async with made.running():
        await made.cycle()
        old, new = made.pods.link, Pods().link
        new.nodes.store["", "host-9"] = node("host-9")
        everything_known(new)
        made.links["local"] = new
        snapshot = await made.cycle()
        assert [found.name for found in snapshot.pools[0].nodes] == ["host-9"]
        assert old.on_pod_changed == []

        del made.links["local"]
        assert (await made.cycle()).pools == ()


# -- what follows ------------------------------------------------------------------------------------------------------


async def test_each_answer_reaches_the_tenant_whose_gang_it_is_about(made: Made) -> None:
    beta = Part("beta", Pods(), made.arbitration)
    made.join()
    made.join(beta)
    made.wait_above()
    async with made.running():
        made.answer = Decisions(
            admits=(
                Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),
                Admit(gang="gone/x", pool=POOL, nodes={"u1": "host-1"}, borrowed=True),
            )
        )
        await made.cycle()
        assert made.said() is VerdictState.ADMITTED
        assert beta.admission.verdict_store.verdicts == {}

        made.answer = Decisions(
            evicts=(Evict(gang=GANG, pods=("u1",), whole=True, makes_room_for="beta/x", deadline=2000.0, lost=0.0),),
            holds=(PendingReport(gang="beta/default/pod/u9", code=PendingReason.ROOM, message="no room"),),
        )
        await made.cycle()
        assert made.said() is VerdictState.EVICTING
        assert list(beta.admission.verdict_store.pending_messages) == ["beta/default/pod/u9"]
        assert made.alpha.admission.verdict_store.pending_messages == {}

        made.answer = Decisions(
            reprieves=(Reprieve(gang=GANG, pods=("u1",)),), promotes=(Promote(gang=GANG, pods=("u1",)),)
        )
        await made.cycle()
        assert made.said() is VerdictState.ADMITTED
        assert not made.alpha.admission.verdict_store.verdicts["u1"].borrowed
        assert beta.admission.verdict_store.pending_messages == {}


async def test_a_pod_that_went_while_it_was_decided_about_is_not_admitted(made: Made) -> None:
    made.join()
    made.wait_above()
    decide = made.arbitration._decide

    def slow(snapshot: Snapshot, now: float) -> Decisions:
        made.pods.above.store.clear()
        decide(snapshot, now)
        return Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))

    made.arbitration._decide = slow
    async with made.running():
        await made.cycle()
        assert made.alpha.admission.verdict_store.verdicts == {}


async def test_a_tenant_that_went_while_it_was_decided_about_hurts_nobody(made: Made) -> None:
    made.join()
    made.wait_above()
    made.answer = Decisions(
        admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),),
        holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),),
    )
    decide = made.arbitration._decide

    def slow(snapshot: Snapshot, now: float) -> Decisions:
        made.arbitration._tenants.clear()
        return decide(snapshot, now)

    made.arbitration._decide = slow
    async with made.running():
        await made.cycle()
        await made.cycle()


# -- how those who go are treated --------------------------------------------------------------------------------------


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
async def test_a_pool_may_have_its_own_notice_and_grace(spec: PoolSpec, expected: EvictionTerms) -> None:
    arbitration = Made(specs=(spec,)).arbitration
    assert arbitration.eviction_terms(POOL) == expected
    assert arbitration.eviction_terms(("elsewhere", "a100")) == EvictionTerms(7.0, 8.0)
    assert arbitration.eviction_terms(None) == EvictionTerms(7.0, 8.0)

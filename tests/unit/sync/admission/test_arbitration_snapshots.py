"""Snapshots of the arbitration: pools, usage, zones, images and plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.waiting import let_pass, wait_until
from tests.unit.sync.admission.arbitration_harness import GANG, Harness, complete_lists, make_node
from tests.unit.sync.admission.samples import (
    GPU,
    POOL,
    TENANT,
    PodStores,
    compute_view,
    make_member,
    tenant_view,
)
from vkgateway.api.names import COMPUTE_NODE_ANNOTATION, TENANT_LABEL
from vkgateway.api.objects import Meta
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.cluster_watches import PODS, TOPOLOGIES, UNMANAGED_PODS
from vkgateway.clusters.topology_views import TopologyView
from vkgateway.scheduler.core.decisions import Admit, Decisions
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import PodState, Policy, PreemptionPlan, Quota, Shape, Snapshot, Zone
from vkgateway.scheduler.service.peer_constraints import read_constraints


@pytest.fixture
async def harness() -> Harness:
    return Harness()


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


async def test_quota_names_what_its_tenant_may_not_borrow(harness: Harness) -> None:
    quota = Quota(tenant=TENANT, pool=POOL)
    harness.alpha.admission.quotas_changed([quota])
    harness.add_tenant()
    harness.stopped[TENANT, POOL] = {GPU: 8.0}
    async with harness.running():
        assert (await harness.run_cycle()).quotas == (replace(quota, stopped=(GPU,), budget_hours={GPU: 8.0}),)
        harness.stopped.clear()
        assert (await harness.run_cycle()).quotas == (quota,)


async def test_unmanaged_and_unread_pods_use_capacity_but_members_do_not(harness: Harness) -> None:
    harness.pods.link.unmanaged_pods.store["x", "s1"] = harness.add_unmanaged(gpus=2)
    harness.pods.put_compute(compute_view("u1"))
    harness.pods.put_tenant(tenant_view("u1"))
    harness.pods.put_compute(compute_view("free", annotations={COMPUTE_NODE_ANNOTATION: ""}))
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.arbitration.waiting_since is not None)
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


async def test_pods_that_a_constraint_selects_count_on_their_nodes(harness: Harness) -> None:
    harness.pods.put_tenant(tenant_view("plain", meta={"labels": {"app": "web"}}))
    harness.pods.put_compute(compute_view("plain", annotations={COMPUTE_NODE_ANNOTATION: ""}))
    harness.add_tenant()
    term = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}
    spec = {"topologySpreadConstraints": [{**term, "labelSelector": {"matchLabels": {"app": "web"}}}]}
    pod = {"metadata": {"namespace": "default", "labels": {"app": "web"}}, "spec": spec}
    constraints = read_constraints(pod, TENANT, fronts=[{"kubernetes.io/hostname": "a100.local"}], carried=frozenset())
    async with harness.running():
        assert (await harness.run_cycle()).pools[0].nodes[0].peers == {}

        harness.pods.put_tenant(tenant_view("u1"))
        harness.alpha.put_member(make_member("u1", labels={"app": "web"}, peer_constraints=constraints))
        snapshot = await harness.run_cycle()
        [selector] = constraints.selectors
        assert snapshot.pools[0].nodes[0].peers == {selector: 1}
        assert snapshot.gangs[0].pods[0].shape.peers == replace(constraints.rules, selected_by=frozenset((selector,)))

        harness.pods.drop_compute("plain")
        assert (await harness.run_cycle()).pools[0].nodes[0].peers == {}


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
    zones = tuple(
        Zone(name=f"node-{at}", allocatable={GPU: 4000}, available={GPU: each * 1000}) for at, each in enumerate(free)
    )
    return TopologyView(Meta(name="host-1"), "pod", zones)


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
        await let_pass(0.05)
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
        await let_pass(0.02)
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
        assert harness.alpha.admission.reasons.pending_messages == {}

        harness.pods.link.reachability.is_reachable = False
        snapshot = await harness.run_cycle()
        assert snapshot.pools == ()
        holds = harness.alpha.admission.reasons.pending_messages
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


# -- past shares -------------------------------------------------------------------------------------------------------


async def test_past_shares_are_observed_before_and_after_the_decisions(harness: Harness) -> None:
    """What starts counts from its start, even if no other cycle follows for hours."""
    observed: list[Snapshot] = []
    past = (PastShare(tenant=TENANT, pool=POOL, average=0.5, share=0.0, at=900.0),)

    def observe(snapshot: Snapshot, now: float) -> tuple[PastShare, ...]:
        assert now == harness.now
        observed.append(snapshot)
        return past

    settings = harness.arbitration.settings
    harness.arbitration.settings = replace(settings, policy=Policy(half_life=3600.0))
    harness.observe_shares = observe
    harness.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        snapshot = await harness.run_cycle()
    assert snapshot.past_shares == past
    assert [found.gangs[0].pods[0].state for found in observed[:2]] == [PodState.WAITING, PodState.PLACED]


async def test_no_past_shares_are_observed_without_half_life(harness: Harness) -> None:
    harness.observe_shares = lambda _snapshot, _now: pytest.fail("observed")
    harness.add_tenant()
    async with harness.running():
        assert (await harness.run_cycle()).past_shares == ()

"""Gated pods over both servers: let go and pinned where there is room, held where there is none, by-passes or not."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from tests.unit.sync.admission.platform import (
    ADMITTED,
    GATE,
    SECOND_NODE,
    add_node,
    annotation,
    bind,
    change,
    condition,
    cordon,
    creations,
    deleted,
    gated,
    is_let_go,
    let_go,
    pinned_to,
    pod,
    run,
    start,
    status_writes,
    stranger,
    told,
)
from tests.unit.sync.world import BELOW, COMPUTE_NODE, NODE, World, until, world
from vkgateway.kube.resources import NAMESPACES, PODS, Resource
from vkgateway.model.names import BORROWED_ANNOTATION, COMPUTE_NODE_ANNOTATION, UID_ANNOTATION
from vkgateway.sync.admission import companion_objects
from vkgateway.sync.views.annotations import RETAKEN

HOSTNAME = "kubernetes.io/hostname"
GPUS = {"nvidia.com/gpu": 8000}


@pytest.fixture
async def here(told_soon: None) -> AsyncIterator[World]:
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield made


# -- let go ------------------------------------------------------------------------------------------------------------


async def test_a_gated_pod_is_let_go_narrowed_to_the_virtual_node_that_was_chosen(here: World) -> None:
    gated(here, nodeSelector={"vkgateway.io/pool": "a100"})
    async with here.gateway():
        freed = await let_go(here)
        assert freed["spec"]["nodeSelector"] == {"vkgateway.io/pool": "a100", HOSTNAME: NODE}
        await here.settled()
        assert creations(here) == 0, "it runs below once the tenant's scheduler has bound it"
        assert status_writes(here) == 0, "who does not wait need not be told why"


async def test_a_pod_that_was_bound_runs_pinned_to_its_compute_node_with_all_that_a_restart_must_know(
    here: World,
) -> None:
    add_node(here)
    here.guarantee = GPUS
    gated(here)
    async with here.gateway():
        below = await start(here)

    chosen = annotation(below, COMPUTE_NODE_ANNOTATION)
    assert chosen in (COMPUTE_NODE, SECOND_NODE)
    assert pinned_to(below) == chosen
    assert annotation(below, BORROWED_ANNOTATION) == "false"
    assert annotation(below, UID_ANNOTATION) == pod(here)["metadata"]["uid"]
    assert creations(here) == 1


async def test_work_beyond_the_guarantee_is_marked_as_borrowed(here: World) -> None:
    gated(here)
    async with here.gateway():
        below = await start(here)
    assert annotation(below, BORROWED_ANNOTATION) == "true"


async def test_pods_that_do_not_fit_one_node_together_are_spread(here: World) -> None:
    add_node(here)
    here.limit = here.limit | {"nvidia.com/gpu": 16_000}
    gated(here, "one", gpus=5)
    gated(here, "two", gpus=5)
    async with here.gateway():
        nodes = {pinned_to(await start(here, name)) for name in ("one", "two")}
    assert nodes == {COMPUTE_NODE, SECOND_NODE}


async def test_a_pod_with_another_gate_waits_for_that_one_and_says_so(here: World) -> None:
    gated(here, schedulingGates=[{"name": "example.com/quota"}, GATE])
    async with here.gateway():
        assert "example.com/quota" in await told(here, "WaitingForMembers")
        assert pod(here)["spec"]["schedulingGates"] == [{"name": "example.com/quota"}, GATE]
        change(here, schedulingGates=[GATE])
        await let_go(here)


async def test_a_pod_that_asks_for_nothing_governed_is_none_of_the_arbiters(here: World) -> None:
    here.create("free")
    async with here.gateway():
        below = await here.forwarded("free")
        await here.settled()
    assert annotation(below, COMPUTE_NODE_ANNOTATION) == ""
    assert condition(here, ADMITTED, "free") is None


async def test_our_gate_on_a_pod_that_asks_for_nothing_governed_is_lifted(here: World) -> None:
    """Put there by hand; nobody else would ever take it off."""
    gated(here, containers=[{"name": "main", "image": "x"}])
    async with here.gateway():
        freed = await let_go(here)
        assert HOSTNAME not in freed["spec"].get("nodeSelector", {})


# -- held --------------------------------------------------------------------------------------------------------------


async def test_a_pod_for_which_there_is_no_room_is_told_so_and_starts_when_there_is(here: World) -> None:
    here.limit = here.limit | {"nvidia.com/gpu": 16_000}
    gated(here, "first", gpus=8)
    async with here.gateway():
        await start(here, "first")
        gated(here, "second", gpus=4)
        message = await told(here, "WaitingForRoom", "second")
        assert COMPUTE_NODE not in message
        assert f"in {NODE};" in message
        assert [reason for reason, _ in here.events()].count("WaitingForRoom") == 1
        assert not is_let_go(here, "second")

        here.end("first")
        await let_go(here, "second")
        await until(lambda: (condition(here, ADMITTED, "second") or ("",))[0] == "True")
        bind(here, "second")
        await here.forwarded("second")
        run(here, "second")
        await until(lambda: condition(here, ADMITTED, "second") is None)


async def test_a_pod_that_was_admitted_while_its_tenants_server_was_away_is_let_go_when_that_is_back(
    here: World,
) -> None:
    gated(here, "first", gpus=8)
    async with here.gateway() as sync:
        await start(here, "first")
        uid = gated(here, gpus=8)["metadata"]["uid"]
        await until(lambda: condition(here, ADMITTED))
        here.above.fail("GET", "/configmaps", status=500, times=10_000)
        here.above.end_watches()
        await until(lambda: not sync.is_complete)
        here.end("first")
        await until(lambda: uid in sync.pods.admission.tenant_admission.verdict_store.verdicts)
        await here.settled()
        assert not is_let_go(here)
        here.above.heal()
        await let_go(here)


async def test_a_pod_that_came_and_went_while_lists_were_taken_anew_is_not_waited_for(here: World) -> None:
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        here.above.fail("GET", "/configmaps", status=500, times=10_000)
        here.above.end_watches()
        await until(lambda: not sync.is_complete)
        gated(here)
        await until(lambda: not sync.pods.admission.tenant_admission.is_known)
        await here.settled()
        here.delete(grace=0)
        await until(lambda: not sync.cache.pods.store)
        here.above.heal()
        await until(lambda: sync.is_complete)
        await until(lambda: sync.pods.admission.tenant_admission.is_known)


async def test_a_gang_of_two_with_room_for_one_stays_gated_as_a_whole(here: World) -> None:
    add_node(here)
    stranger(here, gpus=8, node=SECOND_NODE)
    here.limit = here.limit | {"nvidia.com/gpu": 16_000}
    gated(here, "one", gpus=8, gang=("train", 2))
    gated(here, "two", gpus=8, gang=("train", 2))
    async with here.gateway():
        for name in ("one", "two"):
            await told(here, "WaitingForRoom", name)
        await here.settled()
        assert not is_let_go(here, "one")
        assert not is_let_go(here, "two")
        assert creations(here) == 0

        here.below.store.delete(PODS, "daemon", "default", grace=0)
        nodes = {pinned_to(await start(here, name)) for name in ("one", "two")}
    assert nodes == {COMPUTE_NODE, SECOND_NODE}


async def test_a_gang_waits_for_members_that_were_not_created_yet(here: World) -> None:
    gated(here, "one", gang=("train", 2))
    async with here.gateway():
        assert "1 of" in await told(here, "WaitingForMembers", "one")
        gated(here, "two", gang=("train", 2))
        await let_go(here, "one")
        await let_go(here, "two")


async def test_a_gang_waits_for_the_object_that_says_its_size_and_follows_it(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion_objects, "_RETRY", 0.1)
    marks = {"scheduling.k8s.io/group-name": "train"}
    pod_groups = Resource("apis/scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup")
    group = {"metadata": {"name": "train"}, "spec": {"minMember": 3}}
    gated(here, "one", marks=marks)
    gated(here, "two", marks=marks)
    async with here.gateway() as sync:
        assert "PodGroup train" in await told(here, "WaitingForMembers", "one")

        here.above.register(pod_groups)
        here.above.store.create(pod_groups, group, "default")
        await until(
            lambda: (
                "of 3" in next(iter(sync.pods.admission.tenant_admission.verdict_store.pending_messages.values())).text
            )
        )
        assert not is_let_go(here, "one")

        here.above.store.update(pod_groups, {**group, "spec": {"minMember": 2}}, name="train", namespace="default")
        await let_go(here, "one")
        await let_go(here, "two")


async def test_marks_that_contradict_each_other_hold_the_gang_and_are_told_as_a_warning(here: World) -> None:
    gated(here, "one", gang=("train", 2))
    gated(here, "two", gang=("train", 3))
    async with here.gateway():
        await told(here, "Invalid", "one")
        await told(here, "Invalid", "two")
        assert not is_let_go(here, "one")


async def test_a_tenant_at_its_limit_waits_though_there_is_room(here: World) -> None:
    here.limit = here.limit | {"nvidia.com/gpu": 2000}
    gated(here, "first", gpus=2)
    async with here.gateway():
        await start(here, "first")
        gated(here, "second", gpus=1)
        await told(here, "WaitingForQuota", "second")


async def test_a_pod_deleted_while_it_is_held_goes_and_leaves_nothing(here: World) -> None:
    gated(here, gpus=9)
    async with here.gateway() as sync:
        await told(here, "Infeasible")
        here.delete()
        await until(lambda: here.tenant_pod() is None)
        await until(lambda: not list(sync.pods.admission.tenant_admission.gangs))
        assert not sync.pods.admission.gate_reconciler._reporter._pod_reports


# -- tampering ---------------------------------------------------------------------------------------------------------


async def test_removing_the_gate_by_hand_gains_nothing(here: World) -> None:
    stranger(here, gpus=8)
    gated(here)
    async with here.gateway():
        await told(here, "WaitingForRoom")
        change(here, schedulingGates=None)
        bind(here)
        await here.settled()
        assert here.compute_pod() is None
        assert condition(here, ADMITTED) is not None

        here.below.store.delete(PODS, "daemon", "default", grace=0)
        assert pinned_to(await here.forwarded()) == COMPUTE_NODE


async def test_a_node_set_by_hand_gains_nothing(here: World) -> None:
    stranger(here, gpus=8)
    gated(here, nodeName=NODE, schedulingGates=None)
    async with here.gateway():
        await told(here, "WaitingForRoom")
        await here.settled()
        assert here.compute_pod() is None

        here.below.store.delete(PODS, "daemon", "default", grace=0)
        assert pinned_to(await here.forwarded()) == COMPUTE_NODE


async def test_a_member_let_in_by_hand_does_not_run_without_its_gang(here: World) -> None:
    gated(here, "one", gang=("train", 2), nodeName=NODE, schedulingGates=None)
    async with here.gateway():
        await told(here, "WaitingForMembers", "one")
        assert here.compute_pod("one") is None
        gated(here, "two", gang=("train", 2))
        await start(here, "two")
        await here.forwarded("one")


async def test_a_notice_written_by_the_tenant_has_no_effect(here: World) -> None:
    gated(here)
    async with here.gateway():
        await start(here)
        changed = pod(here)
        changed["metadata"].setdefault("annotations", {})["vkgateway.io/eviction-deadline"] = "2026-01-01T00:00:00Z"
        here.above.store.update(PODS, {**changed, "metadata": {**changed["metadata"]}}, name="web", namespace="default")
        await here.settled()
        below = here.compute_pod()
        assert below is not None
        assert annotation(below, "vkgateway.io/eviction-deadline") == ""
        assert "deletionTimestamp" not in below["metadata"]


# -- the compute cluster -----------------------------------------------------------------------------------------------


async def test_pods_of_others_on_a_node_take_room_there_and_those_that_nobody_bound_take_none(here: World) -> None:
    stranger(here, "unbound", gpus=8, node="")
    stranger(here, "bound", gpus=6)
    gated(here, "large", gpus=3)
    gated(here, "small", gpus=2)
    async with here.gateway():
        await start(here, "small")
        await told(here, "WaitingForRoom", "large")
        here.below.store.delete(PODS, "bound", "default", grace=0)
        await start(here, "large")


async def test_pods_of_ours_that_ask_for_nothing_governed_take_room_too(here: World) -> None:
    hungry = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "60"}}}]
    here.create("hungry", containers=hungry)
    async with here.gateway():
        await here.forwarded("hungry")
        here.run("hungry")
        gated(
            here,
            containers=[
                {
                    "name": "main",
                    "image": "x",
                    "resources": {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1"}},
                }
            ],
        )
        await told(here, "WaitingForRoom")
        here.end("hungry")
        await let_go(here)


async def test_nothing_new_starts_on_a_node_that_was_cordoned(here: World) -> None:
    gated(here, "first")
    async with here.gateway():
        await start(here, "first")
        cordon(here)
        await here.settled()
        gated(here, "second")
        await told(here, "WaitingForRoom", "second")
        assert here.phase("first") == "Running"

        add_node(here)
        assert pinned_to(await start(here, "second")) == SECOND_NODE
        cordon(here, closed=False)
        gated(here, "third")
        await start(here, "third")


async def test_a_compute_cluster_that_cannot_be_reached_is_named_as_the_reason(here: World) -> None:
    gated(here, "first")
    async with here.gateway():
        await start(here, "first")
        port = here.below.port
        await here.below.stop()
        await until(lambda: here.link is not None and not here.link.is_reachable)
        gated(here, "second")
        assert await told(here, "WaitingForRoom", "second") == "the compute cluster cannot be reached now"
        assert not is_let_go(here, "second")

        await here.below.start(port)
        await until(lambda: is_let_go(here, "second"))
        assert here.phase("first") == "Running"
        await here.settled()
        assert creations(here) == 1


async def test_a_compute_pod_that_no_node_takes_is_taken_back_and_placed_elsewhere_unseen_above(here: World) -> None:
    add_node(here)
    here.bind = 1.0
    gated(here)
    async with here.gateway():
        await let_go(here)
        bind(here)
        first = await here.forwarded()
        uid, node = first["metadata"]["uid"], pinned_to(first)
        await here.settled()
        before = status_writes(here)
        phases = {here.phase()}

        def placed_anew() -> bool:
            phases.add(here.phase())
            found = here.compute_pod()
            return found is not None and found["metadata"]["uid"] != uid

        await until(placed_anew)
        second = here.compute_pod()
        assert second is not None
        assert {node, pinned_to(second)} == {COMPUTE_NODE, SECOND_NODE}
        run(here)
        await until(lambda: here.phase() == "Running")
        await here.settled()
        assert phases == {"Pending"}
        assert condition(here, "DisruptionTarget") is None
        assert status_writes(here) <= before + 2
        assert creations(here) == 2
    assert here.below.store.find(PODS, "web", BELOW) is not None


# -- the platform ------------------------------------------------------------------------------------------------------


async def test_a_pod_that_no_pool_took_starts_once_its_tenant_has_one(here: World) -> None:
    async with here.gateway() as sync:
        assert here.link is not None
        quotas = sync.pods.admission.tenant_admission.quotas
        links = {"local": here.link}
        sync.update_tenant(sync.tenant, links=links, bindings={})
        sync.set_quotas([])
        gated(here)
        await told(here, "Invalid")

        sync.update_tenant(sync.tenant, links=links, bindings={NODE: here.binding(here.link)})
        sync.set_quotas(quotas)
        await start(here)


async def test_a_pod_whose_pool_is_taken_from_its_tenant_is_not_let_go(here: World) -> None:
    stranger(here, gpus=8)
    gated(here)
    async with here.gateway() as sync:
        await told(here, "WaitingForRoom")
        assert here.link is not None
        sync.update_tenant(sync.tenant, links={"local": here.link}, bindings={})
        sync.set_quotas([])
        here.below.store.delete(PODS, "daemon", "default", grace=0)
        await here.settled()
        assert not is_let_go(here)


async def test_a_compute_pod_that_a_node_takes_at_the_last_moment_stays(here: World) -> None:
    add_node(here)
    here.bind = 1.0
    gated(here)
    async with here.gateway() as sync:
        await let_go(here)
        bind(here)
        first = await here.forwarded()
        gate = here.below.hold("PATCH", "/pods/web")
        await until(lambda: any(request.startswith("PATCH") for request in here.below.requests))
        run(here)
        gate.set()
        await until(lambda: here.phase() == "Running")
        await here.settled()
        second = here.compute_pod()
        assert second is not None
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        assert not deleted(second)
        uid = pod(here)["metadata"]["uid"]
        assert sync.pods.admission.tenant_admission.verdict_store.verdicts[uid].node == pinned_to(first)
        assert not sync.pods.admission.tenant_admission._observer.reverted_pods
    assert creations(here) == 1


@pytest.mark.parametrize("next_gateway", [False, True])
async def test_so_does_one_that_was_marked_already(here: World, next_gateway: bool) -> None:
    """Also where the gateway is another by then."""
    add_node(here)
    here.bind = 1.0
    gated(here)
    async with here.gateway():
        await let_go(here)
        bind(here)
        first = await here.forwarded()
        gate = here.below.hold("DELETE", "/pods/web")
        await until(lambda: any(request.startswith("DELETE") for request in here.below.requests))
        run(here)
        if not next_gateway:
            gate.set()
            await until(lambda: here.phase() == "Running")
            await here.settled()
    here.below.heal()
    here.bind = 60.0
    async with here.gateway():
        await until(lambda: here.phase() == "Running")
        await until(lambda: RETAKEN not in (here.compute_pod() or first)["metadata"]["annotations"])
        await here.settled()
    second = here.compute_pod()
    assert second is not None
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert not deleted(second)
    assert creations(here) == 1


async def test_clocks_that_differ_take_no_pod_back() -> None:
    """The gateway's is ahead of the compute cluster's, by more than a pod may stay without a node."""
    async with world(clock=lambda: time.time() + 300) as here:
        gated(here)
        async with here.gateway() as sync:
            await let_go(here)
            bind(here)
            first = await here.forwarded()
            await here.settled()
            sync.enqueue_all()
            await here.settled()
            run(here)
            await until(lambda: here.phase() == "Running")
            second = here.compute_pod()
    assert second is not None
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert creations(here) == 1

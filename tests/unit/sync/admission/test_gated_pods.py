"""Gated pods with both servers: admitted and pinned if there is free capacity, held otherwise, despite tampering."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import (
    ADMITTED,
    GATE,
    SECOND_NODE,
    add_node,
    bind_pod,
    change_spec,
    count_creations,
    count_status_writes,
    create_gated,
    create_unmanaged,
    event_messages,
    get_annotation,
    get_condition,
    get_pod,
    is_ungated,
    pinned_node,
    run_pod,
    start_pod,
    wait_ungated,
)
from tests.unit.sync.world import COMPUTE_NODE, NODE, World, start_world
from vkgateway.api.names import BORROWED_ANNOTATION, COMPUTE_NODE_ANNOTATION, UID_ANNOTATION
from vkgateway.kube.resources import NAMESPACES, PODS, Resource
from vkgateway.scheduler.service import companion_objects

HOSTNAME = "kubernetes.io/hostname"
GPUS = {"nvidia.com/gpu": 8000}


@pytest.fixture
async def world(told_soon: None) -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield world


# -- admission ---------------------------------------------------------------------------------------------------------


async def test_admitted_pod_is_ungated_and_restricted_to_its_virtual_node(world: World) -> None:
    create_gated(world, nodeSelector={"vkgateway.io/pool": "a100"})
    async with world.run_gateway():
        freed = await wait_ungated(world)
        assert freed["spec"]["nodeSelector"] == {"vkgateway.io/pool": "a100", HOSTNAME: NODE}
        await world.wait_settled()
        assert count_creations(world) == 0, "it runs below once the tenant's scheduler has bound it"
        assert count_status_writes(world) == 0, "who does not wait need not be told why"


async def test_bound_pod_runs_on_its_node_with_annotations_for_a_restart(
    world: World,
) -> None:
    add_node(world)
    world.guarantee = GPUS
    create_gated(world)
    async with world.run_gateway():
        compute_pod = await start_pod(world)

    chosen = get_annotation(compute_pod, COMPUTE_NODE_ANNOTATION)
    assert chosen in (COMPUTE_NODE, SECOND_NODE)
    assert pinned_node(compute_pod) == chosen
    assert get_annotation(compute_pod, BORROWED_ANNOTATION) == "false"
    assert get_annotation(compute_pod, UID_ANNOTATION) == get_pod(world)["metadata"]["uid"]
    assert count_creations(world) == 1


async def test_pods_beyond_the_guarantee_are_marked_as_borrowed(world: World) -> None:
    create_gated(world)
    async with world.run_gateway():
        compute_pod = await start_pod(world)
    assert get_annotation(compute_pod, BORROWED_ANNOTATION) == "true"


async def test_pods_are_spread_if_they_do_not_fit_one_node(world: World) -> None:
    add_node(world)
    world.limit = world.limit | {"nvidia.com/gpu": 16_000}
    create_gated(world, "one", gpus=5)
    create_gated(world, "two", gpus=5)
    async with world.run_gateway():
        nodes = {pinned_node(await start_pod(world, name)) for name in ("one", "two")}
    assert nodes == {COMPUTE_NODE, SECOND_NODE}


async def test_pod_with_another_gate_waits_for_it_with_a_reason(world: World) -> None:
    create_gated(world, schedulingGates=[{"name": "example.com/quota"}, GATE])
    async with world.run_gateway():
        assert "example.com/quota" in await event_messages(world, "WaitingForMembers")
        assert get_pod(world)["spec"]["schedulingGates"] == [{"name": "example.com/quota"}, GATE]
        change_spec(world, schedulingGates=[GATE])
        await wait_ungated(world)


async def test_pod_without_governed_resources_is_not_arbitrated(world: World) -> None:
    world.create_pod("free")
    async with world.run_gateway():
        compute_pod = await world.wait_forwarded("free")
        await world.wait_settled()
    assert get_annotation(compute_pod, COMPUTE_NODE_ANNOTATION) == ""
    assert get_condition(world, ADMITTED, "free") is None


async def test_gate_of_a_pod_without_governed_resources_is_removed(world: World) -> None:
    """The gate was set manually, and no other controller would remove it."""
    create_gated(world, containers=[{"name": "main", "image": "x"}])
    async with world.run_gateway():
        freed = await wait_ungated(world)
        assert HOSTNAME not in freed["spec"].get("nodeSelector", {})


# -- pending -----------------------------------------------------------------------------------------------------------


async def test_pod_without_free_capacity_has_a_reason_and_starts_later(world: World) -> None:
    world.limit = world.limit | {"nvidia.com/gpu": 16_000}
    create_gated(world, "first", gpus=8)
    async with world.run_gateway():
        await start_pod(world, "first")
        create_gated(world, "second", gpus=4)
        message = await event_messages(world, "WaitingForRoom", "second")
        assert COMPUTE_NODE not in message
        assert f"in {NODE};" in message
        assert [reason for reason, _ in world.events()].count("WaitingForRoom") == 1
        assert not is_ungated(world, "second")

        world.end_pod("first")
        await wait_ungated(world, "second")
        await wait_until(lambda: (get_condition(world, ADMITTED, "second") or ("",))[0] == "True")
        bind_pod(world, "second")
        await world.wait_forwarded("second")
        run_pod(world, "second")
        await wait_until(lambda: get_condition(world, ADMITTED, "second") is None)


async def test_pod_admitted_during_a_tenant_outage_is_ungated_afterwards(
    world: World,
) -> None:
    create_gated(world, "first", gpus=8)
    async with world.run_gateway() as sync:
        await start_pod(world, "first")
        uid = create_gated(world, gpus=8)["metadata"]["uid"]
        await wait_until(lambda: get_condition(world, ADMITTED))
        world.tenant_server.fail("GET", "/configmaps", status=500, times=10_000)
        world.tenant_server.end_watches()
        await wait_until(lambda: not sync.is_complete)
        world.end_pod("first")
        await wait_until(lambda: uid in sync.reconcilers.admission.tenant_admission.verdict_store.verdicts)
        await world.wait_settled()
        assert not is_ungated(world)
        world.tenant_server.heal()
        await wait_ungated(world)


async def test_pod_created_and_deleted_during_a_relist_is_not_expected(world: World) -> None:
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        world.tenant_server.fail("GET", "/configmaps", status=500, times=10_000)
        world.tenant_server.end_watches()
        await wait_until(lambda: not sync.is_complete)
        create_gated(world)
        await wait_until(lambda: not sync.reconcilers.admission.tenant_admission.is_known)
        await world.wait_settled()
        world.delete_pod(grace=0)
        await wait_until(lambda: not sync.scope.cache.pods.store)
        world.tenant_server.heal()
        await wait_until(lambda: sync.is_complete)
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)


async def test_gang_of_two_stays_gated_if_only_one_fits(world: World) -> None:
    add_node(world)
    create_unmanaged(world, gpus=8, node=SECOND_NODE)
    world.limit = world.limit | {"nvidia.com/gpu": 16_000}
    create_gated(world, "one", gpus=8, gang=("train", 2))
    create_gated(world, "two", gpus=8, gang=("train", 2))
    async with world.run_gateway():
        for name in ("one", "two"):
            await event_messages(world, "WaitingForRoom", name)
        await world.wait_settled()
        assert not is_ungated(world, "one")
        assert not is_ungated(world, "two")
        assert count_creations(world) == 0

        world.compute_server.store.delete(PODS, "daemon", "default", grace=0)
        nodes = {pinned_node(await start_pod(world, name)) for name in ("one", "two")}
    assert nodes == {COMPUTE_NODE, SECOND_NODE}


async def test_gang_waits_for_missing_members(world: World) -> None:
    create_gated(world, "one", gang=("train", 2))
    async with world.run_gateway():
        assert "1 of" in await event_messages(world, "WaitingForMembers", "one")
        create_gated(world, "two", gang=("train", 2))
        await wait_ungated(world, "one")
        await wait_ungated(world, "two")


async def test_gang_waits_for_its_companion_object_and_follows_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(companion_objects, "_RETRY", 0.1)
    marks = {"scheduling.k8s.io/group-name": "train"}
    pod_groups = Resource("apis/scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup")
    group = {"metadata": {"name": "train"}, "spec": {"minMember": 3}}
    create_gated(world, "one", annotations=marks)
    create_gated(world, "two", annotations=marks)
    async with world.run_gateway() as sync:
        assert "PodGroup train" in await event_messages(world, "WaitingForMembers", "one")

        world.tenant_server.register(pod_groups)
        world.tenant_server.store.create(pod_groups, group, "default")
        reasons = sync.reconcilers.admission.tenant_admission.reasons
        await wait_until(lambda: any("of 3" in waits.text for waits in reasons.pending_messages.values()))
        assert not is_ungated(world, "one")

        world.tenant_server.store.update(
            pod_groups, {**group, "spec": {"minMember": 2}}, name="train", namespace="default"
        )
        await wait_ungated(world, "one")
        await wait_ungated(world, "two")


async def test_contradicting_marks_hold_the_gang_with_a_warning(world: World) -> None:
    create_gated(world, "one", gang=("train", 2))
    create_gated(world, "two", gang=("train", 3))
    async with world.run_gateway():
        await event_messages(world, "Invalid", "one")
        await event_messages(world, "Invalid", "two")
        assert not is_ungated(world, "one")


async def test_tenant_at_its_limit_waits_despite_free_capacity(world: World) -> None:
    world.limit = world.limit | {"nvidia.com/gpu": 2000}
    create_gated(world, "first", gpus=2)
    async with world.run_gateway():
        await start_pod(world, "first")
        create_gated(world, "second", gpus=1)
        await event_messages(world, "WaitingForQuota", "second")


async def test_deleted_pending_pod_leaves_nothing(world: World) -> None:
    create_gated(world, gpus=9)
    async with world.run_gateway() as sync:
        await event_messages(world, "Infeasible")
        world.delete_pod()
        await wait_until(lambda: world.tenant_pod() is None)
        await wait_until(lambda: not list(sync.reconcilers.admission.tenant_admission.gangs))
        await wait_until(lambda: not sync.reconcilers.admission.gate_reconciler.reporter.pod_reports)


# -- tampering ---------------------------------------------------------------------------------------------------------


async def test_manually_removed_gate_does_not_start_the_pod(world: World) -> None:
    create_unmanaged(world, gpus=8)
    create_gated(world)
    async with world.run_gateway():
        await event_messages(world, "WaitingForRoom")
        change_spec(world, schedulingGates=None)
        bind_pod(world)
        await world.wait_settled()
        assert world.compute_pod() is None
        assert get_condition(world, ADMITTED) is not None

        world.compute_server.store.delete(PODS, "daemon", "default", grace=0)
        assert pinned_node(await world.wait_forwarded()) == COMPUTE_NODE


async def test_manually_set_node_does_not_start_the_pod(world: World) -> None:
    create_unmanaged(world, gpus=8)
    create_gated(world, nodeName=NODE, schedulingGates=None)
    async with world.run_gateway():
        await event_messages(world, "WaitingForRoom")
        await world.wait_settled()
        assert world.compute_pod() is None

        world.compute_server.store.delete(PODS, "daemon", "default", grace=0)
        assert pinned_node(await world.wait_forwarded()) == COMPUTE_NODE


async def test_manually_ungated_member_does_not_run_without_its_gang(world: World) -> None:
    create_gated(world, "one", gang=("train", 2), nodeName=NODE, schedulingGates=None)
    async with world.run_gateway():
        await event_messages(world, "WaitingForMembers", "one")
        assert world.compute_pod("one") is None
        create_gated(world, "two", gang=("train", 2))
        await start_pod(world, "two")
        await world.wait_forwarded("one")


async def test_notice_written_by_the_tenant_has_no_effect(world: World) -> None:
    create_gated(world)
    async with world.run_gateway():
        await start_pod(world)
        changed = get_pod(world)
        changed["metadata"].setdefault("annotations", {})["vkgateway.io/eviction-deadline"] = "2026-01-01T00:00:00Z"
        world.tenant_server.store.update(
            PODS, {**changed, "metadata": {**changed["metadata"]}}, name="web", namespace="default"
        )
        await world.wait_settled()
        compute_pod = world.compute_pod()
        assert compute_pod is not None
        assert get_annotation(compute_pod, "vkgateway.io/eviction-deadline") == ""
        assert "deletionTimestamp" not in compute_pod["metadata"]

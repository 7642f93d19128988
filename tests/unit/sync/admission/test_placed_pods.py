"""Gated pods and compute nodes: usage of other pods, cordoned nodes, reverted pods and changed pools."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import (
    SECOND_NODE,
    add_node,
    bind_pod,
    cordon_node,
    count_creations,
    count_status_writes,
    create_gated,
    create_unmanaged,
    event_messages,
    get_condition,
    get_pod,
    is_deleting,
    is_ungated,
    pinned_node,
    run_pod,
    start_pod,
    wait_ungated,
)
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, NODE, World, start_world
from vkgateway.kube.resources import NAMESPACES, PODS
from vkgateway.runtime.views.annotations import RETAKEN


@pytest.fixture
async def world(told_soon: None) -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        yield world


# -- the compute cluster -----------------------------------------------------------------------------------------------


async def test_bound_unmanaged_pods_use_capacity_and_unbound_ones_do_not(world: World) -> None:
    create_unmanaged(world, "unbound", gpus=8, node="")
    create_unmanaged(world, "bound", gpus=6)
    create_gated(world, "large", gpus=3)
    create_gated(world, "small", gpus=2)
    async with world.run_gateway():
        await start_pod(world, "small")
        await event_messages(world, "WaitingForRoom", "large")
        world.compute_server.store.delete(PODS, "bound", "default", grace=0)
        await start_pod(world, "large")


async def test_own_ungoverned_pods_use_capacity(world: World) -> None:
    hungry = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "60"}}}]
    world.create_pod("hungry", containers=hungry)
    async with world.run_gateway():
        await world.wait_forwarded("hungry")
        world.run_pod("hungry")
        await wait_until(lambda: world.pod_phase("hungry") == "Running")
        create_gated(
            world,
            containers=[
                {
                    "name": "main",
                    "image": "x",
                    "resources": {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1"}},
                }
            ],
        )
        await event_messages(world, "WaitingForRoom")
        world.end_pod("hungry")
        await wait_ungated(world)


async def test_no_pod_starts_on_a_cordoned_node(world: World) -> None:
    create_gated(world, "first")
    async with world.run_gateway():
        await start_pod(world, "first")
        cordon_node(world)
        await world.wait_settled()
        create_gated(world, "second")
        await event_messages(world, "WaitingForRoom", "second")
        assert world.pod_phase("first") == "Running"

        add_node(world)
        assert pinned_node(await start_pod(world, "second")) == SECOND_NODE
        cordon_node(world, closed=False)
        create_gated(world, "third")
        await start_pod(world, "third")


async def test_unreachable_compute_cluster_is_the_pending_reason(world: World) -> None:
    create_gated(world, "first")
    async with world.run_gateway():
        await start_pod(world, "first")
        await world.compute_server.stop()
        await wait_until(lambda: world.link is not None and not world.link.is_reachable)
        create_gated(world, "second")
        assert await event_messages(world, "WaitingForRoom", "second") == "the compute cluster cannot be reached now"
        assert not is_ungated(world, "second")

        await world.compute_server.start()
        await wait_until(lambda: is_ungated(world, "second"))
        assert world.pod_phase("first") == "Running"
        await world.wait_settled()
        assert count_creations(world) == 1


async def test_compute_pod_that_no_node_takes_is_reverted_and_placed_elsewhere(world: World) -> None:
    add_node(world)
    world.clock = clock = AdjustedClock()
    create_gated(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        bind_pod(world)
        first = await world.wait_forwarded()
        uid, node = first["metadata"]["uid"], pinned_node(first)
        await world.wait_settled()
        before = count_status_writes(world)
        phases = {world.pod_phase()}

        def placed_anew() -> bool:
            phases.add(world.pod_phase())
            found = world.compute_pod()
            return found is not None and found["metadata"]["uid"] != uid

        clock.passed += world.bind + 1
        sync.resync()
        await wait_until(placed_anew)
        second = world.compute_pod()
        assert second is not None
        assert {node, pinned_node(second)} == {COMPUTE_NODE, SECOND_NODE}
        run_pod(world)
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.wait_settled()
        assert phases == {"Pending"}
        assert get_condition(world, "DisruptionTarget") is None
        assert count_status_writes(world) <= before + 2
        assert count_creations(world) == 2
    assert world.compute_server.store.find(PODS, "web", COMPUTE_NAMESPACE) is not None


# -- the platform ------------------------------------------------------------------------------------------------------


async def test_pod_without_pool_starts_once_the_tenant_has_one(world: World) -> None:
    async with world.run_gateway() as sync:
        assert world.link is not None
        quotas = sync.reconcilers.admission.tenant_admission.quotas
        links = {"local": world.link}
        sync.update_tenant(sync.scope.tenant, links=links, bindings={})
        sync.set_quotas([])
        create_gated(world)
        await event_messages(world, "Invalid")

        sync.update_tenant(sync.scope.tenant, links=links, bindings={NODE: world.make_binding(world.link)})
        sync.set_quotas(quotas)
        await start_pod(world)


async def test_pod_whose_pool_is_removed_is_not_ungated(world: World) -> None:
    create_unmanaged(world, gpus=8)
    create_gated(world)
    async with world.run_gateway() as sync:
        await event_messages(world, "WaitingForRoom")
        assert world.link is not None
        sync.update_tenant(sync.scope.tenant, links={"local": world.link}, bindings={})
        sync.set_quotas([])
        world.compute_server.store.delete(PODS, "daemon", "default", grace=0)
        await world.wait_settled()
        assert not is_ungated(world)


async def test_compute_pod_taken_by_a_node_at_the_last_moment_stays(world: World) -> None:
    add_node(world)
    world.clock = clock = AdjustedClock()
    create_gated(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        bind_pod(world)
        first = await world.wait_forwarded()
        await world.wait_settled()
        gate = world.compute_server.hold("PATCH", "/pods/web")
        clock.passed += world.bind + 1
        sync.resync()
        await wait_until(lambda: world.compute_server._faults[0].hits)
        run_pod(world)
        gate.set()
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.wait_settled()
        second = world.compute_pod()
        assert second is not None
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        assert not is_deleting(second)
        uid = get_pod(world)["metadata"]["uid"]
        assert sync.reconcilers.admission.tenant_admission.verdict_store.verdicts[uid].node == pinned_node(first)
        assert not sync.reconcilers.admission.tenant_admission.observer.unbound.reverted
    assert count_creations(world) == 1


@pytest.mark.parametrize("next_gateway", [False, True])
async def test_reverted_compute_pod_taken_by_a_node_stays(world: World, next_gateway: bool) -> None:
    """Also if the gateway was restarted in between."""
    add_node(world)
    world.clock = clock = AdjustedClock()
    create_gated(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        bind_pod(world)
        first = await world.wait_forwarded()
        await world.wait_settled()
        gate = world.compute_server.hold("DELETE", "/pods/web")
        clock.passed += world.bind + 1
        sync.resync()
        await wait_until(lambda: world.compute_server._faults[0].hits)
        run_pod(world)
        if not next_gateway:
            gate.set()
            await wait_until(lambda: world.pod_phase() == "Running")
            await world.wait_settled()
    world.compute_server.heal()
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase() == "Running")
        await wait_until(lambda: RETAKEN not in (world.compute_pod() or first)["metadata"]["annotations"])
        await world.wait_settled()
    second = world.compute_pod()
    assert second is not None
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert not is_deleting(second)
    assert count_creations(world) == 1


async def test_clock_skew_reverts_no_pod() -> None:
    """The gateway's clock is ahead of the compute cluster's by more than the bind timeout."""
    async with start_world(clock=AdjustedClock(skew=300)) as world:
        create_gated(world)
        async with world.run_gateway() as sync:
            await wait_ungated(world)
            bind_pod(world)
            first = await world.wait_forwarded()
            await world.wait_settled()
            sync.resync()
            await world.wait_settled()
            run_pod(world)
            await wait_until(lambda: world.pod_phase() == "Running")
            second = world.compute_pod()
    assert second is not None
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert count_creations(world) == 1

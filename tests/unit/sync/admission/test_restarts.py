"""Gateway restarts at any step: the same result, and no step is repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import (
    ADMITTED,
    DEADLINE,
    LOW,
    SECOND_NODE,
    add_node,
    bind_pod,
    count_creations,
    create_gated,
    create_unmanaged,
    event_messages,
    get_annotation,
    get_condition,
    is_deleting,
    is_ungated,
    pinned_node,
    run_pod,
    start_low,
    start_pod,
    wait_notice,
    wait_ungated,
)
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, World, start_world
from vkgateway.api.names import GANGS_DONE_ANNOTATION
from vkgateway.kube.resources import NAMESPACES, PODS
from vkgateway.runtime.views.annotations import EVICTED, RETAKEN
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.tenants.tenant import TenantSync

pytestmark = pytest.mark.usefixtures("told_soon")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        world.limit = world.limit | {"nvidia.com/gpu": 16_000}
        world.guarantee = {"nvidia.com/gpu": 8000}
        yield world


def verdict_states(sync: TenantSync) -> dict[str, PodState]:
    """Return the arbiter's state of each pod by name."""
    admission = sync.reconcilers.admission.tenant_admission
    gangs, _ = admission.gangs.build_gangs()
    found = {pod.uid: pod.state for gang in (*gangs, *admission.orphans.gangs()) for pod in gang.pods}
    return {member.key[1]: found[member.uid] for member in admission.gangs if member.uid in found}


# -- between admission and forwarding ----------------------------------------------------------------------------------


async def test_pod_ungated_and_bound_during_an_outage_runs(world: World) -> None:
    create_gated(world)
    async with world.run_gateway():
        await wait_ungated(world)
    bind_pod(world)
    async with world.run_gateway():
        assert pinned_node(await world.wait_forwarded()) == COMPUTE_NODE
        run_pod(world)
        await wait_until(lambda: world.pod_phase() == "Running")
    assert count_creations(world) == 1


async def test_pod_bound_after_the_restart_runs(world: World) -> None:
    create_gated(world)
    async with world.run_gateway():
        await wait_ungated(world)
    async with world.run_gateway():
        await world.wait_settled()
        bind_pod(world)
        await world.wait_forwarded()
    assert count_creations(world) == 1


async def test_pod_whose_capacity_was_taken_during_an_outage_waits(world: World) -> None:
    create_gated(world)
    async with world.run_gateway():
        await wait_ungated(world)
    create_unmanaged(world, gpus=8)
    bind_pod(world)
    async with world.run_gateway():
        await event_messages(world, "WaitingForRoom")
        assert world.compute_pod() is None
        add_node(world)
        assert pinned_node(await world.wait_forwarded()) == SECOND_NODE


async def test_pod_with_a_creation_in_flight_runs_once(world: World) -> None:
    create_gated(world)
    async with world.run_gateway():
        await wait_ungated(world)
        world.compute_server.hold("POST", "/pods")
        bind_pod(world)
        await wait_until(lambda: count_creations(world) == 1)
    world.compute_server.heal()
    async with world.run_gateway():
        await world.wait_forwarded()
        run_pod(world)
        await wait_until(lambda: world.pod_phase() == "Running")


async def test_created_compute_pod_is_recognized_by_its_annotations(world: World) -> None:
    add_node(world)
    create_gated(world)
    async with world.run_gateway():
        await wait_ungated(world)
        bind_pod(world)
        first = await world.wait_forwarded()
    async with world.run_gateway() as sync:
        await wait_until(lambda: verdict_states(sync).get("web") is PodState.PLACED)
        await world.wait_settled()
        second = world.compute_pod()
        assert second is not None
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        assert pinned_node(second) == pinned_node(first)
    assert count_creations(world) == 1


async def test_pending_report_is_not_repeated_after_a_restart(world: World) -> None:
    create_gated(world, gpus=9)
    async with world.run_gateway():
        await event_messages(world, "Infeasible")
    written = len([request for request in world.tenant_server.requests if "/pods/web/status" in request])
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.reasons.pending_messages)
        await world.wait_settled()
    assert len([request for request in world.tenant_server.requests if "/pods/web/status" in request]) == written


async def test_wrong_report_of_an_earlier_gateway_is_corrected(world: World) -> None:
    create_unmanaged(world, gpus=8)
    create_gated(world)
    async with world.run_gateway():
        await event_messages(world, "WaitingForRoom")
    world.compute_server.store.delete(PODS, "daemon", "default", grace=0)
    async with world.run_gateway():
        await start_pod(world)
        await wait_until(lambda: get_condition(world, ADMITTED) is None)


# -- between notice and deletion ---------------------------------------------------------------------------------------


async def test_notice_and_deadline_survive_a_restart(world: World) -> None:
    world.clock = clock = AdjustedClock()
    world.notice = 60
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        deadline = await wait_notice(world)
    clock.passed += 2  # a newly set deadline would differ
    async with world.run_gateway() as sync:
        await wait_until(lambda: verdict_states(sync).get("low") is PodState.NOTIFIED)
        await world.wait_settled()
        assert get_annotation(world.tenant_pod("low"), DEADLINE) == deadline
        assert get_annotation(world.compute_pod("low"), DEADLINE) == deadline
        assert not is_deleting(world.compute_pod("low"))
        clock.passed += 60
        sync.resync()
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        world.end_pod("low", code=143)
        await wait_until(lambda: world.pod_phase("low") == "Failed")
        await start_pod(world, "high")
    assert (get_condition(world, "DisruptionTarget", "low") or ("", ""))[1] == "PreemptionByVkgateway"


async def test_deadline_that_passed_during_an_outage_is_enforced_immediately(world: World) -> None:
    world.notice = 1.5
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
    async with world.run_gateway():
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        world.end_pod("low", code=143)
        await start_pod(world, "high")


async def test_notice_on_the_compute_pod_only_is_completed_after_a_restart(world: World) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        world.tenant_server.hold("PATCH", "/pods/low", times=100)
        create_gated(world, "high", gpus=8)
        await wait_until(lambda: get_annotation(world.compute_pod("low"), DEADLINE))
    world.tenant_server.heal()
    assert get_annotation(world.tenant_pod("low"), DEADLINE) == ""
    async with world.run_gateway():
        await wait_notice(world)
        assert get_condition(world, "DisruptionTarget", "low") is not None


async def test_notice_without_claimant_is_withdrawn_after_a_restart(world: World) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
    world.delete_pod("high")
    async with world.run_gateway():
        await wait_until(lambda: not get_annotation(world.tenant_pod("low"), DEADLINE))
        await wait_until(lambda: not get_annotation(world.compute_pod("low"), DEADLINE))
    assert world.pod_phase("low") == "Running"


async def test_terminating_pods_are_recognized_and_their_capacity_is_reused(world: World) -> None:
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
    async with world.run_gateway() as sync:
        await wait_until(lambda: verdict_states(sync).get("low") is PodState.ENDING)
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        await event_messages(world, "WaitingForEviction", "high")
        world.end_pod("low", code=143)
        await wait_until(lambda: world.pod_phase("low") == "Failed")
        await start_pod(world, "high")


@pytest.mark.parametrize("grace", [3, 0])
async def test_pods_deleted_by_the_tenant_are_recognized_as_terminating(world: World, grace: int) -> None:
    async with world.run_gateway():
        create_gated(world, "first", gpus=8)
        await start_pod(world, "first")
        world.delete_pod("first", grace=grace)
        await wait_until(lambda: is_deleting(world.compute_pod("first")))
        create_gated(world, "second", gpus=8)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        await event_messages(world, "WaitingForEviction", "second")
        world.end_pod("first", code=137)
        await wait_until(lambda: world.tenant_pod("first") is None)
        await start_pod(world, "second")


async def test_missing_compute_deletion_is_completed_after_a_restart(world: World) -> None:
    async with world.run_gateway():
        create_gated(world, "first", gpus=8)
        await start_pod(world, "first")
    world.delete_pod("first", grace=3)
    create_gated(world, "second", gpus=8)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        await wait_until(lambda: is_deleting(world.compute_pod("first")))
        world.end_pod("first", code=143)
        await start_pod(world, "second")


async def test_orphan_compute_pods_are_deleted_and_their_capacity_is_reused(world: World) -> None:
    async with world.run_gateway():
        create_gated(world, "first", gpus=8)
        await start_pod(world, "first")
    world.delete_pod("first", grace=0)
    assert world.tenant_pod("first") is None
    create_gated(world, "second", gpus=8)
    async with world.run_gateway() as sync:
        await wait_until(lambda: is_deleting(world.compute_pod("first")))
        orphans = sync.reconcilers.admission.tenant_admission.orphans
        await wait_until(lambda: [gang.pods[0].state for gang in orphans.gangs()] == [PodState.ENDING])
        await event_messages(world, "WaitingForEviction", "second")
        world.end_pod("first", code=137)
        await wait_until(lambda: world.compute_pod("first") is None)
        await start_pod(world, "second")


async def test_deadline_with_only_the_reason_written_is_enforced(world: World) -> None:
    world.notice = 1.5
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        world.compute_server.hold("DELETE", "/pods/low")
        await wait_until(lambda: get_annotation(world.compute_pod("low"), EVICTED))
    world.compute_server.heal()
    assert not is_deleting(world.compute_pod("low"))
    async with world.run_gateway():
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        world.end_pod("low", code=143)
        await wait_until(lambda: world.pod_phase("low") == "Failed")
        assert (get_condition(world, "DisruptionTarget", "low") or ("", ""))[1] == "PreemptionByVkgateway"
        await start_pod(world, "high")


# -- between promotion and its record ----------------------------------------------------------------------------------


def borrowing_pods(sync: TenantSync) -> dict[str, bool]:
    """Return whether each placed pod borrows, by name, as in the arbiter's snapshot."""
    admission = sync.reconcilers.admission.tenant_admission
    gangs, _ = admission.gangs.build_gangs()
    found = {pod.uid: pod.borrowed for gang in gangs for pod in gang.pods if pod.pool is not None}
    return {member.key[1]: found[member.uid] for member in admission.gangs if member.uid in found}


@pytest.mark.parametrize("written", [True, False])
async def test_promoted_pod_stays_guaranteed_ahead_of_the_queue(world: World, written: bool) -> None:
    """With or without the recorded promotion; a pod of higher priority that preempts nothing waits."""
    add_node(world)
    async with world.run_gateway():
        create_gated(world, "first", gpus=8)
        await start_pod(world, "first")
        create_gated(world, "second", gpus=8)
        assert get_annotation(await start_pod(world, "second"), "vkgateway.io/borrowed") == "true"
        if not written:
            world.compute_server.fail("PATCH", "/pods/second", status=503, times=1000)
        world.end_pod("first")
        await wait_until(lambda: world.pod_phase("first") == "Succeeded")
        create_unmanaged(world, gpus=8)
        if written:
            await wait_until(lambda: get_annotation(world.compute_pod("second"), "vkgateway.io/borrowed") == "false")
        await world.wait_settled()
    world.compute_server.heal()
    if written:
        create_gated(world, "third", gpus=8, priority=1000, preemptionPolicy="Never")
    async with world.run_gateway() as sync:
        await wait_until(lambda: borrowing_pods(sync) == {"second": False})
        await wait_until(lambda: get_annotation(world.compute_pod("second"), "vkgateway.io/borrowed") == "false")
        if written:
            await event_messages(world, "WaitingForRoom", "third")
        await wait_until(lambda: "InsideGuarantee" in {reason for reason, _ in world.events()})
    assert not get_annotation(world.compute_pod("second"), DEADLINE)


async def test_backfilled_pod_is_evicted_for_the_reservation_after_a_restart(world: World) -> None:
    add_node(world)
    world.limit = world.limit | {"nvidia.com/gpu": 64_000}
    async with world.run_gateway():
        await start_low(world, "first", annotations={"vkgateway.io/gang-run-limit": "20m"})
        for name in ("one", "two"):
            create_gated(world, name, gpus=8, gang=("wide", 2), **LOW)
        await event_messages(world, "WaitingForRoom", "one")
        await start_low(world, "small")
    async with world.run_gateway():
        world.end_pod("first")
        await wait_notice(world, "small")
        await wait_until(lambda: is_deleting(world.compute_pod("small")))
        world.end_pod("small", code=143)
        await start_pod(world, "one")
        await start_pod(world, "two")


# -- between reverting and placing again -------------------------------------------------------------------------------


async def test_pod_being_reverted_is_placed_again_after_a_restart(world: World) -> None:
    add_node(world)
    world.clock = clock = AdjustedClock()
    create_gated(world)
    async with world.run_gateway() as sync:
        await wait_ungated(world)
        bind_pod(world)
        first = await world.wait_forwarded()
        await world.wait_settled()
        world.compute_server.hold("DELETE", "/pods/web")
        clock.passed += world.bind + 1
        sync.resync()
        await wait_until(lambda: get_annotation(world.compute_pod(), RETAKEN))
    world.compute_server.heal()
    async with world.run_gateway():
        await wait_until(lambda: (world.compute_pod() or first)["metadata"]["uid"] != first["metadata"]["uid"])
        run_pod(world)
        await wait_until(lambda: world.pod_phase() == "Running")
    assert count_creations(world) == 2
    assert get_condition(world, "DisruptionTarget") is None


# -- between the end of a pod and the end of its gang ------------------------------------------------------------------


def written_records(world: World) -> str:
    return get_annotation(world.compute_server.store.get(NAMESPACES, COMPUTE_NAMESPACE), GANGS_DONE_ANNOTATION)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_completed_member_is_not_expected_after_a_restart(world: World, is_deleted: bool) -> None:
    names = ("one", "two", "three")
    for name in names:
        create_gated(world, name, gpus=2, gang=("train", 3))
    async with world.run_gateway():
        for name in names:
            await start_pod(world, name)
        world.end_pod("one")
        await wait_until(lambda: world.pod_phase("one") == "Succeeded")
        if is_deleted:
            world.delete_pod("one", grace=0)
            await wait_until(lambda: world.compute_pod("one") is None)
        await wait_until(lambda: written_records(world))
        world.end_pod("two", code=1)
        await wait_until(lambda: world.pod_phase("two") == "Failed")
        create_unmanaged(world, gpus=5)
        create_gated(world, "again", gpus=2, gang=("train", 3))
        await event_messages(world, "WaitingForRoom", "again")
    async with world.run_gateway():
        world.compute_server.store.delete(PODS, "daemon", "default", grace=0)
        await start_pod(world, "again")
        assert "one" in written_records(world)
        for name in ("again", "three"):
            world.end_pod(name)
        await wait_until(lambda: not written_records(world))


# -- between two pods of one gang --------------------------------------------------------------------------------------


async def test_gang_with_one_ungated_member_starts_as_a_whole(world: World) -> None:
    create_gated(world, "one", gpus=4, gang=("train", 2))
    create_gated(world, "two", gpus=4, gang=("train", 2))
    async with world.run_gateway():
        world.tenant_server.fail("PATCH", "/pods/two?", status=503, times=1000)
        await wait_ungated(world, "one")
    world.tenant_server.heal()
    assert not is_ungated(world, "two")
    async with world.run_gateway():
        await start_pod(world, "one")
        await start_pod(world, "two")
    assert count_creations(world) == 2


async def test_gang_with_one_bound_member_is_forwarded_once_the_other_is_bound(world: World) -> None:
    create_gated(world, "one", gpus=4, gang=("train", 2))
    create_gated(world, "two", gpus=4, gang=("train", 2))
    async with world.run_gateway():
        world.tenant_server.fail("PATCH", "/pods/two?", status=503, times=1000)
        await wait_ungated(world, "one")
        bind_pod(world, "one")
        await world.wait_settled()
        assert count_creations(world) == 0
    world.tenant_server.heal()
    assert not is_ungated(world, "two")
    async with world.run_gateway():
        await start_pod(world, "two")
        await start_pod(world, "one")
        await world.wait_settled()
    assert count_creations(world) == 2
    assert world.pod_phase("one") == "Running"


async def test_gang_whose_second_member_was_bound_during_an_outage_is_forwarded(world: World) -> None:
    create_gated(world, "one", gpus=4, gang=("train", 2))
    create_gated(world, "two", gpus=4, gang=("train", 2))
    async with world.run_gateway():
        await wait_ungated(world, "two")
        await start_pod(world, "one")
    bind_pod(world, "two")
    async with world.run_gateway():
        await world.wait_forwarded("two")
        await world.wait_settled()
    assert count_creations(world) == 2


async def test_rest_of_a_gang_keeps_its_queue_position(world: World) -> None:
    """A faster low-priority pod must not take the capacity for which the second half of a gang was admitted."""
    create_gated(world, "one", gpus=4, gang=("train", 2))
    create_gated(world, "two", gpus=4, gang=("train", 2))
    async with world.run_gateway():
        await wait_ungated(world, "two")
        await start_pod(world, "one")
    create_gated(world, "late", gpus=4, **LOW)
    async with world.run_gateway():
        await event_messages(world, "WaitingForRoom", "late")
        bind_pod(world, "two")
        await world.wait_forwarded("two")

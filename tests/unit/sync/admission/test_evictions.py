"""Eviction of low-priority pods: notice, deletion at the deadline, end in the tenant cluster, and reprieve."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.machine import patience
from tests.support.waiting import let_pass, wait_until
from tests.unit.sync.admission.cluster_helpers import (
    DEADLINE,
    LOW,
    bind_pod,
    create_gated,
    event_messages,
    get_annotation,
    get_condition,
    is_deleting,
    is_ungated,
    requests_about,
    start_low,
    start_pod,
    wait_notice,
    wait_ungated,
)
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, start_world
from vkgateway.api.times import parse_time
from vkgateway.kube.clock import SteadyClock
from vkgateway.kube.resources import PODS
from vkgateway.runtime.views.annotations import EVICTED, EVICTED_FOR
from vkgateway.scheduler.service import tenant_verdicts

pytestmark = pytest.mark.usefixtures("told_soon")

DISRUPTED = "DisruptionTarget"
PREEMPTED = "PreemptionByVkgateway"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A node of 8 GPUs, all guaranteed to the tenant, with a limit of twice as many."""
    async with start_world() as world:
        world.limit = world.limit | {"nvidia.com/gpu": 16_000}
        world.guarantee = {"nvidia.com/gpu": 8000}
        yield world


async def test_low_priority_pod_gets_notice_and_guaranteed_pod_takes_its_place(world: World) -> None:
    world.notice = notice = math.ceil(patience(3))  # everything is inspected within it
    async with world.run_gateway():
        await start_low(world)
        world.compute_server.logs[COMPUTE_NAMESPACE, "low", "main"] = "step 41\nstep 42\n"
        begun = time.time()
        create_gated(world, "high", gpus=8)

        deadline = parse_time(await wait_notice(world)).timestamp()
        assert begun + notice - 1 <= deadline <= time.time() + notice
        assert get_annotation(world.compute_pod("low"), EVICTED_FOR).startswith("alpha/default/pod/")
        status, reason, message = get_condition(world, DISRUPTED, "low") or ("", "", "")
        assert (status, reason) == ("True", PREEMPTED)
        assert "is evicted for" in message
        await event_messages(world, "WaitingForEviction", "high")
        assert world.pod_phase("low") == "Running"
        assert not is_deleting(world.compute_pod("low"))

        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        assert time.time() >= deadline
        below = world.compute_pod("low")
        assert below is not None
        assert below["metadata"]["deletionGracePeriodSeconds"] == 5
        assert get_annotation(below, EVICTED).startswith(f"{PREEMPTED}: ")
        assert not is_deleting(world.tenant_pod("low")), "above it stays, and tells how it ended"
        await world.wait_settled()
        assert not is_ungated(world, "high"), "not before the last of it has ended"

        world.end_pod("low", code=143)
        await wait_until(lambda: world.pod_phase("low") == "Failed")
        assert (get_condition(world, DISRUPTED, "low") or ("", ""))[:2] == ("True", PREEMPTED)
        (container,) = (world.tenant_pod("low") or {})["status"]["containerStatuses"]
        assert container["state"]["terminated"]["message"] == "step 41\nstep 42\n", "the log goes with the pod below"
        await wait_until(lambda: world.compute_pod("low") is None)
        await start_pod(world, "high")
        assert get_annotation(world.compute_pod("high"), "vkgateway.io/borrowed") == "false"

    notices = [message for reason, message in world.events() if reason == PREEMPTED]
    assert len(notices) == 2, "of the notice, and of the end"


async def test_evicted_pods_get_at_most_the_grace_period_of_the_policy(world: World) -> None:
    async with world.run_gateway():
        await start_low(world, terminationGracePeriodSeconds=600)
        create_gated(world, "high", gpus=8)
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        below = world.compute_pod("low")
        assert below is not None
        assert below["metadata"]["deletionGracePeriodSeconds"] == 120


@pytest.mark.parametrize("how", ["deleted", "by force", "called final"])
async def test_borrowing_pods_cannot_retain_capacity_with_a_long_grace_period(world: World, how: str) -> None:
    async with world.run_gateway():
        await start_low(world, terminationGracePeriodSeconds=315_360_000)
        if how == "called final":
            pod = copy.deepcopy(world.tenant_pod("low") or {})
            pod["status"]["phase"] = "Succeeded"
            world.tenant_server.store.update(PODS, pod, name="low", namespace="default", status=True)
        else:
            world.delete_pod("low", grace=0 if how == "by force" else None)
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        assert (world.compute_pod("low") or {})["metadata"]["deletionGracePeriodSeconds"] == 120


async def test_pods_within_the_guarantee_keep_their_grace_period(world: World) -> None:
    async with world.run_gateway():
        create_gated(world, "high", gpus=8, terminationGracePeriodSeconds=600)
        await start_pod(world, "high")
        world.delete_pod("high")
        await wait_until(lambda: is_deleting(world.compute_pod("high")))
        remaining = (world.compute_pod("high") or {})["metadata"]["deletionGracePeriodSeconds"]
        assert 600 - patience(10) < remaining <= 600, "what is left of its own, less what the machine took to tell it"


async def test_eviction_reason_is_written_for_succeeded_pods_too(world: World) -> None:
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        world.end_pod("low", code=0)
        await wait_until(lambda: world.pod_phase("low") == "Succeeded")
        await start_pod(world, "high")


@pytest.mark.parametrize("server", ["below", "above"])
async def test_compute_pod_is_notified_before_the_tenant_pod(world: World, server: str) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        slow = world.compute_server if server == "below" else world.tenant_server
        gate = slow.hold("PATCH", "/pods/low?" if server == "below" else "/pods/low/status")
        create_gated(world, "high", gpus=8)
        if server == "below":
            await wait_until(lambda: slow._faults[0].hits)
            await let_pass(0.1)
            assert get_annotation(world.tenant_pod("low"), DEADLINE) == ""
            assert get_condition(world, DISRUPTED, "low") is None
        else:
            await wait_until(lambda: get_annotation(world.compute_pod("low"), DEADLINE))
            assert get_annotation(world.tenant_pod("low"), DEADLINE) == ""
        gate.set()
        await wait_notice(world)


async def test_notice_is_written_once(world: World) -> None:
    world.notice = 30
    async with world.run_gateway() as sync:
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        await world.wait_settled()
        before = (
            len(requests_about(world.tenant_server.requests, "low")),
            len(requests_about(world.compute_server.requests, "low")),
        )
        sync.resync()
        await world.wait_settled()
        assert (
            len(requests_about(world.tenant_server.requests, "low")),
            len(requests_about(world.compute_server.requests, "low")),
        ) == before
        assert [reason for reason, _ in world.events()].count(PREEMPTED) == 1


@pytest.mark.parametrize("hours", [-1, 1])
async def test_clock_change_does_not_change_the_notice_period(world: World, hours: int) -> None:
    wall = AdjustedClock()
    world.notice, world.clock = math.ceil(patience(1.5)), SteadyClock(wall)
    async with world.run_gateway() as sync:
        await start_low(world)
        begun = time.monotonic()
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        wall.skew = hours * 3600.0
        sync.resync()
        await world.wait_settled()
        assert time.monotonic() >= begun + world.notice - 1 or not is_deleting(world.compute_pod("low"))
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        assert time.monotonic() >= begun + world.notice - 1, "deadlines are whole seconds"


async def test_eviction_during_an_outage_is_dropped_if_no_longer_needed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenant_verdicts, "_MIN_NOTICE_AFTER_RETURN", patience(5))
    world.clock = clock = AdjustedClock()
    world.notice = 30
    async with world.run_gateway() as sync:
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        await world.compute_server.stop()
        await wait_until(lambda: world.link is not None and not world.link.is_reachable)
        world.tenant_server.store.delete(PODS, "high", "default", grace=0)
        await wait_until(lambda: ("default", "high") not in sync.scope.cache.pods.store)
        clock.passed += 31
        sync.resync()
        await world.wait_settled()
        assert not is_deleting(world.compute_pod("low"))
        await world.compute_server.start()
        await wait_until(lambda: not get_annotation(world.tenant_pod("low"), DEADLINE))
        await world.wait_settled()
        assert not is_deleting(world.compute_pod("low"))
        assert world.pod_phase("low") == "Running"


async def test_no_more_pods_are_evicted_than_necessary(world: World) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world, "one", gpus=4)
        await start_low(world, "two", gpus=4)
        create_gated(world, "high", gpus=4)
        await wait_until(
            lambda: (
                get_annotation(world.tenant_pod("one"), DEADLINE) or get_annotation(world.tenant_pod("two"), DEADLINE)
            )
        )
        await world.wait_settled()
        told_to_go = [name for name in ("one", "two") if get_annotation(world.tenant_pod(name), DEADLINE)]
        assert len(told_to_go) == 1


async def test_only_the_surplus_of_an_elastic_gang_is_evicted(world: World) -> None:
    elastic = {"vkgateway.io/gang": "train", "vkgateway.io/gang-min": "1", "vkgateway.io/gang-elastic-max": "2"}
    world.notice = 1
    async with world.run_gateway():
        for rank in range(2):
            create_gated(world, f"low-{rank}", gpus=4, annotations=elastic, **LOW)
        for rank in range(2):
            await start_pod(world, f"low-{rank}")
        create_gated(world, "high", gpus=4)
        await wait_until(lambda: is_deleting(world.compute_pod("low-1")))
        world.end_pod("low-1", code=143)
        await start_pod(world, "high")
        await world.wait_settled()
        assert world.pod_phase("low-0") == "Running"
        assert get_annotation(world.tenant_pod("low-0"), DEADLINE) == ""


async def test_gang_without_surplus_is_evicted_as_a_whole(world: World) -> None:
    world.notice = 1
    async with world.run_gateway():
        for rank in range(2):
            create_gated(world, f"low-{rank}", gpus=4, gang=("train", 2), **LOW)
        for rank in range(2):
            await start_pod(world, f"low-{rank}")
        create_gated(world, "high", gpus=4)
        await wait_until(lambda: all(is_deleting(world.compute_pod(f"low-{rank}")) for rank in range(2)))
        for rank in range(2):
            world.end_pod(f"low-{rank}", code=143)
        await start_pod(world, "high")
        await wait_until(lambda: [world.pod_phase(f"low-{rank}") for rank in range(2)] == ["Failed", "Failed"])


async def test_victims_that_are_no_longer_needed_are_reprieved(world: World) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        world.delete_pod("high")

        await wait_until(lambda: not get_annotation(world.tenant_pod("low"), DEADLINE))
        await wait_until(lambda: not get_annotation(world.compute_pod("low"), DEADLINE))
        assert get_annotation(world.compute_pod("low"), EVICTED_FOR) == ""
        assert (get_condition(world, DISRUPTED, "low") or ("", ""))[:2] == ("False", "EvictionWithdrawn")
        await world.wait_settled()
        assert world.pod_phase("low") == "Running"
        assert not is_deleting(world.compute_pod("low"))
    assert [reason for reason, _ in world.events()].count("EvictionWithdrawn") == 1


async def test_reprieve_survives_a_gateway_restart(world: World) -> None:
    """No part of the notice is left that the next gateway could mistake for a current one."""
    world.clock = clock = AdjustedClock()
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        world.delete_pod("high")
        await wait_until(lambda: not get_annotation(world.compute_pod("low"), DEADLINE))
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.reconcilers.admission.tenant_admission.is_known)
        clock.passed += 31
        sync.resync()
        await world.wait_settled()
        assert not is_deleting(world.compute_pod("low"))


async def test_admitted_but_unbound_victims_wait_again(world: World) -> None:
    world.notice = 1.5
    create_gated(world, "low", gpus=8, **LOW)
    async with world.run_gateway():
        await wait_ungated(world, "low")
        create_gated(world, "high", gpus=8)
        await start_pod(world, "high")
        bind_pod(world, "low")
        await event_messages(world, "WaitingForRoom", "low")
        assert world.compute_pod("low") is None
        assert world.pod_phase("low") == "Pending"


async def test_tenant_may_delete_a_pod_under_notice(world: World) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        world.delete_pod("low", grace=3)
        await wait_until(lambda: is_deleting(world.compute_pod("low")))
        world.end_pod("low", code=143)
        await wait_until(lambda: world.tenant_pod("low") is None)
        await start_pod(world, "high")


async def test_pod_under_notice_that_ends_by_itself_ends_normally(world: World) -> None:
    world.notice = 30
    async with world.run_gateway():
        await start_low(world)
        create_gated(world, "high", gpus=8)
        await wait_notice(world)
        world.end_pod("low")
        await wait_until(lambda: world.pod_phase("low") == "Succeeded")
        await start_pod(world, "high")
        assert (get_condition(world, DISRUPTED, "low") or ("", PREEMPTED))[1] == PREEMPTED


async def test_guaranteed_pods_within_their_cells_are_not_evicted(world: World) -> None:
    async with world.run_gateway():
        create_gated(world, "first", gpus=8)
        await start_pod(world, "first")
        create_gated(world, "second", gpus=8, priority=1_000_000, preemptionPolicy="Never")
        await event_messages(world, "WaitingForRoom", "second")
        assert get_annotation(world.tenant_pod("first"), DEADLINE) == ""
        assert world.pod_phase("first") == "Running"

"""Pending pods cause no request to the compute cluster, and at most two writes per minute to the tenant cluster."""

from __future__ import annotations

import pytest

from tests.fakes.clock import AdjustedClock
from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import (
    ADMITTED,
    cordon_node,
    count_status_writes,
    create_gated,
    event_messages,
    get_condition,
    get_pod,
    start_pod,
)
from tests.unit.sync.world import World, start_world
from vkgateway.scheduler.service import pending_reporter

pytestmark = pytest.mark.usefixtures("told_soon")


def all_requests(world: World) -> list[str]:
    """Return the requests to both clusters except heartbeats."""
    requests = world.tenant_server.requests + world.compute_server.requests
    return [request for request in requests if not request.startswith("GET /version")]


def compute_requests(world: World) -> list[str]:
    """Return the requests to the compute cluster except watches and heartbeats."""
    return [
        request
        for request in world.compute_server.requests
        if "watch=true" not in request and "watch=1" not in request and not request.startswith("GET /version")
    ]


async def test_pending_pod_causes_no_compute_requests() -> None:
    async with start_world() as world:
        create_gated(world, "warm-up")
        async with world.run_gateway():
            await start_pod(world, "warm-up")
            await world.wait_settled()
            before = len(compute_requests(world))
            for number in range(20):
                create_gated(world, f"web-{number}", gpus=9)
            for number in range(20):
                await event_messages(world, "Infeasible", f"web-{number}")
            await world.wait_settled()
            assert compute_requests(world)[before:] == []
            assert sum(count_status_writes(world, f"web-{number}") for number in range(20)) == 20

            world.delete_pod("web-0")
            await wait_until(lambda: world.tenant_pod("web-0") is None)
            await world.wait_settled()
            assert compute_requests(world)[before:] == []


async def test_changing_reasons_are_written_at_most_twice_a_minute() -> None:
    clock = AdjustedClock()
    async with start_world(clock=clock) as world:
        world.limit = world.limit | {"nvidia.com/gpu": 64_000}
        create_gated(world, "first", gpus=8)
        async with world.run_gateway() as sync:
            await start_pod(world, "first")
            create_gated(world, "web", gpus=8)
            await event_messages(world, "WaitingForRoom")
            assert count_status_writes(world) == 1

            for number in range(6):
                create_gated(world, f"before-{number}", gpus=8, priority=1000)
                cordon_node(world, closed=not number % 2)
                await world.wait_settled()
            gang = f"alpha/default/pod/{get_pod(world)['metadata']['uid']}"
            says = sync.reconcilers.admission.tenant_admission.reasons.pending_messages[gang].text
            stands = (get_condition(world, "vkgateway.io/Admitted") or ("", "", ""))[2]
            assert stands != says, "there is something new to tell"
            assert count_status_writes(world) == 1

            clock.passed = 31.0
            world.delete_pod("before-0")
            await wait_until(lambda: count_status_writes(world) == 2)
            await world.wait_settled()
            assert count_status_writes(world) == 2
            assert get_pod(world)["spec"]["schedulingGates"]


async def test_idle_gateway_sends_no_requests() -> None:
    async with start_world() as world:
        create_gated(world)
        async with world.run_gateway() as sync:
            await start_pod(world)
            await wait_until(
                lambda: sum("mutatingadmissionpolicies" in each for each in world.tenant_server.requests) >= 2
            )
            await world.wait_settled()
            requests = all_requests(world)
            sync.resync()
            await world.wait_settled()
            assert all_requests(world) == requests


async def test_new_member_of_a_reported_gang_gets_the_same_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = AdjustedClock()
    async with start_world(clock=clock) as world:
        world.limit = world.limit | {"nvidia.com/gpu": 64_000}
        create_gated(world, "first", gpus=8)
        async with world.run_gateway() as sync:
            await start_pod(world, "first")
            create_gated(world, "one", gpus=2, gang=("train", 2))
            await event_messages(world, "WaitingForMembers", "one")
            # When the report is due, on however slow a machine, the reason differs from the first one.
            monkeypatch.setattr(pending_reporter, "_PATIENCE", 20.0)
            create_gated(world, "two", gpus=2, gang=("train", 2))
            reasons = sync.reconcilers.admission.tenant_admission.reasons
            await wait_until(lambda: reasons.pending_messages["alpha/default/gang/train"].code == "WaitingForRoom")
            await world.wait_settled()
            assert (get_condition(world, ADMITTED, "one") or ("", ""))[1] == "WaitingForMembers"
            assert get_condition(world, ADMITTED, "two") is None

            clock.passed = 31.0
            create_gated(world, "before", gpus=8, priority=1000)
            for name in ("one", "two"):
                await event_messages(world, "WaitingForRoom", name)
            await world.wait_settled()
            assert get_condition(world, ADMITTED, "one") == get_condition(world, ADMITTED, "two")
            assert [count_status_writes(world, name) for name in ("one", "two")] == [2, 1]

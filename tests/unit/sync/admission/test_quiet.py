"""What waits costs next to nothing: no request below, and one write above in half a minute at most."""

from __future__ import annotations

import time

import pytest

from tests.unit.sync.admission.platform import (
    ADMITTED,
    condition,
    cordon,
    gated,
    pod,
    start,
    status_writes,
    told,
)
from tests.unit.sync.world import World, until, world
from vkgateway.sync.admission import pending_reporter

pytestmark = pytest.mark.usefixtures("told_soon")


def asked_below(here: World) -> list[str]:
    """Requests to the compute cluster but for its watches and heartbeats."""
    return [
        request
        for request in here.below.requests
        if "watch=true" not in request and "watch=1" not in request and not request.startswith("GET /version")
    ]


async def test_a_pod_that_waits_costs_nothing_below() -> None:
    async with world() as here:
        gated(here, "warm-up")
        async with here.gateway():
            await start(here, "warm-up")
            await here.settled()
            before = len(asked_below(here))
            for number in range(20):
                gated(here, f"web-{number}", gpus=9)
            for number in range(20):
                await told(here, "Infeasible", f"web-{number}")
            await here.settled()
            assert asked_below(here)[before:] == []
            assert sum(status_writes(here, f"web-{number}") for number in range(20)) == 20

            here.delete("web-0")
            await until(lambda: here.tenant_pod("web-0") is None)
            await here.settled()
            assert asked_below(here)[before:] == []


async def test_however_often_the_reason_changes_a_pod_is_written_to_once_in_half_a_minute() -> None:
    moved = 0.0
    async with world(clock=lambda: time.time() + moved) as here:
        here.limit = here.limit | {"nvidia.com/gpu": 64_000}
        gated(here, "first", gpus=8)
        async with here.gateway() as sync:
            await start(here, "first")
            gated(here, "web", gpus=8)
            await told(here, "WaitingForRoom")
            assert status_writes(here) == 1

            for number in range(6):
                gated(here, f"before-{number}", gpus=8, priority=1000)
                cordon(here, closed=not number % 2)
                await here.settled()
            gang = f"alpha/default/pod/{pod(here)['metadata']['uid']}"
            says = sync.pods.admission.tenant_admission.verdict_store.pending_messages[gang].text
            stands = (condition(here, "vkgateway.io/Admitted") or ("", "", ""))[2]
            assert stands != says, "there is something new to tell"
            assert status_writes(here) == 1

            moved = 31.0
            here.delete("before-0")
            await until(lambda: status_writes(here) == 2)
            await here.settled()
            assert status_writes(here) == 2
            assert pod(here)["spec"]["schedulingGates"]


async def test_a_gateway_with_nothing_to_decide_is_at_rest() -> None:
    async with world() as here:
        gated(here)
        async with here.gateway() as sync:
            await start(here)
            await until(lambda: sum("mutatingadmissionpolicies" in each for each in here.above.requests) == 2)
            await here.settled()
            asked = len(here.above.requests), len(here.below.requests)
            sync.enqueue_all()
            await here.settled()
            assert (len(here.above.requests), len(here.below.requests)) == asked


async def test_who_joins_a_gang_that_was_told_lately_is_told_with_the_others_and_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = 0.0
    async with world(clock=lambda: time.time() + moved) as here:
        here.limit = here.limit | {"nvidia.com/gpu": 64_000}
        gated(here, "first", gpus=8)
        async with here.gateway() as sync:
            await start(here, "first")
            gated(here, "one", gpus=2, gang=("train", 2))
            await told(here, "WaitingForMembers", "one")
            # By the time it may be told, however slow the machine, the reason is another than that of the first.
            monkeypatch.setattr(pending_reporter, "_PATIENCE", 20.0)
            gated(here, "two", gpus=2, gang=("train", 2))
            book = sync.pods.admission.tenant_admission.verdict_store
            await until(lambda: book.pending_messages["alpha/default/gang/train"].code == "WaitingForRoom")
            await here.settled()
            assert (condition(here, ADMITTED, "one") or ("", ""))[1] == "WaitingForMembers"
            assert condition(here, ADMITTED, "two") is None

            moved = 31.0
            gated(here, "before", gpus=8, priority=1000)
            for name in ("one", "two"):
                await told(here, "WaitingForRoom", name)
            await here.settled()
            assert condition(here, ADMITTED, "one") == condition(here, ADMITTED, "two")
            assert [status_writes(here, name) for name in ("one", "two")] == [2, 1]

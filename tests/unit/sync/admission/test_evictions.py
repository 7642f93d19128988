"""Low work makes room: notice, deletion at the deadline, how it ends above; and who may stay after all."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator

import pytest

from tests.unit.sync.admission.platform import (
    DEADLINE,
    LOW,
    about,
    annotation,
    bind,
    condition,
    deleted,
    gated,
    is_let_go,
    let_go,
    low_runs,
    noticed,
    pod,
    start,
    told,
)
from tests.unit.sync.world import BELOW, World, until, world
from vkgateway.kube.resources import PODS
from vkgateway.model.times import parse_time
from vkgateway.sync.clock import SteadyClock
from vkgateway.sync.views.annotations import EVICTED, EVICTED_FOR

pytestmark = pytest.mark.usefixtures("told_soon")

DISRUPTED = "DisruptionTarget"
PREEMPTED = "PreemptionByVkgateway"


@pytest.fixture
async def here() -> AsyncIterator[World]:
    """A node of 8 GPUs, all guaranteed to the tenant, and low work on it; it may use twice as much."""
    async with world() as made:
        made.limit = made.limit | {"nvidia.com/gpu": 16_000}
        made.guarantee = {"nvidia.com/gpu": 8000}
        yield made


async def test_low_work_is_told_to_go_and_when_and_a_guaranteed_pod_starts_in_its_place(here: World) -> None:
    here.notice = 6  # long enough to look at all of it meanwhile, on a busy machine too
    async with here.gateway():
        await low_runs(here)
        here.below.logs[BELOW, "low", "main"] = "step 41\nstep 42\n"
        begun = time.time()
        gated(here, "high", gpus=8)

        deadline = parse_time(await noticed(here)).timestamp()
        assert begun + 5 <= deadline <= time.time() + 6
        assert annotation(here.compute_pod("low"), EVICTED_FOR).startswith("alpha/default/pod/")
        status, reason, message = condition(here, DISRUPTED, "low") or ("", "", "")
        assert (status, reason) == ("True", PREEMPTED)
        assert "makes room for" in message
        await told(here, "WaitingForEviction", "high")
        assert here.phase("low") == "Running"
        assert not deleted(here.compute_pod("low"))

        await until(lambda: deleted(here.compute_pod("low")))
        assert time.time() >= deadline
        below = here.compute_pod("low")
        assert below is not None
        assert below["metadata"]["deletionGracePeriodSeconds"] == 5
        assert annotation(below, EVICTED).startswith(f"{PREEMPTED}: ")
        assert not deleted(here.tenant_pod("low")), "above it stays, and tells how it ended"
        await here.settled()
        assert not is_let_go(here, "high"), "not before the last of it has ended"

        here.end("low", code=143)
        await until(lambda: here.phase("low") == "Failed")
        assert (condition(here, DISRUPTED, "low") or ("", ""))[:2] == ("True", PREEMPTED)
        (container,) = (here.tenant_pod("low") or {})["status"]["containerStatuses"]
        assert container["state"]["terminated"]["message"] == "step 41\nstep 42\n", "the log goes with the pod below"
        await until(lambda: here.compute_pod("low") is None)
        await start(here, "high")
        assert annotation(here.compute_pod("high"), "vkgateway.io/borrowed") == "false"

    notices = [message for reason, message in here.events() if reason == PREEMPTED]
    assert len(notices) == 2, "of the notice, and of the end"


async def test_who_must_go_is_given_no_more_time_to_end_than_policy_allows(here: World) -> None:
    async with here.gateway():
        await low_runs(here, terminationGracePeriodSeconds=600)
        gated(here, "high", gpus=8)
        await until(lambda: deleted(here.compute_pod("low")))
        below = here.compute_pod("low")
        assert below is not None
        assert below["metadata"]["deletionGracePeriodSeconds"] == 120


@pytest.mark.parametrize("how", ["deleted", "by force", "called final"])
async def test_who_borrows_cannot_keep_it_by_ending_for_years(here: World, how: str) -> None:
    async with here.gateway():
        await low_runs(here, terminationGracePeriodSeconds=315_360_000)
        if how == "called final":
            pod = copy.deepcopy(here.tenant_pod("low") or {})
            pod["status"]["phase"] = "Succeeded"
            here.above.store.update(PODS, pod, name="low", namespace="default", status=True)
        else:
            here.delete("low", grace=0 if how == "by force" else None)
        await until(lambda: deleted(here.compute_pod("low")))
        assert (here.compute_pod("low") or {})["metadata"]["deletionGracePeriodSeconds"] == 120


async def test_who_runs_inside_the_guarantee_ends_as_it_likes(here: World) -> None:
    async with here.gateway():
        gated(here, "high", gpus=8, terminationGracePeriodSeconds=600)
        await start(here, "high")
        here.delete("high")
        await until(lambda: deleted(here.compute_pod("high")))
        left = (here.compute_pod("high") or {})["metadata"]["deletionGracePeriodSeconds"]
        assert 590 < left <= 600, "what is left of its own, less what the machine took to tell it"


async def test_the_reason_is_told_where_the_pod_ends_well_too(here: World) -> None:
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await until(lambda: deleted(here.compute_pod("low")))
        here.end("low", code=0)
        await until(lambda: here.phase("low") == "Succeeded")
        await start(here, "high")


@pytest.mark.parametrize("server", ["below", "above"])
async def test_the_pod_below_is_told_before_the_tenant_is(here: World, server: str) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here)
        slow = here.below if server == "below" else here.above
        gate = slow.hold("PATCH", "/pods/low?" if server == "below" else "/pods/low/status")
        gated(here, "high", gpus=8)
        if server == "below":
            await until(lambda: slow._faults[0].hits)
            await here.settled()
            assert annotation(here.tenant_pod("low"), DEADLINE) == ""
            assert condition(here, DISRUPTED, "low") is None
        else:
            await until(lambda: annotation(here.compute_pod("low"), DEADLINE))
            assert annotation(here.tenant_pod("low"), DEADLINE) == ""
        gate.set()
        await noticed(here)


async def test_a_notice_is_written_once(here: World) -> None:
    here.notice = 30
    async with here.gateway() as sync:
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        await here.settled()
        before = len(about(here.above.requests, "low")), len(about(here.below.requests, "low"))
        sync.enqueue_all()
        await here.settled()
        assert (len(about(here.above.requests, "low")), len(about(here.below.requests, "low"))) == before
        assert [reason for reason, _ in here.events()].count(PREEMPTED) == 1


@pytest.mark.parametrize("hours", [-1, 1])
async def test_a_clock_that_is_set_makes_no_notice_longer_or_shorter(here: World, hours: int) -> None:
    here.notice, leap = 3, [0.0]
    here.clock = SteadyClock(wall=lambda: time.time() + leap[0])
    async with here.gateway() as sync:
        await low_runs(here)
        begun = time.monotonic()
        gated(here, "high", gpus=8)
        await noticed(here)
        leap[0] = hours * 3600.0
        sync.enqueue_all()
        await here.settled()
        assert time.monotonic() >= begun + 2 or not deleted(here.compute_pod("low"))
        await until(lambda: deleted(here.compute_pod("low")))
        assert time.monotonic() >= begun + 2, "deadlines are whole seconds"


async def test_who_was_to_go_while_the_cluster_was_away_stays_if_nobody_needs_the_room_when_it_is_back(
    here: World,
) -> None:
    here.notice = 1
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        port = here.below.port
        await here.below.stop()
        await until(lambda: here.link is not None and not here.link.is_reachable)
        here.above.store.delete(PODS, "high", "default", grace=0)
        await asyncio.sleep(1.5)
        assert not deleted(here.compute_pod("low"))
        await here.below.start(port)
        await until(lambda: not annotation(here.tenant_pod("low"), DEADLINE))
        await here.settled()
        assert not deleted(here.compute_pod("low"))
        assert here.phase("low") == "Running"


async def test_only_as_much_goes_as_must(here: World) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here, "one", gpus=4)
        await low_runs(here, "two", gpus=4)
        gated(here, "high", gpus=4)
        await until(
            lambda: annotation(here.tenant_pod("one"), DEADLINE) or annotation(here.tenant_pod("two"), DEADLINE)
        )
        await here.settled()
        told_to_go = [name for name in ("one", "two") if annotation(here.tenant_pod(name), DEADLINE)]
        assert len(told_to_go) == 1


async def test_of_a_gang_that_may_shrink_only_the_surplus_goes(here: World) -> None:
    elastic = {"vkgateway.io/gang": "train", "vkgateway.io/gang-min": "1", "vkgateway.io/gang-elastic-max": "2"}
    here.notice = 1
    async with here.gateway():
        for rank in range(2):
            gated(here, f"low-{rank}", gpus=4, marks=elastic, **LOW)
        for rank in range(2):
            await start(here, f"low-{rank}")
        gated(here, "high", gpus=4)
        await until(lambda: deleted(here.compute_pod("low-1")))
        here.end("low-1", code=143)
        await start(here, "high")
        await here.settled()
        assert here.phase("low-0") == "Running"
        assert annotation(here.tenant_pod("low-0"), DEADLINE) == ""


async def test_a_gang_goes_as_a_whole_where_it_cannot_do_without_one(here: World) -> None:
    here.notice = 1
    async with here.gateway():
        for rank in range(2):
            gated(here, f"low-{rank}", gpus=4, gang=("train", 2), **LOW)
        for rank in range(2):
            await start(here, f"low-{rank}")
        gated(here, "high", gpus=4)
        await until(lambda: all(deleted(here.compute_pod(f"low-{rank}")) for rank in range(2)))
        for rank in range(2):
            here.end(f"low-{rank}", code=143)
        await start(here, "high")
        assert [here.phase(f"low-{rank}") for rank in range(2)] == ["Failed", "Failed"]


async def test_those_who_are_not_needed_to_go_any_more_may_stay(here: World) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        here.delete("high")

        await until(lambda: not annotation(here.tenant_pod("low"), DEADLINE))
        await until(lambda: not annotation(here.compute_pod("low"), DEADLINE))
        assert annotation(here.compute_pod("low"), EVICTED_FOR) == ""
        assert (condition(here, DISRUPTED, "low") or ("", ""))[:2] == ("False", "EvictionWithdrawn")
        await here.settled()
        assert here.phase("low") == "Running"
        assert not deleted(here.compute_pod("low"))
    assert [reason for reason, _ in here.events()].count("EvictionWithdrawn") == 1


async def test_a_reprieve_outlives_the_gateway(here: World) -> None:
    """Nothing of the notice is left that the next one could take for one that holds."""
    here.notice = 2
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        here.delete("high")
        await until(lambda: not annotation(here.compute_pod("low"), DEADLINE))
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        await until(lambda: time.time() > parse_deadline(here) + 2.5)
        assert not deleted(here.compute_pod("low"))


def parse_deadline(here: World) -> float:
    created = pod(here, "low")["metadata"]["creationTimestamp"]
    return parse_time(created).timestamp()


async def test_those_who_were_admitted_and_not_bound_yet_just_wait_again(here: World) -> None:
    here.notice = 1.5
    gated(here, "low", gpus=8, **LOW)
    async with here.gateway():
        await let_go(here, "low")
        gated(here, "high", gpus=8)
        await start(here, "high")
        bind(here, "low")
        await told(here, "WaitingForRoom", "low")
        assert here.compute_pod("low") is None
        assert here.phase("low") == "Pending"


async def test_a_tenant_that_deletes_a_pod_under_notice_has_its_way(here: World) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        here.delete("low", grace=3)
        await until(lambda: deleted(here.compute_pod("low")))
        here.end("low", code=143)
        await until(lambda: here.tenant_pod("low") is None)
        await start(here, "high")


async def test_a_pod_under_notice_that_ends_by_itself_ends_like_any_other(here: World) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
        here.end("low")
        await until(lambda: here.phase("low") == "Succeeded")
        await start(here, "high")
        assert (condition(here, DISRUPTED, "low") or ("", PREEMPTED))[1] == PREEMPTED


async def test_guaranteed_work_inside_its_cells_stays(here: World) -> None:
    async with here.gateway():
        gated(here, "first", gpus=8)
        await start(here, "first")
        gated(here, "second", gpus=8, priority=1_000_000, preemptionPolicy="Never")
        await told(here, "WaitingForRoom", "second")
        assert annotation(here.tenant_pod("first"), DEADLINE) == ""
        assert here.phase("first") == "Running"

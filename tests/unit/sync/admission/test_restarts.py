"""A gateway that dies at any step and is started anew: the same end, nothing twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.unit.sync.admission.platform import (
    ADMITTED,
    DEADLINE,
    LOW,
    SECOND_NODE,
    add_node,
    annotation,
    bind,
    condition,
    creations,
    deleted,
    gated,
    is_let_go,
    let_go,
    low_runs,
    noticed,
    pinned_to,
    run,
    start,
    stranger,
    told,
)
from tests.unit.sync.world import BELOW, COMPUTE_NODE, World, until, world
from vkgateway.arbiter.snapshot import PodState
from vkgateway.kube.resources import NAMESPACES, PODS
from vkgateway.model.names import GANGS_DONE_ANNOTATION
from vkgateway.sync.tenant import TenantSync
from vkgateway.sync.views.annotations import EVICTED, RETAKEN

pytestmark = pytest.mark.usefixtures("told_soon")


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": "default"}})
        made.limit = made.limit | {"nvidia.com/gpu": 16_000}
        made.guarantee = {"nvidia.com/gpu": 8000}
        yield made


def states(sync: TenantSync) -> dict[str, PodState]:
    """Where the arbiter takes each pod to stand, by name."""
    admission = sync.pods.admission.tenant_admission
    gangs, _ = admission.gangs.build_gangs()
    found = {pod.uid: pod.state for gang in (*gangs, *admission.orphan_gangs()) for pod in gang.pods}
    return {member.key[1]: found[member.uid] for member in admission.gangs if member.uid in found}


# -- between admission and forward -------------------------------------------------------------------------------------


async def test_a_pod_that_was_let_go_and_bound_while_nobody_watched_runs(here: World) -> None:
    gated(here)
    async with here.gateway():
        await let_go(here)
    bind(here)
    async with here.gateway():
        assert pinned_to(await here.forwarded()) == COMPUTE_NODE
        run(here)
        await until(lambda: here.phase() == "Running")
    assert creations(here) == 1


async def test_one_that_is_bound_only_after_the_start_runs(here: World) -> None:
    gated(here)
    async with here.gateway():
        await let_go(here)
    async with here.gateway():
        await here.settled()
        bind(here)
        await here.forwarded()
    assert creations(here) == 1


async def test_one_whose_room_was_taken_meanwhile_waits_for_it(here: World) -> None:
    gated(here)
    async with here.gateway():
        await let_go(here)
    stranger(here, gpus=8)
    bind(here)
    async with here.gateway():
        await told(here, "WaitingForRoom")
        assert here.compute_pod() is None
        add_node(here)
        assert pinned_to(await here.forwarded()) == SECOND_NODE


async def test_one_whose_creation_was_on_its_way_runs_once(here: World) -> None:
    gated(here)
    async with here.gateway():
        await let_go(here)
        here.below.hold("POST", "/pods")
        bind(here)
        await until(lambda: creations(here) == 1)
    here.below.heal()
    async with here.gateway():
        await here.forwarded()
        run(here)
        await until(lambda: here.phase() == "Running")


async def test_one_that_was_created_below_is_known_by_what_stands_on_it(here: World) -> None:
    add_node(here)
    gated(here)
    async with here.gateway():
        await let_go(here)
        bind(here)
        first = await here.forwarded()
    async with here.gateway() as sync:
        await until(lambda: states(sync).get("web") is PodState.PLACED)
        await here.settled()
        second = here.compute_pod()
        assert second is not None
        assert second["metadata"]["uid"] == first["metadata"]["uid"]
        assert pinned_to(second) == pinned_to(first)
    assert creations(here) == 1


async def test_a_waiting_pod_is_not_told_again_what_it_was_told(here: World) -> None:
    gated(here, gpus=9)
    async with here.gateway():
        await told(here, "Infeasible")
    written = len([request for request in here.above.requests if "/pods/web/status" in request])
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.verdict_store.pending_messages)
        await here.settled()
    assert len([request for request in here.above.requests if "/pods/web/status" in request]) == written


async def test_what_a_pod_was_told_is_put_right_though_another_gateway_told_it(here: World) -> None:
    stranger(here, gpus=8)
    gated(here)
    async with here.gateway():
        await told(here, "WaitingForRoom")
    here.below.store.delete(PODS, "daemon", "default", grace=0)
    async with here.gateway():
        await start(here)
        await until(lambda: condition(here, ADMITTED) is None)


# -- between notice and deletion ---------------------------------------------------------------------------------------


async def test_a_notice_holds_for_the_next_gateway_with_its_deadline(here: World) -> None:
    here.notice = 4
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        deadline = await noticed(here)
    await asyncio.sleep(1.1)  # a deadline that was set anew would be another
    async with here.gateway() as sync:
        await until(lambda: states(sync).get("low") is PodState.NOTIFIED)
        await here.settled()
        assert annotation(here.tenant_pod("low"), DEADLINE) == deadline
        assert annotation(here.compute_pod("low"), DEADLINE) == deadline
        await until(lambda: deleted(here.compute_pod("low")))
        here.end("low", code=143)
        await until(lambda: here.phase("low") == "Failed")
        await start(here, "high")
    assert (condition(here, "DisruptionTarget", "low") or ("", ""))[1] == "PreemptionByVkgateway"


async def test_a_deadline_that_passed_while_nobody_watched_is_kept_at_once(here: World) -> None:
    here.notice = 1.5
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
    async with here.gateway():
        await until(lambda: deleted(here.compute_pod("low")))
        here.end("low", code=143)
        await start(here, "high")


async def test_a_notice_given_below_only_is_given_above_by_the_next(here: World) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here)
        here.above.hold("PATCH", "/pods/low", times=100)
        gated(here, "high", gpus=8)
        await until(lambda: annotation(here.compute_pod("low"), DEADLINE))
    here.above.heal()
    assert annotation(here.tenant_pod("low"), DEADLINE) == ""
    async with here.gateway():
        await noticed(here)
        assert condition(here, "DisruptionTarget", "low") is not None


async def test_a_notice_whose_claimant_went_while_nobody_watched_is_withdrawn(here: World) -> None:
    here.notice = 30
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await noticed(here)
    here.delete("high")
    async with here.gateway():
        await until(lambda: not annotation(here.tenant_pod("low"), DEADLINE))
        await until(lambda: not annotation(here.compute_pod("low"), DEADLINE))
    assert here.phase("low") == "Running"


async def test_what_is_ending_at_the_start_is_known_as_such_and_what_waits_for_it_starts(here: World) -> None:
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        await until(lambda: deleted(here.compute_pod("low")))
    async with here.gateway() as sync:
        await until(lambda: states(sync).get("low") is PodState.ENDING)
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        await told(here, "WaitingForEviction", "high")
        here.end("low", code=143)
        await until(lambda: here.phase("low") == "Failed")
        await start(here, "high")


@pytest.mark.parametrize("grace", [3, 0])
async def test_so_is_what_a_tenant_deleted(here: World, grace: int) -> None:
    async with here.gateway():
        gated(here, "first", gpus=8)
        await start(here, "first")
        here.delete("first", grace=grace)
        await until(lambda: deleted(here.compute_pod("first")))
        gated(here, "second", gpus=8)
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        await told(here, "WaitingForEviction", "second")
        here.end("first", code=137)
        await until(lambda: here.tenant_pod("first") is None)
        await start(here, "second")


async def test_a_deletion_that_did_not_reach_below_is_made_up_for(here: World) -> None:
    async with here.gateway():
        gated(here, "first", gpus=8)
        await start(here, "first")
    here.delete("first", grace=3)
    gated(here, "second", gpus=8)
    async with here.gateway() as sync:
        await until(lambda: sync.pods.admission.tenant_admission.is_known)
        await until(lambda: deleted(here.compute_pod("first")))
        here.end("first", code=143)
        await start(here, "second")


async def test_what_is_left_of_pods_that_went_while_nobody_watched_is_removed_and_its_room_used(here: World) -> None:
    async with here.gateway():
        gated(here, "first", gpus=8)
        await start(here, "first")
    here.delete("first", grace=0)
    assert here.tenant_pod("first") is None
    gated(here, "second", gpus=8)
    async with here.gateway() as sync:
        await until(lambda: deleted(here.compute_pod("first")))
        assert [gang.pods[0].state for gang in sync.pods.admission.tenant_admission.orphan_gangs()] == [PodState.ENDING]
        await told(here, "WaitingForEviction", "second")
        here.end("first", code=137)
        await until(lambda: here.compute_pod("first") is None)
        await start(here, "second")


async def test_a_deadline_at_which_only_the_reason_was_written_is_kept(here: World) -> None:
    here.notice = 1.5
    async with here.gateway():
        await low_runs(here)
        gated(here, "high", gpus=8)
        here.below.hold("DELETE", "/pods/low")
        await until(lambda: annotation(here.compute_pod("low"), EVICTED))
    here.below.heal()
    assert not deleted(here.compute_pod("low"))
    async with here.gateway():
        await until(lambda: deleted(here.compute_pod("low")))
        here.end("low", code=143)
        await until(lambda: here.phase("low") == "Failed")
        assert (condition(here, "DisruptionTarget", "low") or ("", ""))[1] == "PreemptionByVkgateway"
        await start(here, "high")


# -- between promotion and its record ----------------------------------------------------------------------------------


def borrowing(sync: TenantSync) -> dict[str, bool]:
    """Whether each pod that is placed borrows, by name, as the arbiter is told."""
    admission = sync.pods.admission.tenant_admission
    gangs, _ = admission.gangs.build_gangs()
    found = {pod.uid: pod.borrowed for gang in gangs for pod in gang.pods if pod.pool is not None}
    return {member.key[1]: found[member.uid] for member in admission.gangs if member.uid in found}


@pytest.mark.parametrize("written", [True, False])
async def test_who_was_promoted_stays_inside_also_before_those_who_are_ahead(here: World, written: bool) -> None:
    """With or without it having been written down; a pod of higher priority that preempts nothing waits."""
    add_node(here)
    async with here.gateway():
        gated(here, "first", gpus=8)
        await start(here, "first")
        gated(here, "second", gpus=8)
        assert annotation(await start(here, "second"), "vkgateway.io/borrowed") == "true"
        if not written:
            here.below.fail("PATCH", "/pods/second", status=503, times=1000)
        here.end("first")
        await until(lambda: here.phase("first") == "Succeeded")
        stranger(here, gpus=8)
        if written:
            await until(lambda: annotation(here.compute_pod("second"), "vkgateway.io/borrowed") == "false")
        await here.settled()
    here.below.heal()
    if written:
        gated(here, "third", gpus=8, priority=1000, preemptionPolicy="Never")
    async with here.gateway() as sync:
        await until(lambda: borrowing(sync) == {"second": False})
        await until(lambda: annotation(here.compute_pod("second"), "vkgateway.io/borrowed") == "false")
        if written:
            await told(here, "WaitingForRoom", "third")
        await until(lambda: "InsideGuarantee" in {reason for reason, _ in here.events()})
    assert not annotation(here.compute_pod("second"), DEADLINE)


async def test_who_was_started_in_a_kept_place_still_goes_for_whom_it_is_kept(here: World) -> None:
    add_node(here)
    here.limit = here.limit | {"nvidia.com/gpu": 64_000}
    async with here.gateway():
        await low_runs(here, "first", marks={"vkgateway.io/gang-run-limit": "20m"})
        for name in ("one", "two"):
            gated(here, name, gpus=8, gang=("wide", 2), **LOW)
        await told(here, "WaitingForRoom", "one")
        await low_runs(here, "small")
    async with here.gateway():
        here.end("first")
        await noticed(here, "small")
        await until(lambda: deleted(here.compute_pod("small")))
        here.end("small", code=143)
        await start(here, "one")
        await start(here, "two")


# -- between taking back and placing anew ------------------------------------------------------------------------------


async def test_a_pod_that_was_being_taken_back_is_placed_anew(here: World) -> None:
    add_node(here)
    here.bind = 1.0
    gated(here)
    async with here.gateway():
        await let_go(here)
        bind(here)
        first = await here.forwarded()
        here.below.hold("DELETE", "/pods/web")
        await until(lambda: annotation(here.compute_pod(), RETAKEN))
    here.below.heal()
    here.bind = 60.0
    async with here.gateway():
        await until(lambda: (here.compute_pod() or first)["metadata"]["uid"] != first["metadata"]["uid"])
        run(here)
        await until(lambda: here.phase() == "Running")
    assert creations(here) == 2
    assert condition(here, "DisruptionTarget") is None


# -- between the end of one pod and that of its gang -------------------------------------------------------------------


def written(here: World) -> str:
    return annotation(here.below.store.get(NAMESPACES, BELOW), GANGS_DONE_ANNOTATION)


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_who_ended_well_is_not_waited_for_by_the_next_gateway(here: World, is_deleted: bool) -> None:
    names = ("one", "two", "three")
    for name in names:
        gated(here, name, gpus=2, gang=("train", 3))
    async with here.gateway():
        for name in names:
            await start(here, name)
        here.end("one")
        await until(lambda: here.phase("one") == "Succeeded")
        if is_deleted:
            here.delete("one", grace=0)
            await until(lambda: here.compute_pod("one") is None)
        await until(lambda: written(here))
        here.end("two", code=1)
        await until(lambda: here.phase("two") == "Failed")
        stranger(here, gpus=5)
        gated(here, "again", gpus=2, gang=("train", 3))
        await told(here, "WaitingForRoom", "again")
    async with here.gateway():
        here.below.store.delete(PODS, "daemon", "default", grace=0)
        await start(here, "again")
        assert "one" in written(here)
        for name in ("again", "three"):
            here.end(name)
        await until(lambda: not written(here))


# -- between two pods of one gang --------------------------------------------------------------------------------------


async def test_a_gang_of_which_one_was_let_go_starts_as_a_whole(here: World) -> None:
    gated(here, "one", gpus=4, gang=("train", 2))
    gated(here, "two", gpus=4, gang=("train", 2))
    async with here.gateway():
        here.above.fail("PATCH", "/pods/two?", status=503, times=1000)
        await let_go(here, "one")
    here.above.heal()
    assert not is_let_go(here, "two")
    async with here.gateway():
        await start(here, "one")
        await start(here, "two")
    assert creations(here) == 2


async def test_a_gang_of_which_one_could_be_bound_is_forwarded_once_the_other_is(here: World) -> None:
    gated(here, "one", gpus=4, gang=("train", 2))
    gated(here, "two", gpus=4, gang=("train", 2))
    async with here.gateway():
        here.above.fail("PATCH", "/pods/two?", status=503, times=1000)
        await let_go(here, "one")
        bind(here, "one")
        await here.settled()
        assert creations(here) == 0
    here.above.heal()
    assert not is_let_go(here, "two")
    async with here.gateway():
        await start(here, "two")
        await start(here, "one")
        await here.settled()
    assert creations(here) == 2
    assert here.phase("one") == "Running"


async def test_a_gang_whose_second_was_bound_while_nobody_watched_is_completed(here: World) -> None:
    gated(here, "one", gpus=4, gang=("train", 2))
    gated(here, "two", gpus=4, gang=("train", 2))
    async with here.gateway():
        await let_go(here, "two")
        await start(here, "one")
    bind(here, "two")
    async with here.gateway():
        await here.forwarded("two")
        await here.settled()
    assert creations(here) == 2


async def test_the_rest_of_a_gang_keeps_its_place_before_those_that_came_later(here: World) -> None:
    """Low work that is quicker must not take what the second half of a gang was let go for."""
    gated(here, "one", gpus=4, gang=("train", 2))
    gated(here, "two", gpus=4, gang=("train", 2))
    async with here.gateway():
        await let_go(here, "two")
        await start(here, "one")
    gated(here, "late", gpus=4, **LOW)
    async with here.gateway():
        await told(here, "WaitingForRoom", "late")
        bind(here, "two")
        await here.forwarded("two")

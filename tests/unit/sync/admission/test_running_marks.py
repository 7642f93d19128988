"""Marks that a user changes on the pods of a running gang: the gang stays as it was admitted."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.admission.cluster_helpers import create_gated, get_condition, get_pod, start_pod
from tests.unit.sync.world import World, start_world
from vkgateway.kube.resources import JOBS, PODS
from vkgateway.scheduler.core.snapshot import Gang
from vkgateway.scheduler.service.member_reader import INVALID_MARK, MARKS_CONDITION
from vkgateway.tenants.tenant import TenantSync

pytestmark = pytest.mark.usefixtures("told_soon")

WRITTEN: dict[str, dict[str, str | None]] = {
    "an unreadable time": {"vkgateway.io/gang-checkpoint": "yesterday"},
    "an empty time": {"vkgateway.io/gang-checkpoint": " "},
    "an unreadable cost": {"vkgateway.io/gang-restart-cost": "expensive"},
    "an unreadable limit": {"vkgateway.io/gang-run-limit": "soon"},
    "an unreadable number": {"vkgateway.io/gang-min": "two"},
    "another number": {"vkgateway.io/gang-min": "1"},
    "another gang": {"vkgateway.io/gang": "other"},
    "no gang": {"vkgateway.io/gang": None, "vkgateway.io/gang-min": None},
}
WITHOUT_WARNING = ("another number",)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.guarantee = {"nvidia.com/gpu": 8000}
        yield world


async def start_gang(world: World) -> None:
    for rank in range(2):
        create_gated(world, f"rank-{rank}", gpus=4, gang=("train", 2))
    for rank in range(2):
        await start_pod(world, f"rank-{rank}")


def annotate(world: World, written: dict[str, str | None]) -> None:
    pod = copy.deepcopy(get_pod(world, "rank-1"))
    annotations = pod["metadata"]["annotations"] | written
    pod["metadata"]["annotations"] = {key: value for key, value in annotations.items() if value is not None}
    world.tenant_server.store.update(PODS, pod, name="rank-1", namespace="default")


def gangs_of(sync: TenantSync) -> list[Gang]:
    return sync.reconcilers.admission.tenant_admission.gangs.build_gangs()[0]


def is_whole(sync: TenantSync) -> bool:
    gangs = gangs_of(sync)
    return len(gangs) == 1 and len(gangs[0].pods) == 2 and gangs[0].minimum == 2


@pytest.mark.parametrize("restarts", [False, True], ids=["same gateway", "restarted gateway"])
@pytest.mark.parametrize("what", WRITTEN)
async def test_a_running_gang_keeps_its_members_whatever_is_written(world: World, what: str, restarts: bool) -> None:
    async with world.run_gateway() as sync:
        await start_gang(world)
        assert is_whole(sync)
        if not restarts:
            annotate(world, WRITTEN[what])
            await check_gang(world, sync, what)
    if restarts:
        annotate(world, WRITTEN[what])
        async with world.run_gateway() as sync:
            await wait_until(lambda: gangs_of(sync) and len(gangs_of(sync)[0].pods) == 2)
            await check_gang(world, sync, what)


async def check_gang(world: World, sync: TenantSync, what: str) -> None:
    if what not in WITHOUT_WARNING:
        await wait_until(lambda: get_condition(world, MARKS_CONDITION, "rank-1"))
    await world.wait_settled()
    assert is_whole(sync), gangs_of(sync)
    if what not in WITHOUT_WARNING:
        condition = get_condition(world, MARKS_CONDITION, "rank-1")
        assert condition is not None
        assert condition[:2] == ("False", INVALID_MARK)
        message = condition[2]
        assert "stays in the gang default/gang/train" in message
        await wait_until(lambda: (INVALID_MARK, message) in world.events())
    for key, value in WRITTEN[what].items():
        if value is not None and what.startswith("an unreadable"):
            assert key in message
            assert repr(value) in message


async def test_the_last_good_checkpoint_counts_until_it_can_be_read_again(world: World) -> None:
    async with world.run_gateway() as sync:
        await start_gang(world)
        annotate(world, {"vkgateway.io/gang-checkpoint": "2026-11-29T12:00:00"})
        await wait_until(lambda: gangs_of(sync)[0].checkpoint == 1795953600)
        annotate(world, {"vkgateway.io/gang-checkpoint": "half past twelve"})
        await wait_until(lambda: get_condition(world, MARKS_CONDITION, "rank-1"))
        assert gangs_of(sync)[0].checkpoint == 1795953600
        annotate(world, {"vkgateway.io/gang-checkpoint": "2026-11-29T12:30:00Z"})
        await wait_until(lambda: gangs_of(sync)[0].checkpoint == 1795955400)
        await wait_until(lambda: (get_condition(world, MARKS_CONDITION, "rank-1") or ("",))[0] == "True")


async def test_a_restarted_gateway_that_does_not_know_the_job_yet_reports_nothing(world: World) -> None:
    """A gang that one Job creates is named after it, too."""
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    job = world.tenant_server.store.create(JOBS, {"metadata": {"name": "train"}, "spec": spec}, "default")
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": "train",
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    async with world.run_gateway():
        for rank in range(2):
            create_gated(
                world,
                f"rank-{rank}",
                gpus=4,
                annotations={"vkgateway.io/gang": "night", "vkgateway.io/gang-size": "2"},
                owners=[owner],
            )
        for rank in range(2):
            await start_pod(world, f"rank-{rank}")
    hold = world.tenant_server.hold("GET", "/apis/batch/v1/jobs")
    async with world.run_gateway() as sync:
        await wait_until(lambda: gangs_of(sync))
        await world.wait_settled()
        hold.set()
        await wait_until(lambda: is_whole(sync))
        await world.wait_settled()
    assert get_condition(world, MARKS_CONDITION, "rank-1") is None
    assert INVALID_MARK not in {reason for reason, _ in world.events()}

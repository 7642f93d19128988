"""An external scheduler: which gangs are passed on, with what, and what follows when it evicts single pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.arbiter.simulated_cluster import KEY, make_quota, reports_by_gang
from tests.unit.modes.external_world import ExternalWorld
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.scheduler.backends.external.mode import ExternalMode
from vkgateway.scheduler.backends.gang_split import GangSplit, GangSplitter
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Band, Gang, PodState

SCHEDULING = PoolScheduling(
    mode="external",
    scheduler_name="gpu-scheduler",
    queue="root.{tenant}",
    priority_class_name="external-{band}",
    pod_labels={"queue": "{queue}", "example.com/group": "{gang}"},
    pod_annotations={"example.com/sizes": "{minimum} of {size} in {pool}"},
)


@pytest.fixture
def world() -> ExternalWorld:
    return ExternalWorld(quotas=(make_quota("a", 16), make_quota("b", limit=24)))


def reason(world: ExternalWorld, name: str) -> tuple[PendingReason, str]:
    report = reports_by_gang(world.plan().decisions)[world.gang(name).id]
    return report.code, report.message


# -- what is passed on --


def test_whole_gang_is_passed_on_with_its_marks(world: ExternalWorld) -> None:
    gang = world.add("train", "a", [8, 8])
    (admit,) = world.plan().decisions.admits
    assert set(admit.nodes) == {pod.uid for pod in gang.pods}
    assert set(admit.nodes.values()) == {""}
    assert not admit.borrowed
    assert all(mark.annotations["vkgateway.io/scheduling-mode"] == "external" for mark in admit.marks.values())


def test_templates_name_tenant_pool_queue_and_gang(world: ExternalWorld) -> None:
    gang = world.add("train", "a", [8, 8, 8], minimum=2, elastic=True, grace=5.0)
    request = Request(name="x", gang=gang, pods=gang.pods[:2], spec=PoolSpec(name="a100", scheduling=SCHEDULING))
    marks = ExternalMode().marks(request, gang.pods[0])
    assert marks.scheduler_name == "gpu-scheduler"
    assert marks.labels["queue"] == "root.a"
    assert marks.labels["example.com/group"].startswith("a-")
    assert len(marks.labels["example.com/group"]) <= 63
    assert marks.annotations["example.com/sizes"] == "2 of 3 in a100"
    assert (marks.priority_class, marks.grace) == ("external-guaranteed", 5)
    surplus = replace(request, name="y", pods=gang.pods[2:], is_surplus=True, is_borrowed=True)
    later = ExternalMode().marks(surplus, gang.pods[2])
    assert later.labels == marks.labels, "surplus belongs to its gang"
    assert later.priority_class == "external-low"


def test_incomplete_gang_waits(world: ExternalWorld) -> None:
    world.add("train", "a", [8], minimum=2)
    assert not world.plan().decisions.admits
    assert reason(world, "train") == (PendingReason.MEMBERS, "1 of 2 pods created")


def test_waiting_gang_has_no_place(world: ExternalWorld) -> None:
    """The scheduler has no queue that the gateway knows."""
    world.add("running", "b", [8, 8, 8])
    world.cycle()
    world.add("late", "b", [8])
    report = reports_by_gang(world.plan().decisions)[world.gang("late").id]
    assert (report.code, report.place) == (PendingReason.QUOTA, 0)


def test_guarantee_counts_whoever_manages_queues(world: ExternalWorld) -> None:
    """The field is for schedulers whose queues the gateway can write."""
    scheduling = PoolScheduling(mode="external", scheduler_name="s", manage_queues=False)
    world.spec = PoolSpec(name=KEY[1], scheduling=scheduling)
    world.add("train", "a", [8])
    (admit,) = world.plan().decisions.admits
    assert not admit.borrowed


def test_gangs_of_unknown_tenants_wait(world: ExternalWorld) -> None:
    world.add("train", "a", [8])
    world.known.clear()
    assert not world.plan().decisions.admits


def test_missing_pod_of_a_running_gang_starts_again(world: ExternalWorld) -> None:
    world.add("train", "a", [8, 8])
    world.settle()
    lost = world.gang("train").pods[0].uid
    world.remove(lambda pod: pod.uid == lost)
    world.recreate("train")
    world.settle()
    assert world.states("train") == ["placed", "placed"]


def test_surplus_starts_pod_by_pod_up_to_the_maximum(world: ExternalWorld) -> None:
    gang = world.add("elastic", "a", [8, 8, 8], minimum=1, elastic=True, maximum=2)
    world.settle()
    assert sorted(world.states("elastic")) == ["placed", "placed", "waiting"]
    assert reports_by_gang(world.plan().decisions)[gang.id].code is PendingReason.MAXIMUM


def test_pool_with_invalid_templates_starts_nothing(world: ExternalWorld) -> None:
    """API servers would refuse the pods, and their tenant would see them fail."""
    world.add("runs", "a", [8])
    world.settle()
    scheduling = PoolScheduling(mode="external", scheduler_name="s", pod_labels={"queue": "root/{tenant}"})
    world.spec = PoolSpec(name=KEY[1], scheduling=scheduling)
    world.add("waits", "a", [8])
    world.settle()
    assert (world.states("runs"), world.states("waits")) == (["placed"], ["waiting"])
    assert "settings of the pool are invalid" in reason(world, "waits")[1]


# -- limits --


def test_gangs_beyond_the_limit_wait(world: ExternalWorld) -> None:
    world.add("first", "b", [8, 8])
    world.add("second", "b", [8, 8], created=5.0)
    world.settle()
    assert (world.states("first"), world.states("second")) == (["placed"] * 2, ["waiting"] * 2)
    assert reason(world, "second") == (
        PendingReason.QUOTA,
        "its start would exceed your limit of nvidia.com/gpu 24",
    )
    world.remove(lambda pod: pod.uid in {each.uid for each in world.gang("first").pods})
    world.settle()
    assert world.states("second") == ["placed"] * 2


def test_limit_goes_to_the_higher_priority_then_to_the_older_gang(world: ExternalWorld) -> None:
    world.add("low", "b", [8, 8], created=1.0)
    world.add("young", "b", [8, 8], created=3.0, priority=5)
    world.add("old", "b", [8, 8], created=2.0, priority=5)
    world.cycle()
    assert [world.states(name)[0] for name in ("old", "young", "low")] == ["placed", "waiting", "waiting"]


def test_limit_holds_for_replacements_and_surplus(world: ExternalWorld) -> None:
    gang = world.add("elastic", "b", [8, 8, 8, 8], minimum=2, elastic=True)
    world.settle()
    assert world.states("elastic").count("placed") == 3
    assert reports_by_gang(world.plan().decisions)[gang.id].code is PendingReason.QUOTA


def test_limit_holds_for_more_pods_of_a_running_gang(world: ExternalWorld) -> None:
    world.add("grows", "b", [8, 8])
    world.settle()
    world.gangs["grows"] = replace(world.gang("grows"), minimum=4)
    world.recreate("grows")
    result = world.cycle()
    assert world.states("grows").count("placed") == 3
    assert not result.creates
    assert not result.releases


def test_only_gangs_within_the_guarantee_are_passed_on_while_a_budget_is_used_up(world: ExternalWorld) -> None:
    world.quotas = (replace(make_quota("a", 8), stopped=("nvidia.com/gpu",)),)
    for name, created in (("first", 1.0), ("second", 2.0), ("third", 3.0)):
        world.add(name, "a", [4], created=created)
    world.add("low", "a", [1], band=Band.LOW)
    world.settle()
    assert [world.states(name)[0] for name in ("first", "second", "third", "low")] == [
        "placed",
        "placed",
        "waiting",
        "waiting",
    ]
    assert reason(world, "third")[0] is reason(world, "low")[0] is PendingReason.BUDGET
    assert reason(world, "third")[1].endswith("needs nvidia.com/gpu 4; in use of the guarantee: nvidia.com/gpu 8 of 8")
    assert "needs nvidia.com/gpu 1, and low-priority pods do not use the guarantee" in reason(world, "low")[1]
    world.quotas = (make_quota("a", 8),)
    world.settle()
    assert world.states("third") == world.states("low") == ["placed"]


def test_gang_that_would_not_fit_the_virtual_node_waits(world: ExternalWorld) -> None:
    """Its tenant's scheduler could not bind it."""
    world.add("first", "a", [8, 8, 8])
    world.add("second", "a", [8, 8], created=5.0)
    world.settle()
    assert world.states("second") == ["waiting"] * 2
    assert reason(world, "second")[0] is PendingReason.ROOM


def test_tenants_are_passed_on_independently(world: ExternalWorld) -> None:
    world.add("one", "a", [8] * 4)
    world.add("two", "b", [8] * 3)
    world.settle()
    assert set(world.states("one") + world.states("two")) == {"placed"}


@pytest.mark.parametrize(
    ("tenant", "gpus", "text"),
    [
        ("b", [8] * 4, "more than your limit of nvidia.com/gpu 24"),
        ("a", [8] * 5, "more than the pool has: nvidia.com/gpu 32"),
        ("a", [16], "more than any node of the pool has"),
    ],
)
def test_gang_that_never_fits_is_infeasible(world: ExternalWorld, tenant: str, gpus: list[int], text: str) -> None:
    world.add("huge", tenant, gpus)
    code, message = reason(world, "huge")
    assert code is PendingReason.INFEASIBLE
    assert text in message


def test_guarantee_is_counted_by_sums(world: ExternalWorld) -> None:
    world.add("inside", "a", [8, 8])
    world.add("outside", "a", [8], created=5.0)
    world.add("low", "a", [8], created=6.0, band=Band.LOW)
    admits = {admit.gang.rpartition("/")[2]: admit.borrowed for admit in world.plan().decisions.admits}
    assert admits == {"inside": False, "outside": True, "low": True}


# -- broken gangs --


def test_rest_of_a_broken_gang_is_evicted_and_starts_again_after_a_while(world: ExternalWorld) -> None:
    gang = world.add("train", "b", [8, 8, 8])
    world.settle()
    world.preempt("train")
    (evict,) = world.plan().decisions.evicts
    assert (evict.whole, evict.deadline, len(evict.pods)) == (True, world.now, 2)
    world.cycle()
    world.end_everything()
    world.recreate("train")
    assert not world.cycle().decisions.admits
    assert reports_by_gang(world.plan().decisions)[gang.id].code is PendingReason.ROOM
    world.now += 10.0
    world.cycle()
    assert world.states("train") == ["placed"] * 3
    assert not world.breaches


def test_gang_that_keeps_its_minimum_goes_on(world: ExternalWorld) -> None:
    world.add("elastic", "b", [8, 8, 8], minimum=2, elastic=True)
    world.settle()
    world.preempt("elastic")
    assert not world.plan().decisions.evicts


def test_pods_that_ended_otherwise_break_nothing(world: ExternalWorld) -> None:
    world.add("train", "b", [8, 8, 8])
    world.settle()
    gone = world.gang("train").pods[0].uid
    world.remove(lambda pod: pod.uid == gone)
    assert not world.plan().decisions.evicts


def test_replacements_of_a_broken_gang_do_not_start_before_its_end(world: ExternalWorld) -> None:
    world.add("train", "b", [8, 8])
    world.settle()
    world.preempt("train")
    world.recreate_missing("train")
    for _ in range(3):
        assert not world.cycle().decisions.admits
    assert PodState.PLACED not in {pod.state for pod in world.gang("train").pods}


@pytest.mark.parametrize("fields", [{}, {"elastic": True}])
def test_nothing_is_written_to_the_scheduler(world: ExternalWorld, fields: dict[str, Any]) -> None:
    world.add("train", "b", [8, 8], minimum=1, **fields)
    world.settle()
    result = world.plan()
    assert (result.creates, result.releases, result.pool_objects, result.started) == ((), (), (), ())
    assert world.given().specs[KEY].scheduling.mode == "external"


def test_each_gang_is_split_once_in_a_cycle(world: ExternalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    split: list[str] = []
    real = GangSplitter._split

    def count(self: GangSplitter, gang: Gang) -> GangSplit:
        split.append(gang.id)
        return real(self, gang)

    world.add("running", "a", [8, 8])
    world.settle()
    world.add("waiting", "b", [8])
    world.add("elastic", "b", [4, 4, 4], minimum=1, elastic=True)
    monkeypatch.setattr(GangSplitter, "_split", count)
    world.plan()
    assert sorted(split) == sorted(gang.id for gang in world.gangs.values())

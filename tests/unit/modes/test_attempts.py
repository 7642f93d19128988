"""Attempts of gangs at another scheduler: creation, start, eviction and release."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tests.unit.arbiter.simulated_cluster import GPU, KEY, make_quota, reports_by_gang
from tests.unit.modes.world import MODE, SPEC, WAIT, World
from vkgateway.api.types import PoolScheduling
from vkgateway.scheduler.backends.attempt import AttemptState, Wait
from vkgateway.scheduler.backends.attempts import plan_attempts
from vkgateway.scheduler.backends.kueue.mode import KueueMode
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Band, PodState


@pytest.fixture
def world() -> World:
    return World()


def test_waiting_gang_is_asked_for_before_any_pod_starts(world: World) -> None:
    gang = world.add("train", "a", [4, 4])
    result = world.cycle()
    assert world.states("train") == ["waiting", "waiting"]
    assert [one["kind"] for one in result.creates] == ["Workload"]
    assert reports_by_gang(result.decisions)[gang.id].code is PendingReason.ROOM


def test_admitted_gang_starts_on_its_slots(world: World) -> None:
    world.add("train", "a", [8, 8])
    world.settle()
    assert sorted(pod.node for pod in world.gang("train").pods) == ["n0", "n1"]
    assert world.states("train") == ["placed", "placed"]


def test_pending_attempt_says_why_and_its_place(world: World) -> None:
    world.add("first", "a", [8] * 4)
    world.settle()
    world.add("second", "b", [8])
    world.add("third", "b", [8])
    world.settle()
    reports = reports_by_gang(world.plan().decisions)
    assert [reports[world.gang(name).id].place for name in ("second", "third")] == [1, 2]
    assert reports[world.gang("third").id].message == WAIT.message


def test_gang_that_never_starts_has_no_place(world: World) -> None:
    world.add("huge", "b", [8])
    world.add("next", "b", [8])
    world.cycle()
    attempt = world.attempt_of("huge")
    assert attempt is not None
    world.change(attempt.name, wait=Wait(PendingReason.INFEASIBLE, "too large"))
    reports = reports_by_gang(world.plan().decisions)
    assert {name: reports[world.gang(name).id].place for name in ("huge", "next")} == {"huge": 0, "next": 1}


def test_incomplete_gang_is_not_asked_for(world: World) -> None:
    gang = world.add("train", "a", [4], minimum=2)
    result = world.cycle()
    assert not result.creates
    assert reports_by_gang(result.decisions)[gang.id].code is PendingReason.MEMBERS


def test_gang_of_too_many_shapes_is_infeasible(world: World) -> None:
    gang = world.add("train", "a", list(range(1, 10)))
    result = world.cycle()
    assert not result.creates
    assert reports_by_gang(result.decisions)[gang.id].code is PendingReason.INFEASIBLE


def test_evicted_gang_gets_notice_and_keeps_its_reservation_until_its_pods_ended(world: World) -> None:
    world.add("low", "b", [8] * 4, band=Band.LOW)
    world.settle()
    world.add("high", "a", [8, 8])
    world.cycle()
    attempt = world.attempt_of("high")
    assert attempt is not None
    world.evict("low", preemptor=attempt.uid)
    result = world.cycle()
    (evict,) = result.decisions.evicts
    assert (evict.whole, len(evict.pods), evict.deadline) == (True, 4, world.now + 10)
    assert evict.makes_room_for == world.gang("high").id
    world.settle(seconds=9.0)
    assert world.attempt_of("low") is not None
    assert not world.plan().decisions.evicts
    world.settle(seconds=1.0)
    world.settle()
    assert world.states("low") == []
    assert world.states("high") == ["placed", "placed"]
    assert not [name for name in world.attempts if name == attempt.name and world.attempts[name].uid != attempt.uid]


def test_replacements_of_an_evicted_gang_ask_again(world: World) -> None:
    world.sizes["low"] = 8
    world.add("low", "b", [8, 8])
    world.settle()
    first = world.attempt_of("low")
    world.evict("low")
    world.settle(seconds=10.0)
    world.recreate("low")
    result = world.cycle()
    assert first is not None
    assert [one.uid for one in result.releases] == [first.uid]
    world.settle()
    second = world.attempt_of("low")
    assert second is not None
    assert first.uid != second.uid
    assert world.states("low") == ["placed", "placed"]


def test_replacements_wait_while_earlier_pods_run(world: World) -> None:
    world.sizes["low"] = 8
    world.add("low", "b", [8, 8])
    world.settle()
    world.evict("low")
    world.cycle()
    world.remove(lambda pod: pod.uid == "low-0")
    world.recreate("low")
    result = world.cycle()
    assert sorted(world.states("low")) == ["notified", "waiting"]
    assert not result.releases
    assert not result.creates


def test_replacement_of_a_failed_pod_takes_its_slot(world: World) -> None:
    world.sizes["train"] = 4
    world.add("train", "a", [4, 4])
    world.settle()
    world.remove(lambda pod: pod.uid == "train-0")
    world.recreate("train")
    world.settle()
    assert world.states("train") == ["placed", "placed"]
    assert len(world.attempts) == 1


def test_running_gang_without_an_attempt_is_evicted(world: World) -> None:
    world.add("train", "a", [8])
    world.settle()
    world.attempts.clear()
    result = world.cycle()
    assert [evict.pods for evict in result.decisions.evicts] == [("train-0",)]
    assert not result.creates


def test_ended_gang_is_released(world: World) -> None:
    world.add("train", "a", [8])
    world.settle()
    world.remove(lambda pod: True)
    world.settle()
    assert not world.attempts


def test_nothing_happens_to_gangs_of_an_unknown_tenant(world: World) -> None:
    world.add("train", "a", [8])
    world.settle()
    world.known.clear()
    world.gangs["train"] = replace(world.gang("train"), pods=())
    assert not world.plan().releases
    world.add("other", "a", [8])
    assert not world.plan().creates


def test_leftovers_of_a_removed_tenant_are_released(world: World) -> None:
    world.add("train", "a", [8])
    world.settle()
    world.gangs.clear()
    world.known.discard("a")
    given = replace(world.given(), removed_tenants=frozenset({"a"}))
    assert len(plan_attempts(MODE, given).releases) == 1


def test_changed_gang_asks_again(world: World) -> None:
    world.add("wide", "a", [8] * 5)
    world.settle()
    old = world.attempt_of("wide")
    gang = world.gang("wide")
    world.gangs["wide"] = replace(gang, pods=gang.pods[:3], minimum=3)
    world.settle()
    new = world.attempt_of("wide")
    assert old is not None
    assert new is not None
    assert old.uid != new.uid
    assert world.states("wide") == ["placed"] * 3


def test_surplus_starts_pod_by_pod_up_to_the_maximum(world: World) -> None:
    world.add("elastic", "b", [8] * 4, minimum=2, elastic=True, maximum=3)
    world.settle()
    assert world.states("elastic") == ["placed", "placed", "placed", "waiting"]
    assert len(world.attempts) == 2
    (report,) = world.plan().decisions.holds
    assert report.code is PendingReason.MAXIMUM


def test_evicted_surplus_leaves_the_gang_running(world: World) -> None:
    world.add("elastic", "b", [8] * 3, minimum=2, elastic=True)
    world.settle()
    attempt = world.attempt_of("elastic", surplus="elastic-2")
    assert attempt is not None
    world.change(attempt.name, state=AttemptState.EVICTED, slots={})
    result = world.cycle()
    assert [(evict.whole, evict.pods) for evict in result.decisions.evicts] == [(False, ("elastic-2",))]


def test_surplus_is_evicted_with_its_gang(world: World) -> None:
    world.add("elastic", "b", [8] * 3, minimum=2, elastic=True)
    world.settle()
    world.evict("elastic")
    result = world.cycle()
    assert sorted(uid for evict in result.decisions.evicts for uid in evict.pods) == [
        "elastic-0",
        "elastic-1",
        "elastic-2",
    ]


def test_surplus_outlives_the_min_members(world: World) -> None:
    world.add("elastic", "b", [8] * 3, minimum=2, elastic=True)
    world.settle()
    world.remove(lambda pod: pod.uid in ("elastic-0", "elastic-1"))
    world.settle()
    assert world.states("elastic") == ["placed"]
    assert world.attempt_of("elastic") is None


def test_gang_within_the_guarantee_does_not_borrow(world: World) -> None:
    world.quotas = (make_quota("a", 16),)
    world.add("first", "a", [8, 8])
    world.settle()
    world.add("second", "a", [8])
    world.settle()
    assert [pod.borrowed for pod in world.gang("first").pods] == [False, False]
    assert [pod.borrowed for pod in world.gang("second").pods] == [True]


def test_low_gang_borrows(world: World) -> None:
    world.add("low", "a", [8], band=Band.LOW)
    world.settle()
    assert world.gang("low").pods[0].borrowed


def test_released_gang_waits_until_its_object_is_deleted(world: World) -> None:
    world.add("train", "a", [8])
    world.settle()
    attempt = world.attempt_of("train")
    assert attempt is not None
    world.remove(lambda pod: True)
    world.change(attempt.name, state=AttemptState.DELETING)
    world.sizes["train"] = 8
    world.recreate("train")
    result = world.cycle()
    assert not result.creates
    assert not result.releases
    assert world.states("train") == ["waiting"]


def test_pods_that_terminate_occupy_their_slots(world: World) -> None:
    world.sizes["train"] = 8
    world.add("train", "a", [8])
    world.settle()
    gang = world.gang("train")
    ending = replace(gang.pods[0], state=PodState.ENDING)
    world.gangs["train"] = replace(gang, pods=(ending,))
    world.gangs["train"] = replace(
        gang, pods=(ending, replace(gang.pods[0], uid="new", state=PodState.WAITING, node="", pool=None))
    )
    world.settle()
    assert world.states("train") == ["ending", "waiting"]
    world.remove(lambda pod: pod.state is PodState.ENDING)
    world.settle()
    assert world.states("train") == ["placed"]
    assert world.gang("train").pools == (KEY,)


def test_gang_borrows_in_queues_of_an_administrator(world: World) -> None:
    world.add("train", "a", [8])
    world.settle()
    assert [pod.borrowed for pod in world.gang("train").pods] == [False]
    given = world.given()
    waiting = replace(world.gang("train").pods[0], state=PodState.WAITING, pool=None, node="")
    snapshot = replace(given.snapshot, gangs=(replace(world.gang("train"), pods=(waiting,)),))
    own = msgspec.structs.replace(SPEC, scheduling=PoolScheduling(mode="kueue", manage_queues=False))
    for spec, borrowed in ((SPEC, False), (own, True)):
        found = plan_attempts(NoDigest(), replace(given, snapshot=snapshot, specs={KEY: spec}))
        assert [admit.borrowed for admit in found.decisions.admits] == [borrowed]


class NoDigest(KueueMode):
    """Mode in which an attempt never has to be replaced."""

    def digest(self, request: Request) -> str:
        return KueueMode().digest(replace(request, spec=SPEC))


def test_limit_is_told_from_a_lack_of_room() -> None:
    world = World(quotas=(make_quota("a", 0, limit=8),))
    world.add("runs", "a", [8])
    world.settle()
    gang = world.add("waits", "a", [8])
    world.cycle()
    report = reports_by_gang(world.plan().decisions)[gang.id]
    assert (report.code, "nvidia.com/gpu 8" in report.message) == (PendingReason.QUOTA, True)


def test_used_up_budget_is_told_from_other_reasons() -> None:
    world = World(quotas=(replace(make_quota("a", 8), stopped=(GPU,)),))
    world.add("runs", "a", [8])
    world.settle()
    gang = world.add("waits", "a", [8])
    world.cycle()
    report = reports_by_gang(world.plan().decisions)[gang.id]
    assert (report.code, "only the guarantee is available" in report.message) == (PendingReason.BUDGET, True)


def test_slot_of_a_pod_that_ended_for_good_is_returned(world: World) -> None:
    gang = world.add("train", "a", [8, 8, 4])
    world.settle()
    assert not world.cycle().returns
    world.shrunk.add(gang.id)
    world.complete(gang.pods[0].uid)
    (returned,) = world.cycle().returns
    assert sorted(returned.slots.values()) == [0, 1]
    world.complete(gang.pods[2].uid)
    (returned,) = world.cycle().returns
    assert sorted(returned.slots.values()) == [1, 1]
    assert not world.cycle().returns
    assert world.states("train") == ["placed"]


def test_slot_of_a_pod_that_is_replaced_is_not_returned(world: World) -> None:
    world.add("train", "a", [8, 8])
    world.settle()
    gone = world.gang("train").pods[0].uid
    world.remove(lambda pod: pod.uid == gone)
    assert not world.cycle().returns
    world.recreate("train")
    world.settle()
    assert world.states("train") == ["placed", "placed"]


def test_late_replacement_asks_for_a_slot_of_its_own(world: World) -> None:
    world.add("train", "a", [8, 8], minimum=1)
    world.settle()
    gone = world.gang("train").pods[0].uid
    world.remove(lambda pod: pod.uid == gone)
    world.cycle()
    world.gangs["train"] = replace(world.gang("train"), minimum=2)
    world.recreate("train")
    world.gangs["train"] = replace(world.gang("train"), minimum=1)
    result = world.cycle()
    assert len(result.creates) == 1
    assert sorted(world.states("train")) == ["placed", "waiting"]
    world.settle()
    assert world.states("train") == ["placed", "placed"]


def test_attempt_with_returned_slots_starts_no_gang_again(world: World) -> None:
    world.add("train", "a", [8, 8], minimum=1)
    world.settle()
    first, second = world.gang("train").pods
    world.complete(first.uid)
    world.cycle()
    world.remove(lambda pod: pod.uid == second.uid)
    world.gangs["train"] = replace(world.gang("train"), minimum=2)
    world.sizes["train"] = 8
    world.recreate("train")
    old = world.attempt_of("train")
    assert old is not None
    assert [each.uid for each in world.cycle().releases] == [old.uid]
    world.settle()
    assert world.states("train") == ["placed", "placed"]

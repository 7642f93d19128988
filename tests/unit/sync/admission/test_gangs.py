"""Gangs built from members: counts, bands, pending reasons, plans, and reuse of unchanged gangs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from tests.unit.sync.admission.gang_harness import (
    ADMITTED,
    DONE,
    ENDING,
    GANG,
    GONE,
    GROUP,
    PLACED,
    SUCCEEDED,
    WAITING,
    Harness,
    make_workers,
)
from tests.unit.sync.admission.samples import GPU, OTHER_POOL, POOL, TENANT, gang_marks, make_member
from vkgateway.api.objects import Object
from vkgateway.scheduler.core.snapshot import Band, PodState, Shape
from vkgateway.scheduler.gangs.marks import SiblingJobs
from vkgateway.scheduler.service import gangs as module
from vkgateway.scheduler.service.gang_builder import EvictionTerms
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import GangMember, MemberState


class FakeForecast:
    """The same forecast for every pod."""

    def expected_run(self, _member: GangMember) -> float | None:
        return 40.0


# -- fields of a gang --------------------------------------------------------------------------------------------------


def test_single_pod_is_a_gang_of_one() -> None:
    harness = Harness(make_member("u1", priority=5, created=77.0, grace=12.0, band=Band.GUARANTEED))
    gang = harness.only_gang()

    assert gang.id == f"{TENANT}/default/pod/u1"
    assert gang.tenant == TENANT
    assert [(pod.uid, pod.state, pod.shape) for pod in gang.pods] == [
        ("u1", PodState.WAITING, Shape.from_requests({GPU: 1000}))
    ]
    assert (gang.minimum, gang.priority, gang.created, gang.band) == (1, 5, 77.0, Band.GUARANTEED)
    assert gang.pools == (POOL,)
    assert (gang.notice, gang.grace) == (20.0, 12.0)


def test_members_of_one_group_form_a_gang_with_merged_marks() -> None:
    marks = gang_marks(
        minimum=2,
        elastic=True,
        maximum=5,
        required_level="rack",
        preferred_level="zone",
        run_limit=600.0,
        checkpoint=9.0,
        restart_cost=3.0,
    )
    harness = Harness(
        make_member("u1", marks=replace(marks, rank=1, role="worker"), created=30.0, priority=-1, grace=10.0),
        make_member("u0", marks=replace(marks, rank=0, role="launcher"), created=20.0, priority=4, grace=100.0),
    )
    gang = harness.only_gang()

    assert gang.id == GANG
    assert [(pod.uid, pod.rank, pod.role) for pod in gang.pods] == [("u0", 0, "launcher"), ("u1", 1, "worker")]
    assert (gang.minimum, gang.elastic, gang.maximum) == (2, True, 5)
    assert (gang.required_level, gang.preferred_level) == ("rack", "zone")
    assert (gang.run_limit, gang.checkpoint, gang.restart_cost) == (600.0, 9.0, 3.0)
    assert (gang.priority, gang.created) == (4, 20.0)
    assert gang.grace == 60.0, "capped by policy"


def test_members_report_their_state() -> None:
    harness = Harness(*make_workers(3))
    harness.seen = {"u0": PLACED, "u1": ENDING, "u2": WAITING}
    gang = harness.only_gang()

    assert [pod.state for pod in gang.pods] == [PodState.PLACED, PodState.ENDING, PodState.WAITING]
    first = gang.pods[0]
    assert (first.pool, first.node, first.borrowed, first.since, first.behind) == (
        POOL,
        "host-1",
        True,
        50.0,
        "alpha/x",
    )
    assert gang.pods[1].deadline == 70.0


def test_fields_of_a_notice_are_passed_on() -> None:
    harness = Harness(make_member())
    harness.seen["u1"] = MemberState(
        state=PodState.NOTIFIED, verdict=replace(ADMITTED, deadline=70.0, evicted_for="beta/x")
    )

    assert (harness.only_gang().pods[0].deadline, harness.only_gang().pods[0].evicted_for) == (70.0, "beta/x")


@pytest.mark.parametrize("done", [SUCCEEDED, None], ids=["succeeded", "ungoverned"])
def test_minimum_is_reduced_by_completed_members(done: MemberState | None) -> None:
    harness = Harness(
        *make_workers(2, minimum=3), make_member("cpu", marks=gang_marks(minimum=3, rank=2), governed=done is not None)
    )
    if done is not None:
        harness.seen["cpu"] = done
    gang = harness.only_gang()

    assert [pod.uid for pod in gang.pods] == ["u0", "u1"]
    assert gang.minimum == 2


def role_marks(*named: str) -> list[GangMember]:
    minimum = {role: named.count(role) for role in named}
    marks = [
        gang_marks(minimum=len(named), rank=rank, role=role, role_minimum=minimum) for rank, role in enumerate(named)
    ]
    return [make_member(f"u{rank}", marks=each) for rank, each in enumerate(marks)]


def test_deleted_successful_member_is_not_expected() -> None:
    harness = Harness(*role_marks("ps", "ps", "worker", "worker"))
    harness.gangs.drop_member("u0", state=SUCCEEDED)
    harness.gangs.drop_member("u2", state=SUCCEEDED)
    gang = harness.only_gang()

    assert ([pod.uid for pod in gang.pods], gang.minimum) == (["u1", "u3"], 2)
    assert dict(gang.role_minimum) == {"ps": 1, "worker": 1}


def test_member_deleted_before_its_end_is_expected() -> None:
    harness = Harness(*make_workers(3))
    harness.gangs.drop_member("u0")

    assert harness.only_gang().minimum == 3


def test_recreated_member_is_needed_again() -> None:
    harness = Harness(*make_workers(3))
    harness.gangs.drop_member("u0", state=SUCCEEDED)
    harness.gangs.put_member(make_member("again", key=("default", "pod-u0"), marks=gang_marks(minimum=3)))

    assert harness.only_gang().minimum == 3


def test_deleted_gang_leaves_no_record() -> None:
    harness = Harness(*make_workers(3))
    for uid in ("u0", "u1", "u2"):
        harness.gangs.drop_member(uid, state=SUCCEEDED)
    harness.gangs.put_member(make_workers(3)[1])

    assert harness.only_gang().minimum == 3


def test_number_of_remembered_completions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_DONE", 2)
    harness = Harness(*make_workers(6))
    for rank in range(5):
        harness.gangs.drop_member(f"u{rank}", state=SUCCEEDED)

    assert harness.only_gang().minimum == 4


def test_member_completed_before_a_restart_is_not_expected() -> None:
    harness = Harness(*make_workers(3, created=100.0)[1:])
    harness.memory.known = {GROUP: {"pod-u0": DONE, "pod-u1": DONE}}

    assert harness.only_gang().minimum == 2, "pod-u1 was made once more"
    harness.gangs.mark_all_changed()
    assert harness.only_gang().minimum == 2
    assert harness.memory.asked == [GROUP], "once is enough"


def test_completions_are_recorded_only_for_incomplete_gangs() -> None:
    marks = [gang_marks(minimum=3, role="ps" if rank else "worker") for rank in range(3)]
    harness = Harness(*[make_member(f"u{rank}", marks=each) for rank, each in enumerate(marks)])
    assert harness.gangs.completions_in("default") == {}

    harness.seen["u1"] = SUCCEEDED
    harness.gangs.drop_member("u0", state=SUCCEEDED)
    done = {"pod-u0": DONE._replace(role="worker"), "pod-u1": DONE._replace(role="ps")}
    assert harness.gangs.completions_in("default") == {GROUP: done}
    assert harness.gangs.completions_in("other") == {}
    harness.seen["u2"] = SUCCEEDED
    assert harness.gangs.completions_in("default") == {}, "no gang waits for them"


def test_records_are_notified_of_completions_and_recreations() -> None:
    harness = Harness(*make_workers(3))
    harness.gangs.drop_member("u1")
    assert harness.memory.news == []
    harness.gangs.member_succeeded("u0")
    assert harness.memory.news == ["default"]
    harness.gangs.drop_member("u0", state=SUCCEEDED)
    harness.gangs.put_member(make_workers(3)[1])
    harness.gangs.drop_member("u1")
    harness.gangs.drop_member("u2")
    assert harness.memory.news == ["default"] * 5


@pytest.mark.parametrize("marks", [{"minimum": 1}, {"minimum": 2, "excludes_succeeded": True}])
def test_completions_are_not_recorded_if_they_do_not_count(marks: dict[str, Any]) -> None:
    harness = Harness(*[make_member(f"u{rank}", marks=gang_marks(**marks)) for rank in range(3)])
    harness.gangs.member_succeeded("u0")
    harness.seen["u0"] = SUCCEEDED

    assert harness.memory.news == []
    assert harness.gangs.completions_in("default") == {}


@pytest.mark.parametrize("deleted", [False, True])
def test_minimum_that_excludes_completions_is_not_reduced_again(deleted: bool) -> None:
    harness = Harness(
        *[make_member(f"u{rank}", marks=gang_marks(minimum=2, excludes_succeeded=True)) for rank in range(4)]
    )
    harness.seen = {"u0": SUCCEEDED, "u1": SUCCEEDED}
    if deleted:
        harness.gangs.drop_member("u0", state=SUCCEEDED)

    assert harness.only_gang().minimum == 2


def test_deleted_ungoverned_members_do_not_count() -> None:
    harness = Harness(*make_workers(2, minimum=3), make_member("cpu", marks=gang_marks(minimum=3), governed=False))
    harness.seen["cpu"] = GONE

    assert harness.only_gang().minimum == 3


def test_failed_governed_member_does_not_count() -> None:
    harness = Harness(*make_workers(3))
    harness.seen["u2"] = GONE

    assert harness.only_gang().minimum == 3
    assert len(harness.only_gang().pods) == 2


def test_minimum_is_at_least_one() -> None:
    harness = Harness(*make_workers(3, minimum=2))
    harness.seen = {"u0": SUCCEEDED, "u1": SUCCEEDED}

    assert harness.only_gang().minimum == 1


def test_minimum_of_each_role_is_reduced_by_its_completions() -> None:
    roles = {"launcher": 1, "worker": 3}
    harness = Harness(
        make_member("l", marks=gang_marks(minimum=4, role="launcher", role_minimum=roles), governed=False),
        make_member("w0", marks=gang_marks(minimum=4, role="worker", role_minimum=roles)),
        make_member("w1", marks=gang_marks(minimum=4, role="worker", role_minimum=roles)),
    )
    harness.seen["w0"] = SUCCEEDED
    gang = harness.only_gang()

    assert gang.role_minimum == {"worker": 2}
    assert gang.minimum == 2


def test_ungoverned_members_count_towards_the_maximum() -> None:
    marks = gang_marks(minimum=2, maximum=5, elastic=True)
    harness = Harness(
        make_member("u0", marks=marks), make_member("u1", marks=marks), make_member("cpu", marks=marks, governed=False)
    )

    assert harness.only_gang().maximum == 4


def test_gang_is_low_if_any_member_is_low() -> None:
    harness = Harness(
        make_member("u0", marks=gang_marks(minimum=2)), make_member("u1", marks=gang_marks(minimum=2), band=Band.LOW)
    )
    assert harness.only_gang().band is Band.LOW

    harness = Harness(*make_workers(2), make_member("cpu", marks=gang_marks(minimum=2), governed=False, band=Band.LOW))
    assert harness.only_gang().band is Band.GUARANTEED, "what asks for nothing governed says nothing of the band"


def test_gang_may_run_in_common_pools_in_order_of_its_first_member() -> None:
    third = ("far", "a100")
    harness = Harness(
        make_member("u0", marks=gang_marks(minimum=2), pools=(third, OTHER_POOL, POOL)),
        make_member("u1", marks=gang_marks(minimum=2), pools=(POOL, third)),
        make_member("cpu", marks=gang_marks(minimum=2), pools=(), governed=False),
    )
    assert harness.only_gang().pools == (third, POOL)


def test_members_with_different_pools_keep_their_own() -> None:
    harness = Harness(
        make_member("u0", marks=gang_marks(minimum=2), pools=(POOL,)),
        make_member("u1", marks=gang_marks(minimum=2), pools=(OTHER_POOL,)),
    )
    harness.bounds = lambda pool: {POOL: EvictionTerms(5.0, 60.0), OTHER_POOL: EvictionTerms(7.0, 50.0)}[pool or POOL]

    gang = harness.only_gang()

    assert gang.pools == (POOL, OTHER_POOL)
    assert {pod.uid: pod.pools for pod in gang.pods} == {"u0": (POOL,), "u1": (OTHER_POOL,)}
    assert gang.notice == 7.0


def test_members_with_a_common_pool_have_no_own_pools() -> None:
    harness = Harness(
        make_member("u0", marks=gang_marks(minimum=2), pools=(POOL, OTHER_POOL)),
        make_member("u1", marks=gang_marks(minimum=2), pools=(OTHER_POOL,)),
    )

    gang = harness.only_gang()

    assert gang.pools == (OTHER_POOL,)
    assert {pod.pools for pod in gang.pods} == {()}


def test_eviction_terms_are_those_of_the_current_pool() -> None:
    harness = Harness(make_member(pools=(OTHER_POOL, POOL), grace=90.0))
    bounds = {POOL: EvictionTerms(5.0, 6.0), OTHER_POOL: EvictionTerms(7.0, 8.0), None: EvictionTerms(1.0, 2.0)}
    harness.bounds = bounds.__getitem__
    assert (harness.only_gang().notice, harness.only_gang().grace) == (7.0, 8.0)

    harness.seen["u1"] = PLACED
    harness.gangs.mark_changed("u1")
    assert (harness.only_gang().notice, harness.only_gang().grace) == (5.0, 6.0)

    harness = Harness(make_member(pools=()))
    harness.bounds = bounds.__getitem__
    assert harness.only_gang().notice == 1.0


def test_gang_gets_the_shortest_notice_of_its_pools() -> None:
    brief = EvictionTerms(20.0, 60.0, brief_run=600.0, brief_notice=5.0)
    harness = Harness(make_member(pools=(POOL,)))
    harness.bounds = lambda _pool: brief
    assert (harness.only_gang().brief_run, harness.only_gang().brief_notice) == (600.0, 5.0)

    for other, expected in (
        (EvictionTerms(20.0, 60.0, brief_run=300.0, brief_notice=10.0), (300.0, 10.0)),
        (EvictionTerms(20.0, 60.0), (0.0, 5.0)),
    ):
        members = (
            make_member(f"u{n}", marks=gang_marks(minimum=2), pools=(pool,))
            for n, pool in enumerate((POOL, OTHER_POOL))
        )
        harness = Harness(*members)
        harness.bounds = {POOL: brief, OTHER_POOL: other}.__getitem__  # type: ignore[assignment]
        assert (harness.only_gang().brief_run, harness.only_gang().brief_notice) == expected


def test_restart_cost_is_capped() -> None:
    harness = Harness(*(make_member(f"u{n}", marks=gang_marks(minimum=2, rank=n, restart_cost=1e9)) for n in range(2)))
    harness.bounds = lambda _pool: EvictionTerms(5.0, 6.0, 60.0, 100.0)
    gang = harness.only_gang()
    assert gang.restart_cost == 200.0, "of two pods with a GPU each"
    assert gang.minimum_run == 60.0


def test_typical_duration_is_used_without_a_declared_limit() -> None:
    harness = Harness()
    gangs = TenantGangs(
        TENANT,
        state_of=harness.member_state,
        terms=cast(Any, harness),
        expected_run=FakeForecast().expected_run,
        completion_records=harness.memory,
        look=lambda _: None,
        namespaces=dict,
    )
    gangs.put_member(make_member("u1"))
    gangs.put_member(make_member("u2", marks=gang_marks(minimum=1, run_limit=9.0)))
    found = {gang.run_limit: gang.expected_run for gang in gangs.build_gangs()[0]}
    assert found == {None: 40.0, 9.0: None}


def test_job_that_is_complete_is_not_waited_for_although_its_pods_are_gone() -> None:
    """Its pods were cleaned up before the gateway started, or while the gang had no pod at all."""

    def job(succeeded: int, *, attempt: str = "0") -> Object:
        template = {"metadata": {"labels": {"jobset.sigs.k8s.io/restart-attempt": attempt}}}
        spec = {"parallelism": 1, "completions": 1, "template": template}
        return {"metadata": {"uid": "stage-job"}, "spec": spec, "status": {"succeeded": succeeded}}

    marks = gang_marks(
        minimum=3,
        size=3,
        role="train",
        role_minimum={"stage": 1, "train": 2},
        sibling_jobs=(SiblingJobs("stage", "run-stage", 1, 0), SiblingJobs("train", "run-train", 1, 0)),
    )
    members = [make_member(f"u{rank}", marks=replace(marks, rank=rank)) for rank in range(2)]
    minimums = []
    for found in ({}, {"run-stage-0": job(0)}, {"run-stage-0": job(1, attempt="1")}, {"run-stage-0": job(1)}):
        harness = Harness(*members)
        harness.found = found
        gang = harness.only_gang()
        minimums.append((gang.minimum, dict(gang.role_minimum)))
    waits = (3, {"stage": 1, "train": 2})
    assert minimums == [waits, waits, waits, (2, {"train": 2})]

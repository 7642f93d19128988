"""Gangs out of members: counts, bands, holds, plans, and nothing made anew where nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.admission.samples import GPU, OTHER_POOL, POOL, TENANT, marks, member, reference
from vkgateway.arbiter.decisions import PendingReason, PendingReport
from vkgateway.arbiter.snapshot import Band, Gang, PodState, PoolKey, PreemptionPlan, Shape
from vkgateway.sync.admission import gangs as module
from vkgateway.sync.admission.completions import Completion
from vkgateway.sync.admission.gangs import EvictionTerms, TenantGangs
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.admission.member_state import MemberState

GROUP = "default/gang/train"
GANG = f"{TENANT}/{GROUP}"
WAITING = MemberState(state=PodState.WAITING)
PLACED = MemberState(state=PodState.PLACED, pool=POOL, node="host-1", borrowed=True, since=50.0, behind="alpha/x")
ENDING = replace(PLACED, state=PodState.ENDING, deadline=70.0)
SUCCEEDED, GONE = MemberState(has_succeeded=True, ended_at=200.0), MemberState()
DONE = Completion("", "", 200.0)


class Memory:
    """Remembers what the test tells it."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Completion]] = {}
        self.asked: list[str] = []
        self.news: list[str] = []

    def load_completions(self, group: str) -> dict[str, Completion]:
        self.asked.append(group)
        return self.known.get(group, {})

    def mark_changed(self, namespace: str) -> None:
        self.news.append(namespace)


class Made:
    """One tenant's gangs; `seen` says where members stand, by uid: they wait unless it says otherwise."""

    def __init__(self, *members: GangMember) -> None:
        self.seen: dict[str, MemberState] = {}
        self.looked: list[str] = []
        self.bounds: Callable[[PoolKey | None], EvictionTerms] = lambda _pool: EvictionTerms(20.0, 60.0)
        self.memory = Memory()
        self.gangs = TenantGangs(TENANT, look=self._look, bounds=self._bounds, memory=self.memory)
        for one in members:
            self.gangs.put_member(one)

    def _bounds(self, pool: PoolKey | None) -> EvictionTerms:
        return self.bounds(pool)

    def _look(self, one: GangMember) -> MemberState:
        self.looked.append(one.uid)
        return self.seen.get(one.uid, WAITING)

    def one(self) -> Gang:
        gangs, holds = self.gangs.build_gangs()
        assert holds == []
        assert len(gangs) == 1
        return gangs[0]

    def held(self) -> PendingReport:
        gangs, holds = self.gangs.build_gangs()
        assert gangs == []
        assert len(holds) == 1
        return holds[0]


def workers(number: int, *, minimum: int | None = None, **other: object) -> list[GangMember]:
    said = [marks(minimum=number if minimum is None else minimum, rank=rank) for rank in range(number)]
    return [member(f"u{rank}", marks=said[rank], **other) for rank in range(number)]


# -- what a gang says --------------------------------------------------------------------------------------------------


def test_a_pod_alone_is_a_gang_of_one() -> None:
    made = Made(member("u1", priority=5, created=77.0, grace=12.0, band=Band.GUARANTEED))
    gang = made.one()

    assert gang.id == f"{TENANT}/default/pod/u1"
    assert gang.tenant == TENANT
    assert [(pod.uid, pod.state, pod.shape) for pod in gang.pods] == [
        ("u1", PodState.WAITING, Shape.from_requests({GPU: 1000}))
    ]
    assert (gang.minimum, gang.priority, gang.created, gang.band) == (1, 5, 77.0, Band.GUARANTEED)
    assert gang.pools == (POOL,)
    assert (gang.notice, gang.grace) == (20.0, 12.0)


def test_members_of_one_group_are_one_gang_with_what_all_said() -> None:
    said = marks(
        minimum=2,
        elastic=True,
        maximum=5,
        required_level="rack",
        preferred_level="zone",
        run_limit=600.0,
        checkpoint=9.0,
        restart_cost=3.0,
    )
    made = Made(
        member("u1", marks=replace(said, rank=1, role="worker"), created=30.0, priority=-1, grace=10.0),
        member("u0", marks=replace(said, rank=0, role="launcher"), created=20.0, priority=4, grace=100.0),
    )
    gang = made.one()

    assert gang.id == GANG
    assert [(pod.uid, pod.rank, pod.role) for pod in gang.pods] == [("u0", 0, "launcher"), ("u1", 1, "worker")]
    assert (gang.minimum, gang.elastic, gang.maximum) == (2, True, 5)
    assert (gang.required_level, gang.preferred_level) == ("rack", "zone")
    assert (gang.run_limit, gang.checkpoint, gang.restart_cost) == (600.0, 9.0, 3.0)
    assert (gang.priority, gang.created) == (4, 20.0)
    assert gang.grace == 60.0, "capped by policy"


def test_members_tell_where_they_stand() -> None:
    made = Made(*workers(3))
    made.seen = {"u0": PLACED, "u1": ENDING, "u2": WAITING}
    gang = made.one()

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


def test_what_a_notice_says_is_told_on() -> None:
    made = Made(member())
    made.seen["u1"] = replace(PLACED, state=PodState.NOTIFIED, deadline=70.0, evicted_for="beta/x")

    assert (made.one().pods[0].deadline, made.one().pods[0].evicted_for) == (70.0, "beta/x")


@pytest.mark.parametrize("done", [SUCCEEDED, None], ids=["succeeded", "ungoverned"])
def test_the_minimum_is_less_by_those_who_need_nothing_more(done: MemberState | None) -> None:
    made = Made(*workers(2, minimum=3), member("cpu", marks=marks(minimum=3, rank=2), governed=done is not None))
    if done is not None:
        made.seen["cpu"] = done
    gang = made.one()

    assert [pod.uid for pod in gang.pods] == ["u0", "u1"]
    assert gang.minimum == 2


def roles(*named: str) -> list[GangMember]:
    minimum = {role: named.count(role) for role in named}
    said = [marks(minimum=len(named), rank=rank, role=role, role_minimum=minimum) for rank, role in enumerate(named)]
    return [member(f"u{rank}", marks=each) for rank, each in enumerate(said)]


def test_who_ended_well_and_was_deleted_is_not_waited_for() -> None:
    made = Made(*roles("ps", "ps", "worker", "worker"))
    made.gangs.drop_member("u0", seen=SUCCEEDED)
    made.gangs.drop_member("u2", seen=SUCCEEDED)
    gang = made.one()

    assert ([pod.uid for pod in gang.pods], gang.minimum) == (["u1", "u3"], 2)
    assert dict(gang.role_minimum) == {"ps": 1, "worker": 1}


def test_who_was_deleted_before_the_end_is_waited_for() -> None:
    made = Made(*workers(3))
    made.gangs.drop_member("u0")

    assert made.one().minimum == 3


def test_one_that_is_made_once_more_under_its_name_is_needed_again() -> None:
    made = Made(*workers(3))
    made.gangs.drop_member("u0", seen=SUCCEEDED)
    made.gangs.put_member(member("again", key=("default", "pod-u0"), marks=marks(minimum=3)))

    assert made.one().minimum == 3


def test_nothing_is_remembered_of_a_gang_that_is_gone() -> None:
    made = Made(*workers(3))
    for uid in ("u0", "u1", "u2"):
        made.gangs.drop_member(uid, seen=SUCCEEDED)
    made.gangs.put_member(workers(3)[1])

    assert made.one().minimum == 3


def test_of_those_that_ended_well_not_all_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_DONE", 2)
    made = Made(*workers(6))
    for rank in range(5):
        made.gangs.drop_member(f"u{rank}", seen=SUCCEEDED)

    assert made.one().minimum == 4


def test_who_was_done_before_a_restart_is_not_waited_for() -> None:
    made = Made(*workers(3, created=100.0)[1:])
    made.memory.known = {GROUP: {"pod-u0": DONE, "pod-u1": DONE}}

    assert made.one().minimum == 2, "pod-u1 was made once more"
    made.gangs.mark_all_changed()
    assert made.one().minimum == 2
    assert made.memory.asked == [GROUP], "once is enough"


def test_what_a_restart_must_know_is_who_is_done_where_others_are_not() -> None:
    said = [marks(minimum=3, role="ps" if rank else "worker") for rank in range(3)]
    made = Made(*[member(f"u{rank}", marks=each) for rank, each in enumerate(said)])
    assert made.gangs.completions_in("default") == {}

    made.seen["u1"] = SUCCEEDED
    made.gangs.drop_member("u0", seen=SUCCEEDED)
    done = {"pod-u0": DONE._replace(role="worker"), "pod-u1": DONE._replace(role="ps")}
    assert made.gangs.completions_in("default") == {GROUP: done}
    assert made.gangs.completions_in("other") == {}
    made.seen["u2"] = SUCCEEDED
    assert made.gangs.completions_in("default") == {}, "nobody waits for them"


def test_the_memory_hears_when_somebody_is_done_or_made_once_more() -> None:
    made = Made(*workers(3))
    made.gangs.drop_member("u1")
    assert made.memory.news == []
    made.gangs.member_succeeded("u0")
    assert made.memory.news == ["default"]
    made.gangs.drop_member("u0", seen=SUCCEEDED)
    made.gangs.put_member(workers(3)[1])
    made.gangs.drop_member("u1")
    made.gangs.drop_member("u2")
    assert made.memory.news == ["default"] * 5


@pytest.mark.parametrize("said", [{"minimum": 1}, {"minimum": 2, "excludes_succeeded": True}])
def test_where_it_does_not_count_who_is_done_nothing_is_remembered(said: dict[str, Any]) -> None:
    made = Made(*[member(f"u{rank}", marks=marks(**said)) for rank in range(3)])
    made.gangs.member_succeeded("u0")
    made.seen["u0"] = SUCCEEDED

    assert made.memory.news == []
    assert made.gangs.completions_in("default") == {}


@pytest.mark.parametrize("deleted", [False, True])
def test_a_minimum_that_leaves_out_who_ended_well_is_not_lowered_once_more(deleted: bool) -> None:
    made = Made(*[member(f"u{rank}", marks=marks(minimum=2, excludes_succeeded=True)) for rank in range(4)])
    made.seen = {"u0": SUCCEEDED, "u1": SUCCEEDED}
    if deleted:
        made.gangs.drop_member("u0", seen=SUCCEEDED)

    assert made.one().minimum == 2


def test_ungoverned_members_that_are_gone_do_not_count() -> None:
    made = Made(*workers(2, minimum=3), member("cpu", marks=marks(minimum=3), governed=False))
    made.seen["cpu"] = GONE

    assert made.one().minimum == 3


def test_a_governed_member_that_failed_counts_for_nothing() -> None:
    made = Made(*workers(3))
    made.seen["u2"] = GONE

    assert made.one().minimum == 3
    assert len(made.one().pods) == 2


def test_the_minimum_is_never_below_one() -> None:
    made = Made(*workers(3, minimum=2))
    made.seen = {"u0": SUCCEEDED, "u1": SUCCEEDED}

    assert made.one().minimum == 1


def test_the_minimum_of_each_role_is_less_by_those_of_the_role() -> None:
    roles = {"launcher": 1, "worker": 3}
    made = Made(
        member("l", marks=marks(minimum=4, role="launcher", role_minimum=roles), governed=False),
        member("w0", marks=marks(minimum=4, role="worker", role_minimum=roles)),
        member("w1", marks=marks(minimum=4, role="worker", role_minimum=roles)),
    )
    made.seen["w0"] = SUCCEEDED
    gang = made.one()

    assert gang.role_minimum == {"worker": 2}
    assert gang.minimum == 2


def test_what_needs_nothing_of_the_arbiter_counts_towards_the_maximum() -> None:
    said = marks(minimum=2, maximum=5, elastic=True)
    made = Made(member("u0", marks=said), member("u1", marks=said), member("cpu", marks=said, governed=False))

    assert made.one().maximum == 4


def test_a_gang_is_low_if_any_of_it_is() -> None:
    made = Made(member("u0", marks=marks(minimum=2)), member("u1", marks=marks(minimum=2), band=Band.LOW))
    assert made.one().band is Band.LOW

    made = Made(*workers(2), member("cpu", marks=marks(minimum=2), governed=False, band=Band.LOW))
    assert made.one().band is Band.GUARANTEED, "what asks for nothing governed says nothing of the band"


def test_a_gang_runs_where_all_its_governed_members_may_in_the_first_ones_order() -> None:
    third = ("far", "a100")
    made = Made(
        member("u0", marks=marks(minimum=2), pools=(third, OTHER_POOL, POOL)),
        member("u1", marks=marks(minimum=2), pools=(POOL, third)),
        member("cpu", marks=marks(minimum=2), pools=(), governed=False),
    )
    assert made.one().pools == (third, POOL)


def test_members_that_select_different_pools_keep_to_their_own() -> None:
    made = Made(
        member("u0", marks=marks(minimum=2), pools=(POOL,)),
        member("u1", marks=marks(minimum=2), pools=(OTHER_POOL,)),
    )
    made.bounds = lambda pool: {POOL: EvictionTerms(5.0, 60.0), OTHER_POOL: EvictionTerms(7.0, 50.0)}[pool or POOL]

    gang = made.one()

    assert gang.pools == (POOL, OTHER_POOL)
    assert {pod.uid: pod.pools for pod in gang.pods} == {"u0": (POOL,), "u1": (OTHER_POOL,)}
    assert gang.notice == 7.0


def test_members_that_have_a_pool_in_common_say_nothing_of_their_own() -> None:
    made = Made(
        member("u0", marks=marks(minimum=2), pools=(POOL, OTHER_POOL)),
        member("u1", marks=marks(minimum=2), pools=(OTHER_POOL,)),
    )

    gang = made.one()

    assert gang.pools == (OTHER_POOL,)
    assert {pod.pools for pod in gang.pods} == {()}


def test_those_who_are_evicted_are_treated_as_the_pool_says_in_which_they_run() -> None:
    made = Made(member(pools=(OTHER_POOL, POOL), grace=90.0))
    bounds = {POOL: EvictionTerms(5.0, 6.0), OTHER_POOL: EvictionTerms(7.0, 8.0), None: EvictionTerms(1.0, 2.0)}
    made.bounds = bounds.__getitem__
    assert (made.one().notice, made.one().grace) == (7.0, 8.0)

    made.seen["u1"] = PLACED
    made.gangs.mark_changed("u1")
    assert (made.one().notice, made.one().grace) == (5.0, 6.0)

    made = Made(member(pools=()))
    made.seen["u1"] = replace(PLACED, pool=None)
    made.bounds = bounds.__getitem__
    assert made.one().notice == 1.0


def test_a_gang_has_the_brief_notice_that_all_of_its_pools_grant() -> None:
    brief = EvictionTerms(20.0, 60.0, brief_run=600.0, brief_notice=5.0)
    made = Made(member(pools=(POOL,)))
    made.bounds = lambda _pool: brief
    assert (made.one().brief_run, made.one().brief_notice) == (600.0, 5.0)

    for other, expected in (
        (EvictionTerms(20.0, 60.0, brief_run=300.0, brief_notice=10.0), (300.0, 10.0)),
        (EvictionTerms(20.0, 60.0), (0.0, 5.0)),
    ):
        members = (member(f"u{n}", marks=marks(minimum=2), pools=(pool,)) for n, pool in enumerate((POOL, OTHER_POOL)))
        made = Made(*members)
        made.bounds = {POOL: brief, OTHER_POOL: other}.__getitem__  # type: ignore[assignment]
        assert (made.one().brief_run, made.one().brief_notice) == expected


def test_who_says_that_a_restart_costs_more_than_can_be_gains_nothing() -> None:
    made = Made(*(member(f"u{n}", marks=marks(minimum=2, rank=n, restart_cost=1e9)) for n in range(2)))
    made.bounds = lambda _pool: EvictionTerms(5.0, 6.0, 60.0, 100.0)
    gang = made.one()
    assert gang.restart_cost == 200.0, "of two pods with a GPU each"
    assert gang.minimum_run == 60.0


def test_how_long_its_like_ran_is_told_where_no_limit_is_declared() -> None:
    gangs = TenantGangs(TENANT, look=lambda _: WAITING, bounds=lambda _: EvictionTerms(5.0, 6.0), expect=lambda _: 40.0)
    gangs.put_member(member("u1"))
    gangs.put_member(member("u2", marks=marks(minimum=1, run_limit=9.0)))
    found = {gang.run_limit: gang.expected_run for gang in gangs.build_gangs()[0]}
    assert found == {None: 40.0, 9.0: None}


# -- why a gang is not judged ------------------------------------------------------------------------------------------


def test_members_with_other_gates_are_not_there_for_the_arbiter_yet() -> None:
    made = Made(*workers(2), member("u2", marks=marks(minimum=2), waiting_gates=("example.com/quota",)))
    assert [pod.uid for pod in made.one().pods] == ["u0", "u1"]


def test_a_gang_of_which_all_have_other_gates_waits_for_these() -> None:
    made = Made(
        member("u0", marks=marks(), waiting_gates=("b.example.com/x", "a.example.com/y")),
        member("u1", marks=marks(), waiting_gates=("b.example.com/x",)),
    )
    hold = made.held()

    assert (hold.gang, hold.code) == (GANG, PendingReason.MEMBERS)
    assert hold.message == "waits for other scheduling gates: a.example.com/y, b.example.com/x"


def test_a_member_that_runs_counts_whatever_gates_it_had() -> None:
    made = Made(member("u0", waiting_gates=("example.com/x",)))
    made.seen["u0"] = PLACED

    assert made.one().pods[0].state is PodState.PLACED


def test_members_that_contradict_each_other_hold_the_gang() -> None:
    made = Made(member("u0", marks=marks(minimum=2)), member("u1", marks=marks(minimum=3)))
    hold = made.held()

    assert (hold.gang, hold.code) == (GANG, PendingReason.INVALID)
    assert "minimum" in hold.message
    assert TENANT not in hold.message


def test_what_runs_of_an_invalid_gang_still_counts_and_nothing_more_starts() -> None:
    made = Made(member("u0", marks=marks(minimum=2)), member("u1", marks=marks(minimum=3)))
    made.seen["u0"] = PLACED
    gangs, holds = made.gangs.build_gangs()

    assert [pod.uid for gang in gangs for pod in gang.pods] == ["u0"]
    assert [hold.code for hold in holds] == [PendingReason.INVALID]


def test_a_pod_whose_marks_make_no_sense_waits_alone_and_is_told_why() -> None:
    made = Made(member("u0", marks=None, fault="gang-min is 'x', which is no number"))
    hold = made.held()

    assert (hold.gang, hold.code) == (f"{TENANT}/default/pod/u0", PendingReason.INVALID)
    assert hold.message == "gang-min is 'x', which is no number"


def test_a_gang_that_waits_for_an_object_of_a_kind_that_is_not_served_reads_so() -> None:
    made = Made(member("u0", marks=marks(missing_reference=reference(), is_unserved=True)))
    hold = made.held()
    assert hold.code is PendingReason.MEMBERS
    assert "does not serve the kind PodGroup of scheduling.volcano.sh; install it" in hold.message


def test_a_gang_whose_size_is_not_known_yet_waits_for_the_object_that_says_it() -> None:
    made = Made(
        member("u0", marks=marks(missing_reference=reference())),
        member("u1", marks=marks(missing_reference=reference())),
    )
    hold = made.held()

    assert (hold.gang, hold.code) == (GANG, PendingReason.MEMBERS)
    assert hold.message.startswith("PodGroup train (podgroups.scheduling.volcano.sh) is not there")


def test_members_that_ask_for_nothing_governed_make_no_gang() -> None:
    made = Made(member("cpu", governed=False))
    assert made.gangs.build_gangs() == ([], [])

    made = Made(*workers(2))
    made.seen = {"u0": SUCCEEDED, "u1": GONE}
    assert made.gangs.build_gangs() == ([], [])


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_what_did_not_change_is_the_very_same_object() -> None:
    made = Made(*workers(2), member("alone"))
    first, _ = made.gangs.build_gangs()
    made.looked.clear()
    second, _ = made.gangs.build_gangs()

    assert [one is other for one, other in zip(first, second, strict=True)] == [True, True]
    assert made.looked == []


def test_only_the_gang_of_what_changed_is_made_anew() -> None:
    made = Made(*workers(2), member("alone"))
    first, _ = made.gangs.build_gangs()
    made.seen["u1"] = PLACED
    made.gangs.mark_changed("u1")
    made.gangs.mark_changed("nobody")
    made.looked.clear()
    second, _ = made.gangs.build_gangs()

    assert sorted(made.looked) == ["u0", "u1"]
    assert second[1] is first[1]
    assert second[0].pods[1].state is PodState.PLACED


def test_all_are_made_anew_where_settings_changed() -> None:
    made = Made(member())
    made.one()
    made.bounds = lambda _pool: EvictionTerms(99.0, 99.0)
    assert made.one().notice == 20.0
    made.gangs.mark_all_changed()

    assert made.one().notice == 99.0


def test_a_member_that_is_read_anew_takes_the_place_of_what_it_was() -> None:
    made = Made(*workers(2))
    made.one()
    made.gangs.put_member(member("u1", marks=marks("default/gang/other", minimum=1)))
    gangs, _ = made.gangs.build_gangs()

    assert {gang.id: [pod.uid for pod in gang.pods] for gang in gangs} == {
        GANG: ["u0"],
        f"{TENANT}/default/gang/other": ["u1"],
    }
    assert [one.uid for one in made.gangs.members_of(GANG)] == ["u0"]


def test_nothing_is_left_of_members_that_are_gone() -> None:
    made = Made(*workers(2))
    made.one()
    made.gangs.drop_member("u0")
    made.gangs.drop_member("u0")
    assert [pod.uid for pod in made.one().pods] == ["u1"]
    made.gangs.drop_member("u1")

    assert made.gangs.build_gangs() == ([], [])
    assert made.gangs.find_member("u1") is None
    assert made.gangs.members_of(GANG) == []
    assert not made.gangs._uids_by_pod
    assert not made.gangs._groups


def test_namesakes_are_told_apart() -> None:
    made = Made(member("old", key=("default", "web")), member("new", key=("default", "web")))
    assert {one.uid for one in made.gangs.members_named(("default", "web"))} == {"old", "new"}
    made.gangs.drop_member("old")

    assert [one.uid for one in made.gangs.members_named(("default", "web"))] == ["new"]
    assert made.gangs.members_named(("default", "other")) == []
    assert [one.uid for one in made.gangs] == ["new"]


def test_plans_are_kept_and_told_again() -> None:
    plan = PreemptionPlan(pool=POOL, nodes={"u0": "host-1", "u1": "host-1"}, borrowed=False)
    made = Made(*workers(2), member("alone"))
    made.gangs.build_gangs()
    made.gangs.set_plans({GANG: plan, "beta/default/gang/train": plan})
    first, _ = made.gangs.build_gangs()
    assert [gang.plan for gang in first] == [plan, None]

    made.gangs.set_plans({GANG: replace(plan)})
    second, _ = made.gangs.build_gangs()
    assert second[0] is first[0], "an equal plan is no news"

    made.gangs.set_plans({})
    assert made.gangs.build_gangs()[0][0].plan is None


def test_who_can_go_nowhere_is_told_why_and_what_runs_still_counts() -> None:
    made = Made(member("u0", pools=(), nowhere="virtual node a100.local is cordoned"))
    assert made.held().code == PendingReason.INFEASIBLE
    assert made.held().message == "pod default/pod-u0 can go nowhere: virtual node a100.local is cordoned"

    running, waiting = workers(2, minimum=1)
    made = Made(running, replace(waiting, pools=(), nowhere="virtual node a100.local is cordoned"))
    made.seen["u0"] = PLACED
    [gang], [hold] = made.gangs.build_gangs()
    assert [pod.uid for pod in gang.pods] == ["u0"]
    assert gang.pools == (POOL,)
    assert "cordoned" in hold.message

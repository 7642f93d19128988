"""Reasons to hold a gang, and reuse of unchanged gangs."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.sync.admission.gang_harness import GANG, GONE, PLACED, SUCCEEDED, Harness, make_workers
from tests.unit.sync.admission.samples import POOL, TENANT, gang_marks, make_member, make_reference
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import PodState, PreemptionPlan
from vkgateway.scheduler.service.gang_builder import EvictionTerms

# -- reasons to hold a gang --------------------------------------------------------------------------------------------


def test_members_with_other_gates_are_not_pending() -> None:
    harness = Harness(
        *make_workers(2), make_member("u2", marks=gang_marks(minimum=2), waiting_gates=("example.com/quota",))
    )
    assert [pod.uid for pod in harness.only_gang().pods] == ["u0", "u1"]


def test_gang_with_only_gated_members_waits_for_the_gates() -> None:
    harness = Harness(
        make_member("u0", marks=gang_marks(), waiting_gates=("b.example.com/x", "a.example.com/y")),
        make_member("u1", marks=gang_marks(), waiting_gates=("b.example.com/x",)),
    )
    hold = harness.pending_gangs()

    assert (hold.gang, hold.code) == (GANG, PendingReason.MEMBERS)
    assert hold.message == "waits for other scheduling gates: a.example.com/y, b.example.com/x"


def test_running_member_counts_despite_former_gates() -> None:
    harness = Harness(make_member("u0", waiting_gates=("example.com/x",)))
    harness.seen["u0"] = PLACED

    assert harness.only_gang().pods[0].state is PodState.PLACED


def test_contradicting_members_hold_the_gang() -> None:
    harness = Harness(make_member("u0", marks=gang_marks(minimum=2)), make_member("u1", marks=gang_marks(minimum=3)))
    hold = harness.pending_gangs()

    assert (hold.gang, hold.code) == (GANG, PendingReason.INVALID)
    assert "minimum" in hold.message
    assert TENANT not in hold.message


def test_running_members_of_an_invalid_gang_count_and_no_more_start() -> None:
    harness = Harness(make_member("u0", marks=gang_marks(minimum=2)), make_member("u1", marks=gang_marks(minimum=3)))
    harness.seen["u0"] = PLACED
    gangs, holds = harness.gangs.build_gangs()

    assert [pod.uid for gang in gangs for pod in gang.pods] == ["u0"]
    assert [hold.code for hold in holds] == [PendingReason.INVALID]


def test_pod_with_invalid_marks_waits_alone_with_a_reason() -> None:
    harness = Harness(make_member("u0", marks=None, fault="gang-min is 'x', which is no number"))
    hold = harness.pending_gangs()

    assert (hold.gang, hold.code) == (f"{TENANT}/default/pod/u0", PendingReason.INVALID)
    assert hold.message == "gang-min is 'x', which is no number"


def test_gang_reports_a_companion_object_of_an_unserved_kind() -> None:
    harness = Harness(make_member("u0", marks=gang_marks(missing_reference=make_reference(), is_unserved=True)))
    hold = harness.pending_gangs()
    assert hold.code is PendingReason.MEMBERS
    assert "does not serve the kind PodGroup of scheduling.volcano.sh; install it" in hold.message


def test_gang_of_unknown_size_waits_for_its_companion_object() -> None:
    harness = Harness(
        make_member("u0", marks=gang_marks(missing_reference=make_reference())),
        make_member("u1", marks=gang_marks(missing_reference=make_reference())),
    )
    hold = harness.pending_gangs()

    assert (hold.gang, hold.code) == (GANG, PendingReason.MEMBERS)
    assert hold.message.startswith("PodGroup train (podgroups.scheduling.volcano.sh) does not exist")


def test_ungoverned_members_form_no_gang() -> None:
    harness = Harness(make_member("cpu", governed=False))
    assert harness.gangs.build_gangs() == ([], [])

    harness = Harness(*make_workers(2))
    harness.seen = {"u0": SUCCEEDED, "u1": GONE}
    assert harness.gangs.build_gangs() == ([], [])


# -- reuse of unchanged gangs ------------------------------------------------------------------------------------------


def test_unchanged_gang_is_the_same_object() -> None:
    harness = Harness(*make_workers(2), make_member("alone"))
    first, _ = harness.gangs.build_gangs()
    harness.looked.clear()
    second, _ = harness.gangs.build_gangs()

    assert [member is other for member, other in zip(first, second, strict=True)] == [True, True]
    assert harness.looked == []


def test_only_the_gang_of_a_changed_member_is_rebuilt() -> None:
    harness = Harness(*make_workers(2), make_member("alone"))
    first, _ = harness.gangs.build_gangs()
    harness.seen["u1"] = PLACED
    harness.gangs.mark_changed("u1")
    harness.gangs.mark_changed("nobody")
    harness.looked.clear()
    second, _ = harness.gangs.build_gangs()

    assert sorted(harness.looked) == ["u0", "u1"]
    assert second[1] is first[1]
    assert second[0].pods[1].state is PodState.PLACED


def test_all_gangs_are_rebuilt_after_a_settings_change() -> None:
    harness = Harness(make_member())
    harness.only_gang()
    harness.bounds = lambda _pool: EvictionTerms(99.0, 99.0)
    assert harness.only_gang().notice == 20.0
    harness.gangs.mark_all_changed()

    assert harness.only_gang().notice == 99.0


def test_reread_member_replaces_its_former_state() -> None:
    harness = Harness(*make_workers(2))
    harness.only_gang()
    harness.gangs.put_member(make_member("u1", marks=gang_marks("default/gang/other", minimum=1)))
    gangs, _ = harness.gangs.build_gangs()

    assert {gang.id: [pod.uid for pod in gang.pods] for gang in gangs} == {
        GANG: ["u0"],
        f"{TENANT}/default/gang/other": ["u1"],
    }
    assert [member.uid for member in harness.gangs.members_of(GANG)] == ["u0"]


def test_deleted_members_leave_nothing() -> None:
    harness = Harness(*make_workers(2))
    harness.only_gang()
    harness.gangs.drop_member("u0")
    harness.gangs.drop_member("u0")
    assert [pod.uid for pod in harness.only_gang().pods] == ["u1"]
    harness.gangs.drop_member("u1")

    assert harness.gangs.build_gangs() == ([], [])
    assert harness.gangs.find_member("u1") is None
    assert harness.gangs.members_of(GANG) == []
    assert not harness.gangs.uids_by_pod
    assert not harness.gangs._groups


def test_pods_of_the_same_name_are_distinguished() -> None:
    harness = Harness(make_member("old", key=("default", "web")), make_member("new", key=("default", "web")))
    assert {member.uid for member in harness.gangs.members_named(("default", "web"))} == {"old", "new"}
    harness.gangs.drop_member("old")

    assert [member.uid for member in harness.gangs.members_named(("default", "web"))] == ["new"]
    assert harness.gangs.members_named(("default", "other")) == []
    assert [member.uid for member in harness.gangs] == ["new"]


def test_plans_are_retained_and_reported_again() -> None:
    plan = PreemptionPlan(pool=POOL, nodes={"u0": "host-1", "u1": "host-1"}, borrowed=False)
    harness = Harness(*make_workers(2), make_member("alone"))
    harness.gangs.build_gangs()
    harness.gangs.set_plans({GANG: plan, "beta/default/gang/train": plan})
    first, _ = harness.gangs.build_gangs()
    assert [gang.plan for gang in first] == [plan, None]

    harness.gangs.set_plans({GANG: replace(plan)})
    second, _ = harness.gangs.build_gangs()
    assert second[0] is first[0], "an equal plan is no news"

    harness.gangs.set_plans({})
    assert harness.gangs.build_gangs()[0][0].plan is None


def test_member_without_pool_has_a_reason_and_running_ones_count() -> None:
    harness = Harness(make_member("u0", pools=(), unreachable_reason="virtual node a100.local is cordoned"))
    assert harness.pending_gangs().code == PendingReason.INFEASIBLE
    assert harness.pending_gangs().message == (
        "pod default/pod-u0 can run on no virtual node: virtual node a100.local is cordoned"
    )

    running, waiting = make_workers(2, minimum=1)
    harness = Harness(running, replace(waiting, pools=(), unreachable_reason="virtual node a100.local is cordoned"))
    harness.seen["u0"] = PLACED
    [gang], [hold] = harness.gangs.build_gangs()
    assert [pod.uid for pod in gang.pods] == ["u0"]
    assert gang.pools == (POOL,)
    assert "cordoned" in hold.message

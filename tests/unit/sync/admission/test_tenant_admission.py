"""Admission of one tenant: verdicts of its pods, answers to its reconcilers, and orphans."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sync.admission.samples import (
    POOL,
    TENANT,
    compute_view,
    gang_marks,
    make_member,
    pending_report,
)
from tests.unit.sync.admission.tenant_harness import GANG, KEY, NODE, OTHER_NODE, Harness
from vkgateway.kinds.pods.translation.conditions import PREEMPTED, RUN_LIMIT_REACHED
from vkgateway.scheduler.core.decisions import Admit, PendingReason, Promote, Reprieve
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import PodState

# -- answers to reconcilers --------------------------------------------------------------------------------------------


def test_unread_pod_is_pending() -> None:
    assert Harness(waits=False).admission.admission_for("u1", NODE) == Admission(AdmissionState.PENDING)


def test_undecided_pod_is_pending() -> None:
    assert Harness().admission.admission_for("u1", NODE) == Admission(AdmissionState.PENDING)


def test_pod_of_a_waiting_gang_is_held_with_the_reason() -> None:
    harness = Harness()
    harness.admission.reasons.set_pending_reasons([pending_report(code=PendingReason.QUOTA, message="over")], pools={})
    assert harness.admission.admission_for("u1", NODE) == Admission(AdmissionState.HELD, "WaitingForQuota", "over")


def test_admitted_pod_gets_its_node() -> None:
    harness = Harness()
    harness.admit_pod(borrowed=False)
    assert harness.admission.admission_for("u1", NODE) == Admission(
        AdmissionState.ADMITTED, node="host-1", borrowed=False, gang="default/pod/u1", behind="alpha/y"
    )
    assert harness.admission.admission_for("u1", NODE).verdict == "admitted", "asking takes nothing away"


@pytest.mark.parametrize("node", [OTHER_NODE, "elsewhere", ""])
def test_pod_bound_to_another_node_than_decided_waits_again(node: str) -> None:
    harness = Harness()
    harness.admit_pod()
    pokes = harness.service.pokes

    assert harness.admission.admission_for("u1", node) == Admission(AdmissionState.PENDING)
    assert harness.get_verdict() is None
    assert harness.get_state() is PodState.WAITING
    assert harness.service.pokes > pokes


def test_pod_evicted_before_forwarding_is_not_forwarded() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.evict_pod()
    admission = harness.admission.admission_for("u1", NODE)
    assert (admission.verdict, admission.code, admission.deadline) == ("evicting", PREEMPTED, harness.now + 30)


def test_running_pod_is_admitted_unless_evicted() -> None:
    harness = Harness()
    assert harness.admission.running_admission("u1") == Admission(AdmissionState.ADMITTED)
    harness.admit_pod()
    assert harness.admission.running_admission("u1") == Admission(AdmissionState.ADMITTED, borrowed=True)
    harness.admission.verdicts.apply_promote(Promote(gang=GANG, pods=("u1",)))
    assert harness.admission.running_admission("u1") == Admission(AdmissionState.ADMITTED, borrowed=False)
    harness.evict_pod()
    admission = harness.admission.running_admission("u1")
    assert (admission.verdict, admission.deadline, admission.grace, admission.evicted_for) == (
        "evicting",
        harness.now + 30,
        60.0,
        "beta/x",
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"marks": gang_marks(group="default/pod/u1", run_limit=90.0, run_limit_source="annotation x")},
            "reaches its run limit of 1m30s (annotation x); to run longer, raise that limit, or save checkpoints from "
            "which the next run continues",
        ),
        (
            {},
            "reaches its run limit of 1m30s (the pool's default for pods of the guaranteed band); to run longer, "
            "declare a longer limit with annotation vkgateway.io/gang-run-limit, or save checkpoints from which the "
            "next run continues",
        ),
    ],
)
def test_eviction_at_the_run_limit_names_limit_source_and_way_out(fields: dict[str, Any], message: str) -> None:
    harness = Harness()
    harness.add_pod(make_member("u1", **fields))
    harness.admit_pod(borrowed=False)
    harness.evict_pod(makes_room_for="", reached_limit=90.0)

    admission = harness.admission.running_admission("u1")
    assert (admission.code, admission.message) == (RUN_LIMIT_REACHED, message)
    assert (admission.deadline, admission.grace, admission.evicted_for) == (harness.now + 30, 60.0, "")
    [gang] = harness.admission.gangs.build_gangs()[0]
    [pod] = gang.pods
    assert (pod.state, pod.limit_reached, pod.borrowed) == (PodState.NOTIFIED, True, False)


def test_eviction_message_hides_other_tenants() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.evict_pod(makes_room_for="beta/secret/gang/x")
    message = harness.admission.running_admission("u1").message
    assert message == "is evicted for another tenant's workload, which has precedence"


def test_eviction_message_names_the_tenants_own_gang() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.evict_pod(makes_room_for=f"{TENANT}/default/gang/train")
    assert harness.admission.running_admission("u1").message == "is evicted for gang default/train"
    harness.add_pod(make_member("u2"))
    harness.evict_pod(makes_room_for=f"{TENANT}/default/pod/u2")
    assert harness.admission.running_admission("u1").message == "is evicted for pod default/pod-u2"
    harness.evict_pod(makes_room_for=f"{TENANT}/default/pod/gone")
    assert harness.admission.running_admission("u1").message == "is evicted for a pod of namespace default"

    harness.evict_pod(makes_room_for=f"{TENANT}-two/default/gang/train")
    assert "train" not in harness.admission.running_admission("u1").message, (
        "a tenant whose name begins alike is another"
    )


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_pending_message_names_the_tenants_own_pod_ahead() -> None:
    harness = Harness()
    harness.add_pod(make_member("u2"))
    ahead = f"{TENANT}/default/pod/u2"
    harness.admission.reasons.set_pending_reasons(
        [pending_report(message="kept for default/pod/u2, which is ahead", behind=ahead)], pools={}
    )
    assert harness.admission.admission_for("u1", NODE).message == "kept for pod default/pod-u2, which is ahead"


def test_admission_is_recorded_and_enqueued() -> None:
    harness = Harness()
    harness.admit_pod()

    assert harness.get_verdict() == Admission(
        verdict=AdmissionState.ADMITTED, pool=POOL, node="host-1", borrowed=True, since=harness.now, behind="alpha/y"
    )
    assert harness.looked == [KEY]
    assert harness.get_state() is PodState.PLACED


def test_decisions_about_deleted_or_started_pods_are_ignored() -> None:
    harness = Harness()
    harness.admit_pod(node="host-1")
    harness.admit_pod(node="host-2")
    verdict = harness.get_verdict()
    assert verdict is not None
    assert verdict.node == "host-1"

    harness = Harness()
    harness.pods.drop_tenant()
    harness.admit_pod()
    assert harness.get_verdict() is None

    harness = Harness(waits=False)
    harness.admit_pod()
    harness.evict_pod()
    assert harness.get_verdict() is None
    assert harness.looked == []


def test_pod_running_since_before_the_gateway_can_be_evicted() -> None:
    harness = Harness()
    harness.pods.put_compute(compute_view(node="host-3"))
    harness.admission.verdict_store.verdicts.clear()
    harness.evict_pod()
    verdict = harness.get_verdict()

    assert verdict is not None
    assert (verdict.verdict, verdict.node, verdict.evicted_for) == (AdmissionState.EVICTING, "host-3", "beta/x")


def test_pod_without_verdict_and_compute_pod_is_not_evicted() -> None:
    harness = Harness()
    harness.evict_pod()
    assert harness.get_verdict() is None


def test_reprieve_withdraws_the_notice() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.evict_pod()
    harness.admission.verdicts.apply_reprieve(Reprieve(gang=GANG, pods=("u1",)))
    verdict = harness.get_verdict()

    assert verdict is not None
    assert (verdict.verdict, verdict.deadline, verdict.evicted_for) == (AdmissionState.ADMITTED, 0.0, "")
    assert harness.get_state() is PodState.PLACED
    assert harness.looked[-1] == KEY


def test_promotion_is_recorded_and_enqueued() -> None:
    harness = Harness()
    harness.admit_pod(borrowed=True)
    harness.admission.verdicts.apply_promote(Promote(gang=GANG, pods=("u1",)))
    assert harness.admission.admission_for("u1", NODE).borrowed is False


def test_new_reports_replace_old_ones_and_only_changes_are_enqueued() -> None:
    harness = Harness()
    harness.add_pod(make_member("u2"))
    harness.admission.reasons.set_pending_reasons([pending_report("u1"), pending_report("u2")], pools={GANG: POOL})
    assert sorted(harness.looked) == [KEY, ("default", "pod-u2")]
    pending = harness.admission.reasons.pending_message(make_member("u1"))
    assert pending is not None
    assert pending.text.startswith(pending.reason)

    harness.pods.requests.added.clear()
    harness.admission.reasons.set_pending_reasons(
        [pending_report("u1"), pending_report("u2", message="another")], pools={GANG: POOL}
    )
    assert harness.looked == [("default", "pod-u2")]

    harness.admission.reasons.set_pending_reasons([], pools={})
    assert harness.admission.reasons.pending_message(make_member("u1")) is None


def test_changes_of_positions_are_enqueued_later_with_many_gangs() -> None:
    harness = Harness()
    others = [pending_report(f"other-{number}") for number in range(999)]
    harness.admission.reasons.set_pending_reasons([pending_report("u1", place=1), *others], pools={GANG: POOL})
    harness.pods.requests.added.clear()
    harness.admission.reasons.set_pending_reasons([pending_report("u1", place=2), *others], pools={GANG: POOL})
    harness.admission.reasons.set_pending_reasons([pending_report("u1", message="another")], pools={GANG: POOL})
    assert [delay for _, delay in harness.pods.requests.added] == [2.0, 0.0]


def test_only_waiting_members_of_a_partly_running_gang_are_enqueued() -> None:
    harness = Harness(waits=False)
    group = f"{TENANT}/default/gang/train"
    harness.add_pod(make_member("u1", marks=gang_marks()))
    harness.add_pod(make_member("u2", marks=gang_marks()))
    harness.add_pod(make_member("cpu", marks=gang_marks(), governed=False))
    harness.admission.apply_admit(Admit(gang=group, pool=POOL, nodes={"u1": "host-1"}, borrowed=True), now=harness.now)
    harness.pods.requests.added.clear()
    harness.admission.reasons.set_pending_reasons([pending_report(), _hold_gang(group)], pools={})

    assert harness.looked == [("default", "pod-u2")]


def _hold_gang(gang: str) -> Any:
    harness = pending_report()
    return type(harness)(gang=gang, code=harness.code, message=harness.message)

"""State of governed pods in both clusters, and decisions recorded on compute pods."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.sync.admission.samples import (
    BORN_AT,
    GPU,
    POOL,
    TENANT,
    PodStores,
    compute_view,
    make_member,
    tenant_view,
)
from vkgateway.api.names import (
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    UID_ANNOTATION,
)
from vkgateway.runtime.views.annotations import EVICTED, EVICTED_FOR, REQUESTS, RETAKEN
from vkgateway.scheduler.backends.breaches import Eviction
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import PodState, Shape
from vkgateway.scheduler.service.member import MemberState
from vkgateway.scheduler.service.pod_observer import PodObserver
from vkgateway.scheduler.service.tenant_admission import ending_gang
from vkgateway.scheduler.service.verdict_store import VerdictStore, is_arbiter_placed, recorded_verdict

NOW = BORN_AT + 1000
LEAVING = "2026-03-01T12:30:00Z"
LEAVING_AT = BORN_AT + 1800
ADMITTED = Admission(
    verdict=AdmissionState.ADMITTED, pool=POOL, node="host-1", borrowed=True, since=BORN_AT + 5, behind="alpha/x"
)
EVICTING = replace(ADMITTED, verdict=AdmissionState.EVICTING, deadline=NOW + 30, evicted_for="beta/x")
PLACED = MemberState(state=PodState.PLACED, verdict=ADMITTED)
NOTIFIED = MemberState(state=PodState.NOTIFIED, verdict=EVICTING)
GONE = MemberState()
DONE = MemberState(has_succeeded=True, ended_at=NOW)
FAILED = MemberState(has_failed=True, ended_at=NOW)


class ObservedPod:
    """One tenant pod with its compute pod, its verdict, and whether it was just forwarded."""

    def __init__(self) -> None:
        self.pods = PodStores()
        self.book = VerdictStore()
        self.pods.now = NOW
        self.sent = self.pods.scope.created_until
        self.member = make_member()
        self.sight = PodObserver(self.pods.scope, self.book)

    def tenant_pod(self, **meta: Any) -> None:
        phase = meta.pop("phase", "Pending")
        self.pods.put_tenant(tenant_view(meta=meta, phase=phase))

    def compute_pod(self, **other: Any) -> None:
        self.pods.put_compute(compute_view(**other))

    def set_verdict(self, verdict: Admission) -> None:
        self.book.verdicts["u1"] = verdict

    def observe_pod(self) -> MemberState:
        return self.sight.member_state(self.member)


# -- without a compute pod ---------------------------------------------------------------------------------------------


def test_pod_without_verdict_waits() -> None:
    observed = ObservedPod()
    observed.tenant_pod()
    assert observed.observe_pod() == MemberState(state=PodState.WAITING)


def test_admitted_pod_holds_its_capacity_without_a_compute_pod() -> None:
    observed = ObservedPod()
    observed.tenant_pod()
    observed.set_verdict(ADMITTED)
    assert observed.observe_pod() == PLACED


def test_evicted_pod_holds_its_capacity_without_a_compute_pod() -> None:
    observed = ObservedPod()
    observed.tenant_pod()
    observed.set_verdict(EVICTING)
    assert observed.observe_pod() == NOTIFIED


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        ({"phase": "Succeeded"}, DONE),
        ({"phase": "Failed"}, FAILED),
        ({"deletionTimestamp": LEAVING}, GONE),
        ({"phase": "Succeeded", "deletionTimestamp": LEAVING}, DONE),
    ],
)
@pytest.mark.parametrize("verdict", [None, ADMITTED])
def test_ended_or_deleted_pod_without_compute_pod_holds_nothing(
    meta: dict[str, Any], expected: MemberState, verdict: Admission | None
) -> None:
    observed = ObservedPod()
    observed.tenant_pod(**meta)
    if verdict is not None:
        observed.set_verdict(verdict)
    assert observed.observe_pod() == expected


def test_deleted_pod_holds_nothing_and_its_successor_is_another_pod() -> None:
    observed = ObservedPod()
    observed.set_verdict(ADMITTED)
    assert observed.observe_pod() == GONE
    observed.tenant_pod(uid="another")
    assert observed.observe_pod() == GONE


@pytest.mark.parametrize("meta", [None, {"phase": "Failed"}, {"deletionTimestamp": LEAVING}])
def test_just_created_compute_pod_counts_as_terminating_until_shown(meta: dict[str, Any] | None) -> None:
    observed = ObservedPod()
    if meta is not None:
        observed.tenant_pod(**meta)
    observed.set_verdict(ADMITTED)
    observed.sent["u1"] = NOW + 1
    assert observed.observe_pod() == MemberState(state=PodState.ENDING, verdict=replace(ADMITTED, deadline=NOW + 30))
    observed.sent["u1"] = NOW
    assert observed.observe_pod() == (FAILED if meta == {"phase": "Failed"} else GONE)


# -- with a compute pod ------------------------------------------------------------------------------------------------


def test_running_pod_uses_the_node_that_it_is_bound_to() -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    observed.set_verdict(ADMITTED)
    observed.compute_pod(node="host-2")
    assert observed.observe_pod() == MemberState(state=PodState.PLACED, verdict=replace(ADMITTED, node="host-2"))

    observed.compute_pod(node="")
    assert observed.observe_pod() == PLACED


def test_running_pod_is_fully_recovered_after_a_restart() -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    observed.compute_pod(annotations={EVICTION_DEADLINE_ANNOTATION: LEAVING, EVICTED_FOR: "beta/x"})
    seen = observed.observe_pod()

    assert seen == MemberState(
        state=PodState.NOTIFIED,
        verdict=Admission(
            AdmissionState.EVICTING,
            pool=POOL,
            node="host-1",
            borrowed=True,
            since=BORN_AT,
            deadline=LEAVING_AT,
            evicted_for="beta/x",
        ),
    )
    assert observed.book.verdicts["u1"].verdict is AdmissionState.EVICTING, (
        "and from now on it is known as if it had just been said"
    )


def test_eviction_at_a_run_limit_is_recovered_with_its_message() -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    marks = {EVICTION_DEADLINE_ANNOTATION: LEAVING, EVICTED: "RunLimitReached: reaches its limit: 2h", EVICTED_FOR: ""}
    observed.compute_pod(annotations=marks)

    verdict = observed.observe_pod().verdict

    assert verdict is not None
    assert (verdict.has_reached_limit, verdict.message) == (True, "reaches its limit: 2h")


@pytest.mark.parametrize(("phase", "expected"), [("Succeeded", DONE), ("Failed", FAILED)])
def test_ended_compute_pod_holds_nothing(phase: str, expected: MemberState) -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    observed.set_verdict(ADMITTED)
    observed.compute_pod(phase=phase)
    assert observed.observe_pod() == expected


def test_pod_deleted_before_it_had_a_node_has_ended() -> None:
    observed = ObservedPod()
    observed.tenant_pod()
    observed.set_verdict(ADMITTED)
    observed.compute_pod(node="", phase="Pending", deletionTimestamp=LEAVING)
    assert observed.observe_pod() == GONE


def test_deleted_compute_pod_ends_at_its_deletion_timestamp() -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    observed.set_verdict(EVICTING)
    observed.compute_pod(deletionTimestamp=LEAVING)
    assert observed.observe_pod() == MemberState(state=PodState.ENDING, verdict=replace(EVICTING, deadline=LEAVING_AT))


@pytest.mark.parametrize(
    ("reason", "deleted", "preempted"),
    [
        ("PreemptionByScheduler", True, True),
        ("PreemptionByScheduler", False, False),
        ("EvictionByEvictionAPI", True, False),
        ("DeletionByTaintManager", True, False),
        ("", True, False),
    ],
)
@pytest.mark.parametrize("phase", ["Running", "Failed"])
def test_eviction_by_the_scheduler_of_the_pool_is_told_from_other_ends(
    reason: str, deleted: bool, preempted: bool, phase: str
) -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    observed.set_verdict(ADMITTED)
    meta = {"deletionTimestamp": LEAVING} if deleted else {}
    observed.compute_pod(phase=phase, disruption=reason, **meta)
    observed.observe_pod()
    assert observed.sight.scheduler_evictions.take_groups().keys() == (
        {observed.member.gang_group} if preempted else set()
    )
    observed.observe_pod()
    assert not observed.sight.scheduler_evictions.take_groups(), "each eviction counts once"


@pytest.mark.parametrize("meta", [None, {"uid": "another"}, {"phase": "Succeeded"}, {"deletionTimestamp": LEAVING}])
def test_compute_pod_of_an_ended_tenant_pod_ends_within_its_grace_period(meta: dict[str, Any] | None) -> None:
    observed = ObservedPod()
    if meta is not None:
        observed.tenant_pod(**meta)
    observed.set_verdict(ADMITTED)
    observed.compute_pod()
    assert observed.observe_pod() == MemberState(state=PodState.ENDING, verdict=replace(ADMITTED, deadline=NOW + 30))


def test_reverted_compute_pod_does_not_count() -> None:
    observed = ObservedPod()
    observed.tenant_pod()
    observed.compute_pod(node="", phase="Pending")
    observed.sight.unbound.reverted["below-u1"] = "u1"
    assert observed.observe_pod() == MemberState(state=PodState.WAITING)
    assert observed.sight.find_compute_pod(observed.member) is None

    observed.sight.unbound.reverted.clear()
    observed.compute_pod(node="", phase="Pending", annotations={RETAKEN: "true"})
    assert observed.observe_pod() == MemberState(state=PodState.WAITING)


def test_compute_pod_of_an_earlier_tenant_pod_does_not_count() -> None:
    observed = ObservedPod()
    observed.tenant_pod()
    observed.compute_pod(annotations={UID_ANNOTATION: "an-earlier-one"})
    assert observed.observe_pod() == MemberState(state=PodState.WAITING)


def test_pod_is_gone_from_both_clusters_only_without_any_of_its_pods() -> None:
    observed = ObservedPod()
    assert observed.sight.observe_member(observed.member).is_gone
    observed.sent["u1"] = NOW + 1
    assert not observed.sight.observe_member(observed.member).is_gone
    observed.sent.clear()
    observed.compute_pod()
    assert not observed.sight.observe_member(observed.member).is_gone
    observed.tenant_pod()
    assert not observed.sight.observe_member(observed.member).is_gone


def test_placed_pods_are_the_live_ones_with_a_node_annotation() -> None:
    observed = ObservedPod()
    observed.compute_pod(uid="runs")
    observed.compute_pod(uid="ended", phase="Succeeded")
    observed.compute_pod(uid="free", annotations={COMPUTE_NODE_ANNOTATION: ""})
    assert [pod.tenant_uid for pod in observed.sight.placed_compute_pods()] == ["runs"]


# -- annotations of compute pods ---------------------------------------------------------------------------------------


def test_only_pods_with_a_node_annotation_were_placed() -> None:
    assert is_arbiter_placed(compute_view())
    assert not is_arbiter_placed(compute_view(annotations={COMPUTE_NODE_ANNOTATION: ""}))


@pytest.mark.parametrize(("mark", "borrowed"), [("true", True), ("false", False), ("", True)])
def test_pod_without_guarantee_annotation_counts_as_borrowed(mark: str, borrowed: bool) -> None:
    assert recorded_verdict(compute_view(annotations={BORROWED_ANNOTATION: mark}), "local").borrowed is borrowed


@pytest.mark.parametrize("text", ["soon", "2026-03-01T12:30:00", ""])
def test_notice_without_a_time_is_ignored(text: str) -> None:
    verdict = recorded_verdict(compute_view(annotations={EVICTION_DEADLINE_ANNOTATION: text}), "local")
    assert (verdict.verdict, verdict.deadline) == (AdmissionState.ADMITTED, 0.0)


def test_unbound_pod_counts_on_its_intended_node() -> None:
    verdict = recorded_verdict(compute_view(node="", annotations={COMPUTE_NODE_ANNOTATION: "host-9"}), "local")
    assert (verdict.node, verdict.pool, verdict.verdict, verdict.deadline) == (
        "host-9",
        POOL,
        AdmissionState.ADMITTED,
        0.0,
    )


@pytest.mark.parametrize(("meta", "deadline"), [({}, NOW + 40), ({"deletionTimestamp": LEAVING}, LEAVING_AT)])
def test_terminating_orphan_is_a_gang_of_its_own(meta: dict[str, Any], deadline: float) -> None:
    gang = ending_gang(TENANT, compute_view(annotations={BORROWED_ANNOTATION: "false"}, **meta), "local", now=NOW)
    pod = gang.pods[0]

    assert gang.id == "alpha/default/gone/u1"
    assert (gang.tenant, gang.pools) == (TENANT, (POOL,))
    assert (pod.state, pod.node, pod.pool, pod.borrowed, pod.deadline) == (
        PodState.ENDING,
        "host-1",
        POOL,
        False,
        deadline,
    )
    assert pod.shape == Shape.from_requests({GPU: 1000})


@pytest.mark.parametrize("text", ["", "no json"])
def test_pod_without_recorded_requests_holds_nothing(text: str) -> None:
    gang = ending_gang(TENANT, compute_view(annotations={REQUESTS: text}), "local", now=NOW)
    assert gang.pods[0].shape == Shape.from_requests({})


# -- evictions by the scheduler of a pool ------------------------------------------------------------------------------


EXTERNAL = {"vkgateway.io/scheduling-mode": "external"}


def is_eviction(
    *,
    annotations: dict[str, str] | None = None,
    disruption: str = "",
    phase: str = "Running",
    node: str = "host-1",
    tenant: dict[str, Any] | None = None,
    is_deleted: bool = True,
) -> bool:
    """Return whether a compute pod counts as evicted by its scheduler."""
    observed = ObservedPod()
    if tenant is not None:
        observed.tenant_pod(**tenant)
    meta = {"deletionTimestamp": LEAVING} if is_deleted else {}
    pod = compute_view(annotations=annotations, phase=phase, node=node, disruption=disruption, **meta)
    observed.pods.put_compute(pod)
    observed.observe_pod()
    return observed.sight.scheduler_evictions.take_groups().keys() == {observed.member.gang_group}


@pytest.mark.parametrize("annotations", [{}, EXTERNAL])
@pytest.mark.parametrize("node", ["host-1", ""])
def test_preemption_is_an_eviction_in_every_mode(annotations: dict[str, str], node: str) -> None:
    reason = "PreemptionByScheduler"
    assert is_eviction(annotations=annotations, disruption=reason, node=node, tenant={})
    assert not is_eviction(annotations=annotations, disruption=reason, tenant={}, is_deleted=False)


def test_deletion_without_a_reason_is_an_eviction_by_an_external_scheduler_only() -> None:
    assert is_eviction(annotations=EXTERNAL, tenant={})
    assert not is_eviction(annotations={}, tenant={})
    assert not is_eviction(annotations={"vkgateway.io/scheduling-mode": "volcano"}, tenant={})


@pytest.mark.parametrize(
    "reason",
    ["EvictionByEvictionAPI", "DeletionByTaintManager", "DeletionByPodGC", "TerminationByKubelet"],
    ids=["drain", "taint", "lost-node", "kubelet"],
)
def test_disruptions_with_another_reason_are_no_evictions_by_the_scheduler(reason: str) -> None:
    assert not is_eviction(annotations=EXTERNAL, tenant={}, disruption=reason)


@pytest.mark.parametrize(
    "fields",
    [
        {"tenant": {"deletionTimestamp": LEAVING}},
        {"tenant": None},
        {"tenant": {}, "annotations": EXTERNAL | {EVICTED: "PreemptionByVkgateway: makes room"}},
        {"tenant": {}, "annotations": EXTERNAL | {RETAKEN: "true"}},
        {"tenant": {}, "phase": "Succeeded"},
        {"tenant": {}, "phase": "Failed"},
        {"tenant": {}, "is_deleted": False},
    ],
    ids=["tenant-deletes", "tenant-deleted", "gateway-evicts", "gateway-reverts", "succeeded", "failed", "runs"],
)
def test_deletions_by_others_are_no_evictions_by_the_scheduler(fields: dict[str, Any]) -> None:
    assert not is_eviction(**{"annotations": EXTERNAL, **fields})


@pytest.mark.parametrize(
    ("reason", "phase", "eviction"),
    [
        ("PreemptionByScheduler", "Failed", Eviction(LEAVING_AT)),
        ("DeletionByComputeCluster", "Failed", Eviction(LEAVING_AT, is_explained=False)),
        ("PreemptionByVkgateway", "Failed", None),
        ("EvictionByEvictionAPI", "Failed", None),
        ("", "Failed", None),
        ("PreemptionByScheduler", "Succeeded", None),
        ("PreemptionByScheduler", "Running", None),
    ],
)
def test_ended_tenant_pod_shows_an_eviction_that_the_gateway_missed(
    reason: str, phase: str, eviction: Eviction | None
) -> None:
    observed = ObservedPod()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": LEAVING}
    observed.pods.put_tenant(tenant_view(phase=phase, conditions=[condition] if reason else []))
    observed.observe_pod()
    expected = {} if eviction is None else {observed.member.gang_group: eviction}
    assert observed.sight.scheduler_evictions.take_groups() == expected
    observed.observe_pod()
    assert not observed.sight.scheduler_evictions.take_groups(), "each eviction counts once"


def test_end_of_an_observed_eviction_counts_no_second_time() -> None:
    observed = ObservedPod()
    observed.tenant_pod(phase="Running")
    observed.set_verdict(ADMITTED)
    observed.compute_pod(disruption="PreemptionByScheduler", deletionTimestamp=LEAVING)
    observed.observe_pod()
    assert observed.sight.scheduler_evictions.take_groups() == {observed.member.gang_group: Eviction(math.inf)}
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    observed.pods.put_tenant(tenant_view(phase="Failed", conditions=[condition]))
    observed.pods.drop_compute()
    observed.observe_pod()
    assert not observed.sight.scheduler_evictions.take_groups()

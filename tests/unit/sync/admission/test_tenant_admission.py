"""Admission of one tenant: verdicts of its pods, answers to its reconcilers, and orphans."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sync.admission.samples import (
    BORN_AT,
    GPU,
    OTHER_POOL,
    POOL,
    TENANT,
    PodStores,
    RecordingArbitration,
    compute_view,
    gang_marks,
    make_member,
    pending_report,
    tenant_view,
)
from tests.unit.sync.scopes import set_followed
from vkgateway.arbiter.decisions import Admit, Evict, PendingReason, Promote, Reprieve
from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.arbiter.snapshot import PodState, PoolKey, Quota
from vkgateway.model.names import ADMISSION_GATE, COMPUTE_NODE_ANNOTATION, EVICTION_DEADLINE_ANNOTATION, UID_ANNOTATION
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.admission.pod_reads import PodReads
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.admission.verdict_store import PREEMPTED, VerdictStore
from vkgateway.sync.runtime.sources import COMPUTE_PODS
from vkgateway.sync.views.ownership import Key

GANG = f"{TENANT}/default/pod/u1"
NODE, OTHER_NODE = "a100.local", "h100.local"
KEY = ("default", "pod-u1")


class Harness:
    """Tenant with one waiting pod by default."""

    def __init__(self, *, waits: bool = True) -> None:
        self.pods = PodStores()
        self.scope = self.pods.scope
        self.pods.now = BORN_AT + 1000
        self.service = RecordingArbitration()
        self.sent = self.scope.created_until
        self.admission = TenantAdmission(self.scope, self.service, PodReads(CompanionObjects(self.scope)))
        watches = self.pods.link.watches.tenants[TENANT] = self.scope.watches
        watches.add(COMPUTE_PODS, self.compute_pod_changed)
        if waits:
            self.add_pod()

    @property
    def now(self) -> float:
        return self.pods.now

    @now.setter
    def now(self, now: float) -> None:
        self.pods.now = now

    @property
    def looked(self) -> list[Key]:
        """The pods whose reconciliation was requested."""
        return self.pods.requests.pods()

    def add_pod(self, pod: GangMember | None = None) -> None:
        """Add a tenant pod that was read."""
        pod = pod or make_member()
        self.pods.put_tenant(tenant_view(pod.uid))
        self.admission.put_member(pod)

    def admit_pod(self, *, node: str = "host-1", pool: PoolKey = POOL, borrowed: bool = True) -> None:
        admit = Admit(gang=GANG, pool=pool, nodes={"u1": node}, borrowed=borrowed, behind="alpha/y")
        self.admission.apply_admit(admit, now=self.now)

    def evict_pod(self, *, makes_room_for: str = "beta/x", deadline: float = 30.0) -> None:
        self.admission.apply_evict(
            Evict(
                gang=GANG,
                pods=("u1",),
                whole=True,
                makes_room_for=makes_room_for,
                deadline=self.now + deadline,
                lost=0.0,
            )
        )

    def get_verdict(self) -> Admission | None:
        return self.admission.verdict_store.verdicts.get("u1")

    def get_state(self) -> PodState | None:
        gangs, _ = self.admission.gangs.build_gangs()
        return gangs[0].pods[0].state if gangs else None

    def get_reason(self) -> str:
        """Return the pending reason of the pod without the arbiter."""
        _, holds = self.admission.gangs.build_gangs()
        return holds[0].message if holds else ""

    # -- notifications of a link
    # -------------------------------------------------------------------------------------------

    def compute_pod_changed(self, key: Key) -> None:
        self.admission.pod_changed(key)

    def compute_tokens_gone(self, key: Key) -> None: ...

    def compute_copy_changed(self, kind: Any, key: Key) -> None: ...

    def compute_namespace_changed(self, namespace: str) -> None: ...

    def compute_service_changed(self, key: Key) -> None: ...

    def compute_policy_changed(self, namespace: str) -> None: ...

    def compute_budget_changed(self, key: Key) -> None: ...

    def compute_names_changed(self) -> None: ...

    def compute_services_known(self) -> None: ...

    def compute_claim_changed(self, uid: str) -> None: ...

    def compute_storage_known(self) -> None: ...

    def compute_event_changed(self, link: str, key: Key) -> None: ...

    def compute_reachable(self) -> None: ...


# -- answers to reconcilers --------------------------------------------------------------------------------------------


def test_unread_pod_is_pending() -> None:
    assert Harness(waits=False).admission.admission_for("u1", NODE) == Admission(AdmissionState.PENDING)


def test_undecided_pod_is_pending() -> None:
    assert Harness().admission.admission_for("u1", NODE) == Admission(AdmissionState.PENDING)


def test_pod_of_a_waiting_gang_is_held_with_the_reason() -> None:
    harness = Harness()
    harness.admission.set_pending_reasons([pending_report(code=PendingReason.QUOTA, message="over")], pools={})
    assert harness.admission.admission_for("u1", NODE) == Admission(AdmissionState.HELD, "WaitingForQuota", "over")


def test_admitted_pod_gets_its_node() -> None:
    harness = Harness()
    harness.admit_pod(borrowed=False)
    assert harness.admission.admission_for("u1", NODE) == Admission(
        AdmissionState.ADMITTED, node="host-1", borrowed=False, behind="alpha/y"
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
    said = harness.admission.admission_for("u1", NODE)
    assert (said.verdict, said.code, said.deadline) == ("evicting", PREEMPTED, harness.now + 30)


def test_running_pod_is_admitted_unless_evicted() -> None:
    harness = Harness()
    assert harness.admission.running_admission("u1") == Admission(AdmissionState.ADMITTED)
    harness.admit_pod()
    assert harness.admission.running_admission("u1") == Admission(AdmissionState.ADMITTED, borrowed=True)
    harness.admission.apply_promote(Promote(gang=GANG, pods=("u1",)))
    assert harness.admission.running_admission("u1") == Admission(AdmissionState.ADMITTED, borrowed=False)
    harness.evict_pod()
    said = harness.admission.running_admission("u1")
    assert (said.verdict, said.deadline, said.grace, said.evicted_for) == ("evicting", harness.now + 30, 60.0, "beta/x")


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
    harness.admission.set_pending_reasons(
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
    harness.admission.apply_reprieve(Reprieve(gang=GANG, pods=("u1",)))
    verdict = harness.get_verdict()

    assert verdict is not None
    assert (verdict.verdict, verdict.deadline, verdict.evicted_for) == (AdmissionState.ADMITTED, 0.0, "")
    assert harness.get_state() is PodState.PLACED
    assert harness.looked[-1] == KEY


def test_promotion_is_recorded_and_enqueued() -> None:
    harness = Harness()
    harness.admit_pod(borrowed=True)
    harness.admission.apply_promote(Promote(gang=GANG, pods=("u1",)))
    assert harness.admission.admission_for("u1", NODE).borrowed is False


def test_new_reports_replace_old_ones_and_only_changes_are_enqueued() -> None:
    harness = Harness()
    harness.add_pod(make_member("u2"))
    harness.admission.set_pending_reasons([pending_report("u1"), pending_report("u2")], pools={GANG: POOL})
    assert sorted(harness.looked) == [KEY, ("default", "pod-u2")]
    pending = harness.admission.pending_message(make_member("u1"))
    assert pending is not None
    assert pending.text.startswith(pending.reason)

    harness.pods.requests.added.clear()
    harness.admission.set_pending_reasons(
        [pending_report("u1"), pending_report("u2", message="another")], pools={GANG: POOL}
    )
    assert harness.looked == [("default", "pod-u2")]

    harness.admission.set_pending_reasons([], pools={})
    assert harness.admission.pending_message(make_member("u1")) is None


def test_only_waiting_members_of_a_partly_running_gang_are_enqueued() -> None:
    harness = Harness(waits=False)
    group = f"{TENANT}/default/gang/train"
    harness.add_pod(make_member("u1", marks=gang_marks()))
    harness.add_pod(make_member("u2", marks=gang_marks()))
    harness.add_pod(make_member("cpu", marks=gang_marks(), governed=False))
    harness.admission.apply_admit(Admit(gang=group, pool=POOL, nodes={"u1": "host-1"}, borrowed=True), now=harness.now)
    harness.pods.requests.added.clear()
    harness.admission.set_pending_reasons([pending_report(), _hold_gang(group)], pools={})

    assert harness.looked == [("default", "pod-u2")]


def _hold_gang(gang: str) -> Any:
    harness = pending_report()
    return type(harness)(gang=gang, code=harness.code, message=harness.message)


# -- expiry ------------------------------------------------------------------------------------------------------------


def test_pod_evicted_before_forwarding_waits_again_at_its_deadline() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.evict_pod(deadline=30)
    harness.admission.expire_verdicts(harness.now + 29)
    assert harness.get_verdict() is not None

    harness.admission.expire_verdicts(harness.now + 30)
    assert harness.get_verdict() is None
    assert harness.get_state() is PodState.WAITING


def expire_admission(harness: Harness, seconds: float) -> None:
    harness.now += seconds
    harness.admission.expire_verdicts(harness.now)


def test_unbound_pod_releases_its_capacity_and_is_excluded_for_a_while() -> None:
    harness = Harness()
    harness.admit_pod()
    expire_admission(harness, 119)
    assert harness.get_state() is PodState.PLACED
    expire_admission(harness, 1)
    assert harness.get_verdict() is None
    assert "no scheduler of this cluster bound it" in harness.get_reason()
    expire_admission(harness, 299)
    assert harness.get_state() is None
    expire_admission(harness, 1)
    assert harness.get_state() is PodState.WAITING


def test_pod_with_a_stuck_gate_is_not_reported_as_unbound() -> None:
    harness = Harness()
    harness.pods.put_tenant(tenant_view(schedulingGates=[{"name": ADMISSION_GATE}]))
    harness.admit_pod()
    expire_admission(harness, 120)
    assert harness.get_reason() == "was admitted, but its gate could not be lifted; its capacity was released"


def test_pod_of_an_unreachable_tenant_releases_its_capacity() -> None:
    """The tenant's server could not remove the gate or show a binding, so the tenant's scheduler is not blamed."""
    harness = Harness()
    harness.admit_pod()
    set_followed(harness.scope, followed=False)
    expire_admission(harness, 120)
    assert harness.get_verdict() is None
    assert harness.get_reason().startswith("was admitted while this cluster's API server did not answer")
    expire_admission(harness, 3000)
    assert harness.get_state() is None
    set_followed(harness.scope, followed=True)
    harness.admission.pods_listed()
    assert harness.get_state() is PodState.WAITING
    assert harness.service.pokes


def test_bind_timeout_starts_after_the_tenant_is_reachable_again() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.now += 110
    harness.admission.pods_listed()
    assert harness.admission.next_deadline() == harness.now + 120
    expire_admission(harness, 119)
    assert harness.get_state() is PodState.PLACED
    expire_admission(harness, 1)
    assert harness.get_verdict() is None


def test_just_forwarded_pod_does_not_count_as_missing() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.sent["u1"] = harness.now + 60
    harness.evict_pod(deadline=30)
    harness.admission.expire_verdicts(harness.now + 30)
    assert harness.get_state() is PodState.NOTIFIED


def test_running_pod_stays_evicted_until_its_end() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.evict_pod(deadline=30)
    harness.admission.expire_verdicts(harness.now + 1000)
    assert harness.get_verdict() is not None


def test_next_deadline_is_the_earliest_of_evicted_pods() -> None:
    harness = Harness()
    assert harness.admission.next_deadline() is None
    harness.admit_pod()
    bound_by = harness.admission.next_deadline()
    assert bound_by == harness.now + 120, "by then the tenant's scheduler must have bound it"
    harness.evict_pod(deadline=30)
    assert harness.admission.next_deadline() == harness.now + 30
    harness.now += 30
    assert harness.admission.next_deadline() is None


def test_pod_that_no_node_took_waits_again_and_is_reverted() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view(node="", phase="Pending"))
    assert harness.get_state() is PodState.PLACED
    harness.admission.revert_compute_pod("u1", "below-u1")
    assert harness.get_state() is PodState.WAITING
    assert harness.get_verdict() is None

    harness.admit_pod(node="host-2")
    harness.admission.revert_compute_pod("u1", "below-u1")
    verdict = harness.get_verdict()
    assert verdict is not None, "the same compute pod is taken back once"
    assert verdict.node == "host-2"


def test_reverted_compute_pod_taken_by_a_node_counts_again() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view(node="", phase="Pending"))
    harness.admission.revert_compute_pod("u1", "below-u1")
    harness.admit_pod(node="host-2")
    harness.pods.put_compute(compute_view(node="host-1"))
    harness.admission.keep_compute_pod("u1", "another")
    verdict = harness.get_verdict()
    assert verdict is not None
    assert verdict.node == "host-2"

    harness.admission.keep_compute_pod("u1", "below-u1")
    assert harness.get_state() is PodState.PLACED
    verdict = harness.get_verdict()
    assert verdict is not None
    assert verdict.node == "host-1"


def test_reverted_state_is_dropped_with_its_pod() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view(node="", phase="Pending"))
    harness.admission.revert_compute_pod("u1", "below-u1")
    harness.pods.drop_tenant()
    harness.pods.drop_compute()
    harness.admission.pod_changed(KEY)

    assert not harness.admission._observer.reverted_pods
    assert harness.admission.gangs.find_member("u1") is None


def test_quota_change_rebuilds_all_gangs() -> None:
    harness = Harness()
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    pokes = harness.service.pokes
    first, _ = harness.admission.gangs.build_gangs()
    harness.admission.quotas_changed([quota])

    assert harness.admission.quotas == (quota,)
    assert harness.admission.gangs.build_gangs()[0][0] is not first[0]
    assert harness.service.pokes > pokes


# -- governed pods -----------------------------------------------------------------------------------------------------


def test_governed_pods_are_arbitrated() -> None:
    harness = Harness()
    harness.add_pod(make_member("cpu", governed=False, marks=gang_marks()))
    assert harness.admission.is_governed_pod("u1")
    assert not harness.admission.is_governed_pod("cpu")
    assert not harness.admission.is_governed_pod("nobody")


def test_changed_pod_is_enqueued() -> None:
    harness = Harness()
    harness.admit_pod()
    assert harness.get_state() is PodState.PLACED
    pokes = harness.service.pokes
    harness.pods.put_tenant(tenant_view(phase="Failed"))
    assert harness.admission.pod_changed(KEY) == []
    assert harness.service.pokes > pokes
    assert harness.get_state() is None


def test_pod_deleted_in_both_clusters_is_dropped() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.service.recounted.clear()
    harness.pods.drop_tenant()
    assert harness.admission.pod_changed(KEY) == []
    assert harness.get_state() is PodState.ENDING

    harness.pods.drop_compute()
    assert harness.admission.gangs.find_member("u1") is None
    assert harness.get_verdict() is None
    assert not harness.admission.is_governed_pod("u1")
    assert not harness.admission._last_states
    assert not harness.admission._accounting._start_times


@pytest.mark.parametrize(("phase", "minimum"), [("Succeeded", 1), ("Failed", 2)])
def test_completed_and_deleted_member_leaves_the_gang(phase: str, minimum: int) -> None:
    harness = Harness(waits=False)
    for uid in ("u1", "u2"):
        harness.add_pod(make_member(uid, marks=gang_marks(minimum=2)))
    harness.admission.apply_admit(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True), now=harness.now)
    harness.pods.put_compute(compute_view())
    harness.pods.put_compute(compute_view(phase=phase))
    harness.pods.put_tenant(tenant_view(phase=phase))
    harness.admission.pod_changed(KEY)
    harness.pods.drop_tenant()
    harness.pods.drop_compute()

    [gang], _ = harness.admission.gangs.build_gangs()
    assert [pod.uid for pod in gang.pods] == ["u2"]
    assert gang.minimum == minimum


def test_irrelevant_changes_trigger_no_cycle() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.admission.gangs.build_gangs()
    pokes = harness.service.pokes
    harness.pods.put_tenant(tenant_view(phase="Running"))
    harness.admission.pod_changed(KEY)
    harness.pods.put_compute(compute_view(annotations={"example.com/x": "y"}))

    assert harness.service.pokes == pokes


def test_usage_of_an_ended_pod_is_reported_once() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.admission.pod_changed(KEY)
    harness.pods.put_compute(compute_view())
    assert harness.service.ran == []
    harness.now += 60
    harness.pods.put_compute(compute_view(phase="Succeeded"))
    harness.pods.put_compute(compute_view(phase="Succeeded", deletionTimestamp="2026-03-01T12:30:00Z"))
    harness.pods.drop_tenant()
    harness.pods.drop_compute()

    assert [(ran.name, ran.start, ran.end, ran.end_reason) for ran in harness.service.ran] == [
        ("pod-u1", harness.now - 60, harness.now, "Succeeded")
    ]


def test_pod_that_never_ran_has_no_usage() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.admission.pod_changed(KEY)
    harness.pods.drop_tenant()
    harness.admission.pod_changed(KEY)
    assert harness.service.ran == []


def test_just_forwarded_pod_is_retained_until_shown_or_expired() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.sent["u1"] = harness.now + 30
    harness.pods.drop_tenant()
    assert harness.admission.pod_changed(KEY) == []
    assert harness.get_state() is PodState.ENDING

    harness.now += 30
    assert [pod.uid for pod in harness.admission.pod_changed(KEY)] == ["u1"]


def test_successor_of_the_same_name_leaves_its_predecessor_terminating() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.pods.put_tenant(tenant_view("u2", meta={"name": "pod-u1"}))
    harness.admission.put_member(make_member("u2", key=KEY))
    harness.admission.pod_changed(KEY)
    gangs, _ = harness.admission.gangs.build_gangs()

    assert {pod.uid: pod.state for gang in gangs for pod in gang.pods} == {
        "u1": PodState.ENDING,
        "u2": PodState.WAITING,
    }


def test_running_pod_is_recounted_when_it_is_read() -> None:
    harness = Harness(waits=False)
    harness.pods.put_compute(compute_view())
    harness.service.recounted.clear()
    harness.add_pod()
    assert harness.service.recounted == ["local/u1"]


# -- orphans -----------------------------------------------------------------------------------------------------------


def test_terminating_orphans_from_before_the_start_are_known() -> None:
    harness = Harness(waits=False)
    harness.pods.put_compute(compute_view("gone"))
    assert harness.admission.orphan_gangs() == [], "before everything is listed, absence is no fact"
    harness.admission.pods_listed()

    assert [gang.id for gang in harness.admission.orphan_gangs()] == ["alpha/default/gone/gone"]
    assert harness.admission.is_governed_pod("gone")
    assert harness.service.recounted == ["local/gone"]

    harness.pods.drop_compute("gone")
    assert harness.admission.orphan_gangs() == []
    assert not harness.admission.is_governed_pod("gone")


@pytest.mark.parametrize(
    "other",
    [
        {"phase": "Succeeded"},
        {"annotations": {COMPUTE_NODE_ANNOTATION: ""}},
        {"node": "", "phase": "Pending", "deletionTimestamp": "2026-03-01T12:30:00Z"},
    ],
    ids=["ended", "not placed", "never ran"],
)
def test_ended_or_unplaced_pods_are_no_orphans(other: dict[str, Any]) -> None:
    harness = Harness(waits=False)
    harness.pods.put_compute(compute_view("gone", **other))
    harness.admission.pods_listed()
    assert harness.admission.orphan_gangs() == []


def test_pods_with_an_owner_are_no_orphans() -> None:
    harness = Harness()
    harness.pods.put_compute(compute_view())
    harness.admission.pods_listed()
    assert harness.admission.orphan_gangs() == []

    harness.pods.put_compute(compute_view(annotations={UID_ANNOTATION: "an-earlier-one"}))
    assert [gang.id for gang in harness.admission.orphan_gangs()] == ["alpha/default/gone/an-earlier-one"]


def test_notice_on_an_orphan_is_ignored() -> None:
    harness = Harness(waits=False)
    harness.admission.pods_listed()
    harness.pods.put_compute(compute_view("gone", annotations={EVICTION_DEADLINE_ANNOTATION: "2026-03-01T12:30:00Z"}))
    gang = harness.admission.orphan_gangs()[0]
    assert gang.pods[0].state is PodState.ENDING


def test_complete_once_all_is_listed_and_read() -> None:
    harness = Harness()
    said = [harness.admission.is_known]
    harness.admission.pods_listed()
    said.append(harness.admission.is_known)
    harness.admission.reads.outdated.add("u9")
    said.append(harness.admission.is_known)
    harness.admission.reads.outdated.clear()
    harness.admission.reads.unread.add(KEY)
    said.append(harness.admission.is_known)
    assert said == [False, True, False, False]


def test_only_pods_created_after_the_first_list_are_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, arrived = Harness(waits=False), list[str]()
    monkeypatch.setattr(harness.service.start_meter, "pod_arrived", lambda _gang, uid, **_times: arrived.append(uid))
    harness.add_pod(make_member("read-before"))
    harness.admission.reads.unread.add(("default", "pod-listed"))
    harness.admission.pods_listed()
    for uid in ("listed", "new", "new"):
        harness.add_pod(make_member(uid))
    harness.admission.pods_listed()
    harness.add_pod(make_member("bound", bound=True))
    harness.add_pod(make_member("newer"))
    assert arrived == ["new", "newer"]


def test_running_pods_must_be_read_before_complete() -> None:
    harness = Harness(waits=False)
    harness.admission.pods_listed()
    harness.pods.put_tenant(tenant_view())
    harness.pods.put_compute(compute_view())
    said = [harness.admission.is_known]
    harness.admission.put_member(make_member(pools=(POOL, OTHER_POOL)))
    said.append(harness.admission.is_known)
    assert said == [False, True]


@pytest.mark.parametrize(
    ("other", "state"),
    [
        ({}, True),
        ({"deletionTimestamp": "2026-03-01T12:30:00Z"}, True),
        ({"phase": "Succeeded"}, False),
        ({"annotations": {COMPUTE_NODE_ANNOTATION: ""}}, False),
        ({"annotations": {UID_ANNOTATION: "an-earlier-one"}}, False),
    ],
    ids=["runs", "ends", "ended", "not placed", "another's"],
)
def test_compute_pod_of_a_tenant_pod_is_found(other: dict[str, Any], state: bool) -> None:
    harness = Harness()
    assert not harness.admission.runs_arbiter_placed(tenant_view())
    harness.pods.put_compute(compute_view(**other))
    assert harness.admission.runs_arbiter_placed(tenant_view()) is state


# -- verdict store -----------------------------------------------------------------------------------------------------


def test_verdict_is_dropped_by_uid() -> None:
    store = VerdictStore()
    store.verdicts["u1"] = Admission(verdict=AdmissionState.ADMITTED, pool=POOL, node="n", borrowed=True, since=0.0)
    store.forget_pod("u2")
    assert "u1" in store.verdicts
    store.forget_pod("u1")
    store.forget_pod("u1")
    assert store.verdicts == {}

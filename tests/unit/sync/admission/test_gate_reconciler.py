"""Scheduling gates: removed only from admitted pods; pending reasons are written after a delay, at a limited rate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import wait_until
from tests.unit.sync.admission.samples import (
    POOL,
    TENANT,
    PodStores,
    RecordingArbitration,
    compute_view,
    make_reference,
)
from tests.unit.sync.scopes import RecordedRequests, tenant_scope
from vkgateway.arbiter.decisions import Admit, Evict, PendingReason, PendingReport
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS, PODS, Resource
from vkgateway.model.names import ADMISSION_GATE, COMPUTE_NODE_ANNOTATION
from vkgateway.model.objects import Object
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.gate_reconciler import GateReconciler
from vkgateway.sync.admission.pod_reads import PodReads
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.translate.gangs import Reference
from vkgateway.translate.governed import CORDON_TAINT
from vkgateway.translate.node_sizes import SizeVerdict

KEY = ("default", "web")
GATE = {"name": ADMISSION_GATE}
GPU = {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
FREE: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}]}


class Harness:
    """Gate reconciler of one tenant with its API server; the clock stands still, and the test drives the watch."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.now = 1000.0
        self.pods = PodStores()
        self.requests = RecordedRequests()
        self.refused: list[str] = []
        self.judged: SizeVerdict | None = SizeVerdict()
        self.scope = tenant_scope(
            client, clock=lambda: self.now, links=self.pods.links, bindings=self.pods.bindings(), requests=self.requests
        )
        self.scope.cache = self.pods.scope.cache
        self.nodes = self.scope.virtual_nodes
        self.companions = CompanionObjects(self.scope)
        self.reads = PodReads(self.companions)
        self.admission = TenantAdmission(self.scope, RecordingArbitration(), self.reads)
        self.gates = GateReconciler(self.scope, self.admission, self.companions, reader=self, volumes=self, sizes=self)

    @property
    def later(self) -> list[tuple[Key, float]]:
        """Gates that are reconciled again, and the delay in seconds."""
        return [(request.key, delay) for request, delay in self.requests.added if request.kind == "gate" and delay]  # type: ignore[misc]

    @property
    def went_on(self) -> list[Key]:
        """Pods whose reconciliation was requested."""
        return [request.key for request, _ in self.requests.added if request.kind == "pod"]  # type: ignore[misc]

    def volume_terms(self, _pod: Object) -> list[list[Object]]:
        return []

    def judge_pod(self, _pod: Object) -> SizeVerdict | None:
        return self.judged

    async def read_pod(self, view: TenantPodView) -> bytes:
        found = await self.client.get(PODS, view.metadata.name, namespace=view.metadata.namespace)
        if decode_tenant_pod(found).metadata.uid != view.metadata.uid:
            raise errors.Conflict("another pod has the name now", status=409, reason="Conflict")
        return found

    async def reject_forbidden(self, view: TenantPodView, _pod: Object) -> bool:
        return view.metadata.name in self.refused

    def create_pod(self, *, meta: Object | None = None, **spec: Any) -> str:
        """Create a pod that the watch shows, and return its UID."""
        document = {"metadata": {"name": "web", **(meta or {})}, "spec": {**GPU, "schedulingGates": [GATE], **spec}}
        self.server.store.create(PODS, document, "default")
        return self.show_pod().metadata.uid

    def show_pod(self) -> TenantPodView:
        """Update the watch's view of the pod."""
        view = decode_tenant_pod(json.dumps(self.stored_pod()).encode())
        self.pods.put_tenant(view)
        return view

    def change_pod(self, **spec: Any) -> None:
        document = self.stored_pod()
        self.server.store.update(
            PODS, {**document, "spec": {**document["spec"], **spec}}, name="web", namespace="default"
        )
        self.show_pod()

    def stored_pod(self) -> Object:
        return self.server.store.get(PODS, "web", "default")

    async def reconcile_pod(self) -> None:
        await self.gates.reconcile(KEY)

    def admit_pod(self, uid: str) -> None:
        gang = f"{TENANT}/default/pod/{uid}"
        self.admission.apply_admit(Admit(gang=gang, pool=POOL, nodes={uid: "host-1"}, borrowed=True), now=self.now)

    def hold_pod(self, uid: str, message: str = "no room", code: PendingReason = PendingReason.ROOM) -> None:
        gang = f"{TENANT}/default/pod/{uid}"
        self.admission.set_pending_reasons([PendingReport(gang=gang, code=code, message=message)], pools={gang: POOL})

    def get_condition(self) -> tuple[str, str, str] | None:
        for entry in self.stored_pod()["status"].get("conditions", ()):
            if entry["type"] == "vkgateway.io/Admitted":
                return entry["status"], entry["reason"], entry["message"]
        return None

    def list_events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["type"]) for event in self.server.store.all(EVENTS)]

    def list_writes(self) -> int:
        return sum(1 for request in self.server.requests if "/pods/web" in request and not request.startswith("GET"))

    def is_gated(self) -> bool:
        return bool(self.stored_pod()["spec"].get("schedulingGates"))


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with FakeApiServer() as server, server.client() as client:
        yield Harness(server, client)


# -- removal of gates --------------------------------------------------------------------------------------------------


async def test_pod_is_read_once_and_stays_gated_until_admission(harness: Harness) -> None:
    uid = harness.create_pod()
    harness.reads.unread.add(KEY)
    await harness.reconcile_pod()
    await harness.reconcile_pod()

    assert harness.admission.gangs.find_member(uid) is not None
    assert harness.reads.unread == set()
    assert harness.is_gated()
    assert harness.list_writes() == 0
    assert len(harness.server.requests) == 1

    harness.admit_pod(uid)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.stored_pod()["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "a100.local"}
    assert harness.get_condition() is None


async def test_pod_evicted_before_its_gate_is_removed_stays_gated(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    gang = f"{TENANT}/default/pod/{uid}"
    harness.admission.apply_evict(
        Evict(gang=gang, pods=(uid,), whole=True, makes_room_for="alpha/x", deadline=harness.now + 30, lost=0.0)
    )
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_with_other_gates_is_not_ungated_before_they_are_removed(harness: Harness) -> None:
    uid = harness.create_pod(schedulingGates=[GATE, {"name": "example.com/x"}])
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    await harness.reconcile_pod()
    assert harness.is_gated()

    harness.change_pod(schedulingGates=[GATE])
    await harness.reconcile_pod()
    assert not harness.is_gated()


@pytest.mark.parametrize("meta", [{"deletionTimestamp": "2026-03-01T12:30:00Z"}, None])
async def test_deleted_pod_is_left_alone(harness: Harness, meta: Object | None) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    if meta is None:
        harness.pods.above.store.clear()
        harness.reads.unread.add(KEY)
    else:
        harness.stored_pod()["metadata"].update(meta)
        harness.show_pod()
    await harness.reconcile_pod()
    assert harness.list_writes() == 0
    assert harness.reads.unread == set()


@pytest.mark.parametrize("status", [404, 409])
async def test_pod_deleted_during_the_request_is_no_error(harness: Harness, status: int) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    harness.server.fail("PATCH", "/pods/web", status=status, reason="NotFound" if status == 404 else "Conflict")
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_of_the_same_name_is_not_ungated_for_its_predecessor(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    harness.server.store.delete(PODS, "web", "default")
    harness.server.store.create(
        PODS, {"metadata": {"name": "web"}, "spec": {**GPU, "schedulingGates": [GATE]}}, "default"
    )
    await harness.reconcile_pod()
    assert harness.is_gated()


@pytest.mark.parametrize(
    "meta",
    [{}, {"labels": {"spark-app-selector": "pi", "spark-role": "executor"}}],
    ids=["alone", "member"],
)
async def test_only_our_gate_of_an_ungoverned_pod_is_removed(harness: Harness, meta: Object) -> None:
    harness.create_pod(meta=meta, **FREE, schedulingGates=[{"name": "example.com/x"}, GATE])
    await harness.reconcile_pod()
    assert harness.stored_pod()["spec"]["schedulingGates"] == [{"name": "example.com/x"}]
    assert "nodeSelector" not in harness.stored_pod()["spec"]


async def test_pod_without_devices_that_fits_no_node_stays_gated_with_a_reason(harness: Harness) -> None:
    harness.judged = SizeVerdict(reason="no machine of a100.local has cpu 100; a pod can have cpu 96 at most")
    harness.create_pod(**FREE)
    await harness.reconcile_pod()
    harness.now += 2
    await harness.reconcile_pod()
    assert harness.is_gated()
    [condition] = harness.stored_pod()["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("Infeasible", harness.judged.reason)
    assert harness.list_events() == [("Infeasible", "Warning")]

    harness.judged = SizeVerdict(nodes=("a100.local",), is_narrowed=True)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.stored_pod()["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "a100.local"}


async def test_pod_of_unknown_node_sizes_stays_gated(harness: Harness) -> None:
    harness.judged = None
    harness.create_pod(**FREE)
    await harness.reconcile_pod()
    assert harness.is_gated()
    assert "conditions" not in harness.stored_pod().get("status", {})


async def test_unread_pod_does_not_count_as_ungoverned(harness: Harness) -> None:
    harness.create_pod()
    harness.server.fail("GET", "/pods/web", status=404, reason="NotFound")
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_that_violates_policy_fails(harness: Harness) -> None:
    uid = harness.create_pod()
    harness.refused.append("web")
    harness.reads.unread.add(KEY)
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None
    assert harness.reads.unread == set()
    assert harness.is_gated()


async def test_pod_failed_by_a_stricter_policy_is_not_expected(harness: Harness) -> None:
    """Until all lists are complete, no completion is recorded."""
    uid = harness.create_pod()
    await harness.reconcile_pod()
    said = [harness.reads.is_settled]
    harness.gates.pools_changed()
    said.append(harness.reads.is_settled)
    harness.refused.append("web")
    await harness.reconcile_pod()
    assert [*said, harness.reads.is_settled] == [True, False, True]
    assert harness.admission.gangs.find_member(uid) is not None


async def test_pods_without_gate_or_gang_are_not_read(harness: Harness) -> None:
    harness.create_pod(schedulingGates=[])
    await harness.reconcile_pod()
    assert harness.server.requests == []

    harness.change_pod(schedulingGates=[GATE])
    harness.stored_pod()["status"]["phase"] = "Failed"
    harness.show_pod()
    await harness.reconcile_pod()
    assert harness.server.requests == []


async def test_changed_pod_is_read_again(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.change_pod(priority=5)
    await harness.reconcile_pod()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.priority == 5


async def test_pod_without_its_former_marks_leaves_its_gang(harness: Harness) -> None:
    marked = {"annotations": {"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}}
    uid = harness.create_pod(meta=marked, **FREE, schedulingGates=[])
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is not None

    harness.stored_pod()["metadata"]["annotations"].clear()
    view = harness.show_pod()
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.gates.needs_read(view)


async def test_pods_are_read_again_after_their_size_object_changed(harness: Harness) -> None:
    uid = harness.create_pod(meta={"annotations": {"scheduling.k8s.io/group-name": "train"}})
    await harness.reconcile_pod()
    view = harness.show_pod()
    assert not harness.gates.needs_read(view)
    assert harness.gates.companion_changed(make_reference("another")) == []
    assert harness.gates.companion_changed(make_reference()) == [KEY]
    assert harness.gates.needs_read(view)

    await harness.reconcile_pod()
    assert not harness.gates.needs_read(view)
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    harness.gates.companion_changed(make_reference())
    harness.gates.forget_member(member)
    assert harness.gates.companion_changed(make_reference()) == []
    assert not harness.gates._pods_by_companion
    assert not harness.reads.outdated


# -- marks of unserved kinds -------------------------------------------------------------------------------------------

LABEL: dict[str, Any] = {"labels": {"scheduling.x-k8s.io/pod-group": "web"}}
GROUP = Reference("scheduling.x-k8s.io", "PodGroup", "podgroups", "default", "web")
MARKS = [
    pytest.param(LABEL, {}, id="coscheduling"),
    pytest.param({"annotations": {"scheduling.k8s.io/group-name": "g"}}, {}, id="volcano"),
    pytest.param({"labels": {"ray.io/cluster": "c", "ray.io/node-type": "head"}}, {}, id="ray"),
    pytest.param({"labels": {"ray.io/cluster": "c"}}, {}, id="ray, the label alone"),
    pytest.param(
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": "r"}},
        {},
        id="jobset",
    ),
    pytest.param(
        {"labels": {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"}},
        {},
        id="lws",
    ),
    pytest.param(
        {
            "labels": {
                "training.kubeflow.org/job-name": "j",
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
            }
        },
        {},
        id="training",
    ),
    pytest.param({"labels": {"training.kubeflow.org/job-name": "j"}}, {}, id="training, of no kind"),
    pytest.param({}, {"schedulingGroup": {"podGroupName": "g"}}, id="podgroup"),
    pytest.param({}, {"workloadRef": {"name": "w", "podGroup": "g"}}, id="workload"),
]


@pytest.mark.parametrize(("meta", "spec"), MARKS)
async def test_pod_without_devices_is_ungated_if_the_mark_kind_is_not_served(
    harness: Harness, meta: Object, spec: dict[str, Any]
) -> None:
    uid = harness.create_pod(meta=meta, **FREE, **spec)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.gates.needs_read(harness.show_pod()), "it is not read again"
    assert not harness.gates.must_read(harness.show_pod())

    harness.gates.pod_deleted(uid)
    assert not harness.gates.ordinary._marks


@pytest.mark.parametrize(
    "kind",
    [
        Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"),
        Resource("apis/scheduling.x-k8s.io/v1beta7", "podgroups", "PodGroup"),
    ],
    ids=["v1alpha1", "any version"],
)
async def test_pod_waits_if_the_mark_kind_is_served(harness: Harness, kind: Resource) -> None:
    harness.server.register(kind)
    uid = harness.create_pod(meta=LABEL, **FREE)
    await harness.reconcile_pod()
    assert harness.is_gated()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.is_unserved) == (GROUP, False)


async def test_pod_with_another_valid_mark_waits(harness: Harness) -> None:
    harness.create_pod(
        meta={**LABEL, "annotations": {"vkgateway.io/gang": "web", "vkgateway.io/gang-size": "2"}}, **FREE
    )
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_with_devices_waits_with_the_unserved_kind_as_reason(harness: Harness) -> None:
    uid = harness.create_pod(meta=LABEL)
    await harness.reconcile_pod()
    assert harness.is_gated()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.is_unserved) == (GROUP, True)


@pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503])
async def test_server_error_does_not_make_a_gang_member_ordinary(harness: Harness, status: int) -> None:
    harness.server.fail("GET", "/apis/scheduling.x-k8s.io", status=status, times=100)
    uid = harness.create_pod(meta=LABEL, **FREE)
    await harness.reconcile_pod()
    assert harness.is_gated()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.governed

    harness.server.heal()
    assert harness.gates.kind_changed(make_reference().object_kind) == [], "it waits for another kind"
    assert harness.gates.kind_changed(GROUP.object_kind) == [KEY]
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.gates._pods_by_companion
    assert not harness.reads.outdated


async def test_timeout_does_not_make_a_gang_member_ordinary(harness: Harness) -> None:
    answered = harness.server.hold("GET", "/apis/scheduling.x-k8s.io")
    harness.create_pod(meta=LABEL, **FREE)
    look = asyncio.create_task(harness.reconcile_pod())
    await wait_until(lambda: "GET /apis/scheduling.x-k8s.io" in harness.server.requests)
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    await asyncio.sleep(0.05)
    assert harness.is_gated(), "before the answer nothing is done"
    answered.set()
    await look
    assert harness.is_gated()


async def test_waiting_pod_is_notified_once_its_mark_has_no_meaning(harness: Harness) -> None:
    harness.server.fail("GET", "/apis/scheduling.x-k8s.io", status=503)
    harness.create_pod(meta=LABEL, **FREE)
    await harness.reconcile_pod()
    gang = f"{TENANT}/default/coscheduling/web"
    harness.admission.set_pending_reasons(
        [PendingReport(gang=gang, code=PendingReason.MEMBERS, message="is not there")], pools={}
    )
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    assert (harness.get_condition() or ("", ""))[:2] == ("False", "WaitingForMembers")
    harness.show_pod()
    harness.gates.kind_changed(GROUP.object_kind)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert (harness.get_condition() or ("", ""))[:2] == ("True", "Admitted")


async def test_pod_deleted_during_the_lookup_is_not_added(harness: Harness) -> None:
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    answered = harness.server.hold("GET", "/apis/scheduling.x-k8s.io")
    uid = harness.create_pod(meta=LABEL, **FREE)
    look = asyncio.create_task(harness.reconcile_pod())
    await wait_until(lambda: "GET /apis/scheduling.x-k8s.io" in harness.server.requests)
    harness.pods.above.store.clear()
    answered.set()
    await look
    assert harness.admission.gangs.find_member(uid) is None


async def test_verdict_holds_after_installation_of_the_kind_until_marks_change(harness: Harness) -> None:
    uid = harness.create_pod(meta=LABEL, **FREE)
    harness.judged = None  # so that the pod stays gated
    await harness.reconcile_pod()
    assert harness.gates.ordinary.is_ordinary(harness.show_pod())
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    harness.change_pod(priority=5)
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None

    harness.stored_pod()["metadata"]["annotations"] = {"vkgateway.io/gang": "web", "vkgateway.io/gang-size": "2"}
    harness.show_pod()
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is not None


async def test_bound_pod_is_released_once_its_mark_has_no_meaning(harness: Harness) -> None:
    harness.create_pod(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    await harness.reconcile_pod()
    assert harness.went_on == [KEY]


@pytest.mark.parametrize("seen", ["first", "later"])
async def test_ordinary_running_pod_stays_ordinary_after_installation_of_the_kind(harness: Harness, seen: str) -> None:
    """As after a restart; with `later`, the compute pod is seen only after the pod was read."""
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    uid = harness.create_pod(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    runs = compute_view(uid, name="web", annotations={COMPUTE_NODE_ANNOTATION: ""})
    if seen == "first":
        harness.pods.put_compute(runs)
    await harness.reconcile_pod()
    if seen == "later":
        assert harness.admission.gangs.find_member(uid) is not None
        harness.pods.put_compute(runs)
        assert harness.gates.compute_pod_changed(KEY)
        await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.gates.compute_pod_changed(KEY)


@pytest.mark.parametrize("seen", ["first", "later"])
async def test_placed_pod_stays_governed_after_removal_of_the_kind(harness: Harness, seen: str) -> None:
    uid = harness.create_pod(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    if seen == "first":
        harness.pods.put_compute(compute_view(uid, name="web"))
    await harness.reconcile_pod()
    if seen == "later":
        assert harness.admission.gangs.find_member(uid) is None
        harness.pods.put_compute(compute_view(uid, name="web"))
        assert harness.gates.compute_pod_changed(KEY)
        await harness.reconcile_pod()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.governed
    assert not harness.gates.compute_pod_changed(KEY)


# -- pending reports ---------------------------------------------------------------------------------------------------


async def test_pending_reason_is_written_after_a_second(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    assert harness.get_condition() is None
    assert harness.list_events() == []
    assert harness.later == [(KEY, 1.0)]

    harness.now += 1
    await harness.reconcile_pod()
    assert harness.get_condition() == ("False", "WaitingForRoom", "no room")
    assert harness.list_events() == [("WaitingForRoom", "Normal")]


async def test_pending_pod_is_written_at_most_twice_a_minute(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    for second in range(1, 62):
        harness.now = 1000.0 + second
        harness.hold_pod(uid, message=f"no room: {second}")
        harness.show_pod()
        await harness.reconcile_pod()
    assert harness.list_writes() == 3, "after 1, 31 and 61 seconds"
    assert (harness.get_condition() or ("", "", ""))[2] == "no room: 61"
    assert harness.list_events() == [("WaitingForRoom", "Normal")]


async def test_reconcile_is_requested_for_the_next_report(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    harness.now += 10
    harness.hold_pod(uid, message="still no room")
    harness.requests.added.clear()
    await harness.reconcile_pod()
    assert harness.later == [(KEY, 20.0)]


async def test_unchanged_reason_is_not_written_again(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    harness.show_pod()
    writes = harness.list_writes()
    for _ in range(5):
        harness.now += 100
        await harness.reconcile_pod()
    assert harness.list_writes() == writes


async def test_each_new_reason_is_an_event_and_permanent_ones_are_warnings(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    for code in (PendingReason.ROOM, PendingReason.QUOTA, PendingReason.INFEASIBLE, PendingReason.INVALID):
        harness.now += 31
        harness.hold_pod(uid, code=code)
        await harness.reconcile_pod()
        harness.show_pod()
    assert harness.list_events() == [
        ("WaitingForRoom", "Normal"),
        ("WaitingForQuota", "Normal"),
        ("Infeasible", "Warning"),
        ("Invalid", "Warning"),
    ]


async def test_failed_report_is_retried(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    harness.server.fail("PATCH", "/pods/web/status", status=503)
    with pytest.raises(errors.ApiError):
        await harness.reconcile_pod()
    assert harness.get_condition() is None

    await harness.reconcile_pod()
    assert harness.get_condition() == ("False", "WaitingForRoom", "no room")
    assert harness.list_events() == [("WaitingForRoom", "Normal")]


async def test_conditions_of_others_are_not_changed(harness: Harness) -> None:
    uid = harness.create_pod()
    theirs = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    # The watch has not shown the condition of their scheduler yet.
    harness.server.store.update(
        PODS,
        harness.stored_pod() | {"status": {"phase": "Pending", "conditions": [theirs]}},
        name="web",
        namespace="default",
        status=True,
    )
    harness.now += 1
    await harness.reconcile_pod()
    assert [entry["type"] for entry in harness.stored_pod()["status"]["conditions"]] == [
        "PodScheduled",
        "vkgateway.io/Admitted",
    ]
    assert harness.stored_pod()["status"]["conditions"][0] == theirs


async def test_admitted_pod_gets_a_condition_after_a_pending_one(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    harness.show_pod()
    harness.admit_pod(uid)
    await harness.reconcile_pod()
    assert (harness.get_condition() or ("", ""))[:2] == ("True", "Admitted")
    assert not harness.is_gated()


async def test_forgotten_pod_is_reported_again(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.gates.forget_member(member)
    assert not harness.gates._reporter._pod_reports


async def test_ungoverned_members_get_no_report(harness: Harness) -> None:
    marked = {"annotations": {"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}}
    harness.create_pod(meta=marked, **FREE, schedulingGates=[])
    await harness.reconcile_pod()
    gang = f"{TENANT}/default/gang/train"
    harness.admission.set_pending_reasons(
        [PendingReport(gang=gang, code=PendingReason.MEMBERS, message="1 of 2")], pools={}
    )
    harness.now += 100
    await harness.reconcile_pod()
    await harness.reconcile_pod()
    assert harness.list_writes() == 0
    assert harness.list_events() == []


# -- the tenant's labels and taints on virtual nodes -------------------------------------------------------------------


async def test_pod_is_read_again_after_its_virtual_node_is_cordoned_or_uncordoned(harness: Harness) -> None:
    uid = harness.create_pod(nodeSelector={"vkgateway.io/pool": POOL[1]})
    await harness.reconcile_pod()
    assert harness.admission.gangs.members_named(KEY)[0].pools == (POOL,)

    name = next(name for name, binding in harness.pods.bindings().items() if binding.pool.name == POOL[1])
    for taints, pools in (((CORDON_TAINT,), ()), ((), (POOL,))):
        harness.nodes[name] = ({}, taints)
        harness.gates.pools_changed()
        await harness.reconcile_pod()
        member = harness.admission.gangs.find_member(uid)
        assert member is not None
        assert member.pools == pools

"""Gates: lifted for who was admitted, and for nobody else; who waits is told why, not too soon and not too often."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.sync.admission.samples import POOL, TENANT, Pods, Service, below, reference
from tests.unit.sync.world import until
from vkgateway.arbiter.decisions import Admit, Evict, PendingReason, PendingReport
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS, PODS, Resource
from vkgateway.model.names import ADMISSION_GATE, COMPUTE_NODE_ANNOTATION
from vkgateway.model.objects import Object
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.gate_reconciler import GateReconciler
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.translate.gangs import Reference
from vkgateway.translate.governed import CORDON_TAINT, VirtualNode
from vkgateway.translate.node_sizes import SizeVerdict

KEY = ("default", "web")
GATE = {"name": ADMISSION_GATE}
GPU = {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
FREE: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}]}


class Made:
    """One tenant's gates before its API server; time stands still, and what the watch shows is told by hand."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.now = 1000.0
        self.pods = Pods()
        self.nodes: dict[str, VirtualNode] = {}
        self.later: list[tuple[Key, float]] = []
        self.went_on: list[Key] = []
        self.refused: list[str] = []
        self.judged: SizeVerdict | None = SizeVerdict()
        self.admission = TenantAdmission(
            TENANT,
            self.pods.above,
            links=self.pods.links,
            bindings=self.pods.bindings(),
            service=Service(),
            sent={},
            look=lambda _key: None,
            clock=lambda: self.now,
        )
        self.beside = CompanionObjects(TENANT, client, changed=lambda _reference: None)
        self.gates = GateReconciler(
            self.admission,
            client,
            self.pods.above,
            bindings=self.pods.bindings(),
            nodes=self.nodes,
            beside=self.beside,
            events=EventRecorder(client, clock=lambda: self.now),
            whole=self._whole,
            refuse=self._refuse,
            machines=lambda _pod: self.judged,
            later=lambda key, seconds: self.later.append((key, seconds)),
            go_on=self.went_on.append,
            clock=lambda: self.now,
            monotonic=lambda: self.now,
        )

    async def _whole(self, view: TenantPodView) -> bytes:
        found = await self.client.get(PODS, view.metadata.name, namespace=view.metadata.namespace)
        if decode_tenant_pod(found).metadata.uid != view.metadata.uid:
            raise errors.Conflict("another pod has the name now", status=409, reason="Conflict")
        return found

    async def _refuse(self, view: TenantPodView, _pod: Object) -> bool:
        return view.metadata.name in self.refused

    def create(self, *, meta: Object | None = None, **spec: Any) -> str:
        """A pod that the watch shows; its uid."""
        document = {"metadata": {"name": "web", **(meta or {})}, "spec": {**GPU, "schedulingGates": [GATE], **spec}}
        self.server.store.create(PODS, document, "default")
        return self.show().metadata.uid

    def show(self) -> TenantPodView:
        """What the watch shows now."""
        view = decode_tenant_pod(json.dumps(self.stored()).encode())
        self.pods.put_above(view)
        return view

    def change(self, **spec: Any) -> None:
        document = self.stored()
        self.server.store.update(
            PODS, {**document, "spec": {**document["spec"], **spec}}, name="web", namespace="default"
        )
        self.show()

    def stored(self) -> Object:
        return self.server.store.get(PODS, "web", "default")

    async def look(self) -> None:
        await self.gates.reconcile(KEY)

    def admit(self, uid: str) -> None:
        gang = f"{TENANT}/default/pod/{uid}"
        self.admission.apply_admit(Admit(gang=gang, pool=POOL, nodes={uid: "host-1"}, borrowed=True), now=self.now)

    def hold(self, uid: str, message: str = "no room", code: PendingReason = PendingReason.ROOM) -> None:
        gang = f"{TENANT}/default/pod/{uid}"
        self.admission.set_pending_reasons([PendingReport(gang=gang, code=code, message=message)], pools={gang: POOL})

    def condition(self) -> tuple[str, str, str] | None:
        for entry in self.stored()["status"].get("conditions", ()):
            if entry["type"] == "vkgateway.io/Admitted":
                return entry["status"], entry["reason"], entry["message"]
        return None

    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["type"]) for event in self.server.store.all(EVENTS)]

    def writes(self) -> int:
        return sum(1 for request in self.server.requests if "/pods/web" in request and not request.startswith("GET"))

    def gated(self) -> bool:
        return bool(self.stored()["spec"].get("schedulingGates"))


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    async with FakeApiServer() as server, server.client() as client:
        yield Made(server, client)


# -- lifting -----------------------------------------------------------------------------------------------------------


async def test_a_pod_is_read_once_and_stays_gated_until_it_is_admitted(made: Made) -> None:
    uid = made.create()
    made.admission.unread_pods.add(KEY)
    await made.look()
    await made.look()

    assert made.admission.gangs.find_member(uid) is not None
    assert made.admission.unread_pods == set()
    assert made.gated()
    assert made.writes() == 0
    assert len(made.server.requests) == 1

    made.admit(uid)
    await made.look()
    assert not made.gated()
    assert made.stored()["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "a100.local"}
    assert made.condition() is None


async def test_who_is_told_to_go_before_it_was_let_go_stays(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.admit(uid)
    gang = f"{TENANT}/default/pod/{uid}"
    made.admission.apply_evict(
        Evict(gang=gang, pods=(uid,), whole=True, makes_room_for="alpha/x", deadline=made.now + 30, lost=0.0)
    )
    await made.look()
    assert made.gated()


async def test_one_with_other_gates_is_not_let_go_before_these_are_off(made: Made) -> None:
    uid = made.create(schedulingGates=[GATE, {"name": "example.com/x"}])
    await made.look()
    made.admit(uid)
    await made.look()
    assert made.gated()

    made.change(schedulingGates=[GATE])
    await made.look()
    assert not made.gated()


@pytest.mark.parametrize("meta", [{"deletionTimestamp": "2026-03-01T12:30:00Z"}, None])
async def test_one_that_is_deleted_or_gone_is_left_alone(made: Made, meta: Object | None) -> None:
    uid = made.create()
    await made.look()
    made.admit(uid)
    if meta is None:
        made.pods.above.store.clear()
        made.admission.unread_pods.add(KEY)
    else:
        made.stored()["metadata"].update(meta)
        made.show()
    await made.look()
    assert made.writes() == 0
    assert made.admission.unread_pods == set()


@pytest.mark.parametrize("status", [404, 409])
async def test_one_that_went_meanwhile_is_no_error(made: Made, status: int) -> None:
    uid = made.create()
    await made.look()
    made.admit(uid)
    made.server.fail("PATCH", "/pods/web", status=status, reason="NotFound" if status == 404 else "Conflict")
    await made.look()
    assert made.gated()


async def test_a_namesake_is_not_let_go_for_its_forerunner(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.admit(uid)
    made.server.store.delete(PODS, "web", "default")
    made.server.store.create(PODS, {"metadata": {"name": "web"}, "spec": {**GPU, "schedulingGates": [GATE]}}, "default")
    await made.look()
    assert made.gated()


@pytest.mark.parametrize(
    "meta",
    [{}, {"labels": {"spark-app-selector": "pi", "spark-role": "executor"}}],
    ids=["alone", "member"],
)
async def test_our_gate_on_a_pod_that_asks_for_nothing_governed_is_lifted_and_no_other(
    made: Made, meta: Object
) -> None:
    made.create(meta=meta, **FREE, schedulingGates=[{"name": "example.com/x"}, GATE])
    await made.look()
    assert made.stored()["spec"]["schedulingGates"] == [{"name": "example.com/x"}]
    assert "nodeSelector" not in made.stored()["spec"]


async def test_a_pod_without_devices_that_fits_no_machine_stays_gated_and_reads_why(made: Made) -> None:
    made.judged = SizeVerdict(reason="no machine of a100.local has cpu 100; a pod can have cpu 96 at most")
    made.create(**FREE)
    await made.look()
    made.now += 2
    await made.look()
    assert made.gated()
    [condition] = made.stored()["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("Infeasible", made.judged.reason)
    assert made.events() == [("Infeasible", "Warning")]

    made.judged = SizeVerdict(nodes=("a100.local",), is_narrowed=True)
    await made.look()
    assert not made.gated()
    assert made.stored()["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "a100.local"}


async def test_a_pod_whose_size_cannot_be_judged_yet_stays_gated(made: Made) -> None:
    made.judged = None
    made.create(**FREE)
    await made.look()
    assert made.gated()
    assert "conditions" not in made.stored().get("status", {})


async def test_a_pod_that_could_not_be_read_is_not_taken_for_one_that_asks_for_nothing(made: Made) -> None:
    made.create()
    made.server.fail("GET", "/pods/web", status=404, reason="NotFound")
    await made.look()
    assert made.gated()


async def test_a_pod_that_breaks_policy_is_not_let_wait(made: Made) -> None:
    uid = made.create()
    made.refused.append("web")
    made.admission.unread_pods.add(KEY)
    await made.look()
    assert made.admission.gangs.find_member(uid) is None
    assert made.admission.unread_pods == set()
    assert made.gated()


async def test_a_pod_that_a_stricter_policy_fails_is_not_waited_for(made: Made) -> None:
    """Until all is settled, nobody who is done is written down."""
    uid = made.create()
    await made.look()
    said = [made.gates.is_settled]
    made.gates.pools_changed()
    said.append(made.gates.is_settled)
    made.refused.append("web")
    await made.look()
    assert [*said, made.gates.is_settled] == [True, False, True]
    assert made.admission.gangs.find_member(uid) is not None


async def test_pods_without_gate_or_gang_are_not_read(made: Made) -> None:
    made.create(schedulingGates=[])
    await made.look()
    assert made.server.requests == []

    made.change(schedulingGates=[GATE])
    made.stored()["status"]["phase"] = "Failed"
    made.show()
    await made.look()
    assert made.server.requests == []


async def test_a_pod_that_changed_is_read_again(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.change(priority=5)
    await made.look()
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    assert member.priority == 5


async def test_a_pod_whose_marks_are_taken_off_is_of_its_gang_no_more(made: Made) -> None:
    marked = {"annotations": {"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}}
    uid = made.create(meta=marked, **FREE, schedulingGates=[])
    await made.look()
    assert made.admission.gangs.find_member(uid) is not None

    made.stored()["metadata"]["annotations"].clear()
    view = made.show()
    await made.look()
    assert made.admission.gangs.find_member(uid) is None
    assert not made.gates.needs_read(view)


async def test_pods_are_read_again_when_what_says_their_size_changed(made: Made) -> None:
    uid = made.create(meta={"annotations": {"scheduling.k8s.io/group-name": "train"}})
    await made.look()
    view = made.show()
    assert not made.gates.needs_read(view)
    assert made.gates.companion_changed(reference("another")) == []
    assert made.gates.companion_changed(reference()) == [KEY]
    assert made.gates.needs_read(view)

    await made.look()
    assert not made.gates.needs_read(view)
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    made.gates.companion_changed(reference())
    made.gates.forget_member(member)
    assert made.gates.companion_changed(reference()) == []
    assert not made.gates._pods_by_companion
    assert not made.gates._outdated


# -- marks whose kind is not served ------------------------------------------------------------------------------------

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
async def test_a_pod_without_devices_is_let_go_where_the_kind_of_its_mark_is_not_served(
    made: Made, meta: Object, spec: dict[str, Any]
) -> None:
    uid = made.create(meta=meta, **FREE, **spec)
    await made.look()
    assert not made.gated()
    assert made.admission.gangs.find_member(uid) is None
    assert not made.gates.needs_read(made.show()), "it is not read again"
    assert not made.gates.must_read(made.show())

    made.gates.pod_deleted(uid)
    assert not made.gates.ordinary._marks


@pytest.mark.parametrize(
    "kind",
    [
        Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"),
        Resource("apis/scheduling.x-k8s.io/v1beta7", "podgroups", "PodGroup"),
    ],
    ids=["v1alpha1", "any version"],
)
async def test_where_the_kind_is_served_it_waits(made: Made, kind: Resource) -> None:
    made.server.register(kind)
    uid = made.create(meta=LABEL, **FREE)
    await made.look()
    assert made.gated()
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.is_unserved) == (GROUP, False)


async def test_one_that_carries_a_mark_that_counts_too_waits(made: Made) -> None:
    made.create(meta={**LABEL, "annotations": {"vkgateway.io/gang": "web", "vkgateway.io/gang-size": "2"}}, **FREE)
    await made.look()
    assert made.gated()


async def test_a_pod_with_devices_waits_and_knows_that_the_kind_is_not_served(made: Made) -> None:
    uid = made.create(meta=LABEL)
    await made.look()
    assert made.gated()
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.is_unserved) == (GROUP, True)


@pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503])
async def test_an_error_of_the_server_makes_no_lone_pod_of_a_gang(made: Made, status: int) -> None:
    made.server.fail("GET", "/apis/scheduling.x-k8s.io", status=status, times=100)
    uid = made.create(meta=LABEL, **FREE)
    await made.look()
    assert made.gated()
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    assert member.governed

    made.server.heal()
    assert made.gates.kind_changed(reference().object_kind) == [], "it waits for another kind"
    assert made.gates.kind_changed(GROUP.object_kind) == [KEY]
    await made.look()
    assert not made.gated()
    assert made.admission.gangs.find_member(uid) is None
    assert not made.gates._pods_by_companion
    assert not made.gates._outdated


async def test_a_time_out_makes_no_lone_pod_of_a_gang(made: Made) -> None:
    answered = made.server.hold("GET", "/apis/scheduling.x-k8s.io")
    made.create(meta=LABEL, **FREE)
    look = asyncio.create_task(made.look())
    await until(lambda: "GET /apis/scheduling.x-k8s.io" in made.server.requests)
    made.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    await asyncio.sleep(0.05)
    assert made.gated(), "before the answer nothing is done"
    answered.set()
    await look
    assert made.gated()


async def test_a_pod_that_was_told_to_wait_is_told_that_it_may_start_once_its_mark_means_nothing(made: Made) -> None:
    made.server.fail("GET", "/apis/scheduling.x-k8s.io", status=503)
    made.create(meta=LABEL, **FREE)
    await made.look()
    gang = f"{TENANT}/default/coscheduling/web"
    made.admission.set_pending_reasons(
        [PendingReport(gang=gang, code=PendingReason.MEMBERS, message="is not there")], pools={}
    )
    await made.look()
    made.now += 1
    await made.look()
    assert (made.condition() or ("", ""))[:2] == ("False", "WaitingForMembers")
    made.show()
    made.gates.kind_changed(GROUP.object_kind)
    await made.look()
    assert not made.gated()
    assert (made.condition() or ("", ""))[:2] == ("True", "Admitted")


async def test_a_pod_that_is_deleted_while_the_server_is_asked_is_not_taken_in(made: Made) -> None:
    made.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    answered = made.server.hold("GET", "/apis/scheduling.x-k8s.io")
    uid = made.create(meta=LABEL, **FREE)
    look = asyncio.create_task(made.look())
    await until(lambda: "GET /apis/scheduling.x-k8s.io" in made.server.requests)
    made.pods.above.store.clear()
    answered.set()
    await look
    assert made.admission.gangs.find_member(uid) is None


async def test_what_was_said_of_a_pod_holds_when_the_kind_is_installed_until_its_marks_change(made: Made) -> None:
    uid = made.create(meta=LABEL, **FREE)
    made.judged = None  # so that it stays gated
    await made.look()
    assert made.gates.ordinary.is_ordinary(made.show())
    made.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    made.change(priority=5)
    await made.look()
    assert made.admission.gangs.find_member(uid) is None

    made.stored()["metadata"]["annotations"] = {"vkgateway.io/gang": "web", "vkgateway.io/gang-size": "2"}
    made.show()
    await made.look()
    assert made.admission.gangs.find_member(uid) is not None


async def test_a_pod_that_has_a_node_is_handed_on_once_its_mark_means_nothing(made: Made) -> None:
    made.create(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    await made.look()
    assert made.went_on == [KEY]


@pytest.mark.parametrize("seen", ["first", "later"])
async def test_a_pod_that_runs_without_the_arbiter_is_not_taken_over_when_the_kind_is_installed(
    made: Made, seen: str
) -> None:
    """As after a restart; `later`: what runs below is seen only once the pod was read."""
    made.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    uid = made.create(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    runs = below(uid, name="web", marks={COMPUTE_NODE_ANNOTATION: ""})
    if seen == "first":
        made.pods.put_below(runs)
    await made.look()
    if seen == "later":
        assert made.admission.gangs.find_member(uid) is not None
        made.pods.put_below(runs)
        assert made.gates.compute_pod_changed(KEY)
        await made.look()
    assert made.admission.gangs.find_member(uid) is None
    assert not made.gates.compute_pod_changed(KEY)


@pytest.mark.parametrize("seen", ["first", "later"])
async def test_a_pod_that_the_arbiter_placed_stays_the_arbiters_when_the_kind_is_taken_away(
    made: Made, seen: str
) -> None:
    uid = made.create(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    if seen == "first":
        made.pods.put_below(below(uid, name="web"))
    await made.look()
    if seen == "later":
        assert made.admission.gangs.find_member(uid) is None
        made.pods.put_below(below(uid, name="web"))
        assert made.gates.compute_pod_changed(KEY)
        await made.look()
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    assert member.governed
    assert not made.gates.compute_pod_changed(KEY)


# -- telling -----------------------------------------------------------------------------------------------------------


async def test_who_waits_is_told_why_after_a_second(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    assert made.condition() is None
    assert made.events() == []
    assert made.later == [(KEY, 1.0)]

    made.now += 1
    await made.look()
    assert made.condition() == ("False", "WaitingForRoom", "no room")
    assert made.events() == [("WaitingForRoom", "Normal")]


async def test_who_waits_is_written_to_twice_in_a_minute_at_most(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    for second in range(1, 62):
        made.now = 1000.0 + second
        made.hold(uid, message=f"no room: {second}")
        made.show()
        await made.look()
    assert made.writes() == 3, "after 1, 31 and 61 seconds"
    assert (made.condition() or ("", "", ""))[2] == "no room: 61"
    assert made.events() == [("WaitingForRoom", "Normal")]


async def test_another_look_is_asked_for_when_the_next_word_is_due(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    made.now += 1
    await made.look()
    made.now += 10
    made.hold(uid, message="still no room")
    made.later.clear()
    await made.look()
    assert made.later == [(KEY, 20.0)]


async def test_the_same_is_not_told_again(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    made.now += 1
    await made.look()
    made.show()
    writes = made.writes()
    for _ in range(5):
        made.now += 100
        await made.look()
    assert made.writes() == writes


async def test_each_new_reason_is_an_event_and_what_will_not_pass_a_warning(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    for code in (PendingReason.ROOM, PendingReason.QUOTA, PendingReason.INFEASIBLE, PendingReason.INVALID):
        made.now += 31
        made.hold(uid, code=code)
        await made.look()
        made.show()
    assert made.events() == [
        ("WaitingForRoom", "Normal"),
        ("WaitingForQuota", "Normal"),
        ("Infeasible", "Warning"),
        ("Invalid", "Warning"),
    ]


async def test_who_could_not_be_told_is_told_at_the_next_try(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    made.now += 1
    made.server.fail("PATCH", "/pods/web/status", status=503)
    with pytest.raises(errors.ApiError):
        await made.look()
    assert made.condition() is None

    await made.look()
    assert made.condition() == ("False", "WaitingForRoom", "no room")
    assert made.events() == [("WaitingForRoom", "Normal")]


async def test_conditions_of_others_are_left_alone(made: Made) -> None:
    uid = made.create()
    theirs = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    await made.look()
    made.hold(uid)
    await made.look()
    # The watch does not show yet what their scheduler has written.
    made.server.store.update(
        PODS,
        made.stored() | {"status": {"phase": "Pending", "conditions": [theirs]}},
        name="web",
        namespace="default",
        status=True,
    )
    made.now += 1
    await made.look()
    assert [entry["type"] for entry in made.stored()["status"]["conditions"]] == [
        "PodScheduled",
        "vkgateway.io/Admitted",
    ]
    assert made.stored()["status"]["conditions"][0] == theirs


async def test_who_was_told_to_wait_is_told_that_it_may_start(made: Made) -> None:
    uid = made.create()
    await made.look()
    made.hold(uid)
    await made.look()
    made.now += 1
    await made.look()
    made.show()
    made.admit(uid)
    await made.look()
    assert (made.condition() or ("", ""))[:2] == ("True", "Admitted")
    assert not made.gated()


async def test_who_is_forgotten_is_told_anew(made: Made) -> None:
    uid = made.create()
    await made.look()
    member = made.admission.gangs.find_member(uid)
    assert member is not None
    made.hold(uid)
    await made.look()
    made.gates.forget_member(member)
    assert not made.gates._reporter._pod_reports


async def test_members_that_ask_for_nothing_governed_are_told_nothing(made: Made) -> None:
    marked = {"annotations": {"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}}
    made.create(meta=marked, **FREE, schedulingGates=[])
    await made.look()
    gang = f"{TENANT}/default/gang/train"
    made.admission.set_pending_reasons(
        [PendingReport(gang=gang, code=PendingReason.MEMBERS, message="1 of 2")], pools={}
    )
    made.now += 100
    await made.look()
    await made.look()
    assert made.writes() == 0
    assert made.events() == []


# -- the tenant's own marks on virtual nodes ---------------------------------------------------------------------------


async def test_a_pod_is_read_again_when_a_virtual_node_is_cordoned_and_when_it_is_open_again(made: Made) -> None:
    uid = made.create(nodeSelector={"vkgateway.io/pool": POOL[1]})
    await made.look()
    assert made.admission.gangs.members_named(KEY)[0].pools == (POOL,)

    name = next(name for name, binding in made.pods.bindings().items() if binding.pool.name == POOL[1])
    for taints, pools in (((CORDON_TAINT,), ()), ((), (POOL,))):
        made.nodes[name] = ({}, taints)
        made.gates.pools_changed()
        await made.look()
        member = made.admission.gangs.find_member(uid)
        assert member is not None
        assert member.pools == pools

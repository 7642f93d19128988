"""Gate reconciler of one tenant with its API server, for unit tests."""

from __future__ import annotations

import json
from typing import Any, cast

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.sync.admission.samples import (
    POOL,
    TENANT,
    PodStores,
    RecordingArbitration,
)
from tests.unit.sync.scopes import RecordedRequests, tenant_scope
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.api.objects import Object
from vkgateway.clusters.node_sizes import SizeVerdict
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS, PODS
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView, decode_tenant_pod
from vkgateway.scheduler.core.decisions import Admit, PendingReason, PendingReport
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.gate_reconciler import GateReconciler
from vkgateway.scheduler.service.member_reader import MemberReader
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

KEY = ("default", "web")
GATE = {"name": ADMISSION_GATE}
GPU = {"containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
FREE: dict[str, Any] = {"containers": [{"name": "main", "image": "x"}]}


class Harness:
    """Gate reconciler of one tenant with its API server; the clock stands still, and the test drives the watch."""

    def __init__(self, server: FakeApiServer, client: Client) -> None:
        self.server = server
        self.client = client
        self.clock = FakeClock(1000.0, origin=EPOCH)
        self.pods = PodStores()
        self.requests = RecordedRequests()
        self.refused: list[str] = []
        self.judged: SizeVerdict | None = SizeVerdict()
        self.scope = tenant_scope(
            client, clock=self.clock, links=self.pods.links, bindings=self.pods.bindings(), requests=self.requests
        )
        self.scope.cache = self.pods.scope.cache
        self.nodes = self.scope.virtual_nodes
        self.companions = CompanionObjects(self.scope)
        self.admission = TenantAdmission(
            self.scope, RecordingArbitration(), self.companions, CompletionRecords(self.scope)
        )
        self.reads = self.admission.reads
        self.members = MemberReader(
            self.scope, self.admission, self.companions, mirror=cast(Any, self), claims=cast(Any, self)
        )
        self.gates = GateReconciler(
            self.scope, self.admission, self.members, mirror=cast(Any, self), judge_size=self.judge_pod
        )

    @property
    def now(self) -> float:
        """The time that the test has set."""
        return self.clock.seconds

    @now.setter
    def now(self, now: float) -> None:
        self.clock.seconds = now

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
        self.admission.reasons.set_pending_reasons(
            [PendingReport(gang=gang, code=code, message=message)], pools={gang: POOL}
        )

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

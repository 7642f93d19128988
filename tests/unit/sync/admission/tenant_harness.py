"""Admission of one tenant without servers, for unit tests."""

from __future__ import annotations

from typing import Any

from tests.unit.sync.admission.samples import (
    BORN_AT,
    POOL,
    TENANT,
    PodStores,
    RecordingArbitration,
    make_member,
    tenant_view,
)
from vkgateway.kinds.sources import COMPUTE_PODS
from vkgateway.runtime.views.ownership import Key
from vkgateway.scheduler.core.decisions import Admit, Evict
from vkgateway.scheduler.core.queueing.admission import Admission
from vkgateway.scheduler.core.snapshot import PodState, PoolKey
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.member import GangMember
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

GANG = f"{TENANT}/default/pod/u1"
KEY = ("default", "pod-u1")
NODE = "a100.local"
OTHER_NODE = "h100.local"


class Harness:
    """Tenant with one waiting pod by default."""

    def __init__(self, *, waits: bool = True) -> None:
        self.pods = PodStores()
        self.scope = self.pods.scope
        self.pods.now = BORN_AT + 1000
        self.service = RecordingArbitration()
        self.sent = self.scope.created_until
        self.admission = TenantAdmission(
            self.scope, self.service, CompanionObjects(self.scope), CompletionRecords(self.scope)
        )
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

    def evict_pod(self, *, makes_room_for: str = "beta/x", deadline: float = 30.0, reached_limit: float = 0.0) -> None:
        self.admission.verdicts.apply_evict(
            Evict(
                gang=GANG,
                pods=("u1",),
                whole=True,
                makes_room_for=makes_room_for,
                deadline=self.now + deadline,
                lost=0.0,
                reached_limit=reached_limit,
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

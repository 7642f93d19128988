"""Members, pod views and a compute cluster without a server, for admission tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.sync.scopes import RecordedRequests, tenant_scope
from vkgateway.api.names import (
    COMPUTE_NODE_ANNOTATION,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    POOL_LABEL,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import PoolContext
from vkgateway.kinds.tenant_scope import VirtualNodeBinding
from vkgateway.kube.client import Client
from vkgateway.runtime.views.annotations import REQUESTS
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView, decode_compute_pod, decode_tenant_pod
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import Band, PoolKey, Shape
from vkgateway.scheduler.gangs import GangMarks, Reference
from vkgateway.scheduler.service.accounting import PodRun
from vkgateway.scheduler.service.arbitration import Arbitration
from vkgateway.scheduler.service.gang_builder import EvictionTerms
from vkgateway.scheduler.service.member import GangMember
from vkgateway.scheduler.service.start_meter import StartMeter

TENANT = "alpha"
POOL: PoolKey = ("local", "a100")
OTHER_POOL: PoolKey = ("local", "h100")
GPU = "nvidia.com/gpu"
BORN = "2026-03-01T12:00:00Z"
BORN_AT = 1772366400.0
"""The same time in seconds since the epoch."""
NOBODY = Client("http://127.0.0.1:1", name="nobody")
"""Client that never sends a request."""


def gang_marks(group: str = "default/gang/train", **fields: Any) -> GangMarks:
    return GangMarks(group=group, integration="vkgateway.io/gang", **fields)


class RecordingArbitration(Arbitration):
    """Recorder of a tenant's notifications to the arbitration."""

    def __init__(self) -> None:
        self.pokes = 0
        self.recounted: list[str] = []
        self.ran: list[PodRun] = []
        self.failures: list[tuple[str, str, str]] = []
        self.start_meter = StartMeter()

    def trigger(self) -> None:
        self.pokes += 1

    def recount_pod(self, pod: ComputePodView, cluster: str) -> None:
        self.recounted.append(f"{cluster}/{pod.tenant_uid}")

    def eviction_terms(self, pool: PoolKey | None) -> EvictionTerms:
        return EvictionTerms(20.0, 60.0)

    def is_foreign(self, _pool: PoolKey) -> bool:
        return False

    def record_failure(self, cluster: str, node: str, gang: str) -> None:
        self.failures.append((cluster, node, gang))

    def pod_ended(self, tenant: str, run: PodRun) -> None:
        assert tenant == TENANT
        self.ran.append(run)


def make_member(uid: str = "u1", **other: Any) -> GangMember:
    """Return a member that requests one GPU in one pool; without marks it is a gang of one."""
    fields: dict[str, Any] = {
        "uid": uid,
        "key": ("default", f"pod-{uid}"),
        "mark": "0",
        "governed": True,
        "marks": GangMarks(group=f"default/pod/{uid}"),
        "fault": "",
        "shape": Shape.from_requests({GPU: 1000}),
        "pools": (POOL,),
        "bound": False,
        "band": Band.GUARANTEED,
        "priority": 0,
        "preempts": True,
        "created": 100.0,
        "grace": 30.0,
        "waiting_gates": (),
        "companions": (),
    }
    return GangMember(**fields | other)


def pending_report(
    uid: str = "u1", code: PendingReason = PendingReason.ROOM, message: str = "no room", **other: Any
) -> PendingReport:
    """Return the report of a pending gang of one."""
    return PendingReport(gang=f"{TENANT}/default/pod/{uid}", code=code, message=message, **other)


def make_reference(name: str = "train") -> Reference:
    return Reference("scheduling.volcano.sh", "PodGroup", "podgroups", "default", name)


def tenant_view(
    uid: str = "u1",
    *,
    meta: Mapping[str, Any] | None = None,
    phase: str = "Pending",
    conditions: Sequence[Mapping[str, Any]] = (),
    **spec: Any,
) -> TenantPodView:
    """Return the watch's view of the tenant pod of `make_member(uid)`."""
    metadata = {"name": f"pod-{uid}", "namespace": "default", "uid": uid, "creationTimestamp": BORN, **(meta or {})}
    document = {"metadata": metadata, "spec": spec, "status": {"phase": phase, "conditions": list(conditions)}}
    return decode_tenant_pod(json.dumps(document).encode())


def compute_view(
    uid: str = "u1",
    *,
    node: str = "host-1",
    annotations: Mapping[str, str] | None = None,
    phase: str = "Running",
    name: str = "",
    disruption: str = "",
    **meta: Any,
) -> ComputePodView:
    """Return the compute pod of `tenant_view(uid)`, placed on `host-1` by the arbiter and bound to `node`."""
    merged = {
        NAMESPACE_ANNOTATION: "default",
        NAME_ANNOTATION: name or f"pod-{uid}",
        UID_ANNOTATION: uid,
        COMPUTE_NODE_ANNOTATION: "host-1",
        REQUESTS: json.dumps({GPU: 1000}),
        **(annotations or {}),
    }
    metadata = {
        "name": name or f"pod-{uid}",
        "namespace": compute_namespace(TENANT, "default"),
        "uid": f"below-{uid}",
        "creationTimestamp": BORN,
        "labels": {TENANT_LABEL: TENANT, POOL_LABEL: POOL[1]},
        "annotations": {key: value for key, value in merged.items() if value},
        **meta,
    }
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 40}
    target = {"type": "DisruptionTarget", "status": "True", "reason": disruption}
    document = {
        "metadata": metadata,
        "spec": spec,
        "status": {"phase": phase, "conditions": [target] if disruption else []},
    }
    return decode_compute_pod(json.dumps(document).encode())


class PodStores:
    """Stores of tenant pods and compute pods without servers."""

    def __init__(self) -> None:
        self.link = ComputeLink("local", NOBODY)
        self.links = {"local": self.link}
        self.clock = FakeClock(origin=EPOCH)
        self.requests = RecordedRequests()
        self.scope = tenant_scope(
            NOBODY, clock=self.clock, links=self.links, bindings=self.bindings(), requests=self.requests
        )
        self.above = self.scope.cache.pods

    @property
    def now(self) -> float:
        """The time that the test has set."""
        return self.clock.seconds

    @now.setter
    def now(self, now: float) -> None:
        self.clock.seconds = now

    def put_tenant(self, view: TenantPodView) -> None:
        self.above.store[view.metadata.key] = view

    def drop_tenant(self, uid: str = "u1") -> None:
        del self.above.store["default", f"pod-{uid}"]

    def put_compute(self, view: ComputePodView) -> None:
        old = self.link.pods.store.get(view.metadata.key)
        self.link.pods.store[view.metadata.key] = view
        self.link.pods.handle_change(old, view)

    def drop_compute(self, uid: str = "u1") -> None:
        key = (compute_namespace(TENANT, "default"), f"pod-{uid}")
        self.link.pods.handle_change(self.link.pods.store.pop(key), None)

    def binding(self, pool: PoolKey = POOL) -> VirtualNodeBinding:
        name = f"{pool[1]}.{pool[0]}"
        context = PoolContext(name=pool[1], compute_cluster=pool[0], node_name=name)
        return VirtualNodeBinding(pool=context, link=self.link, node_ip="10.213.0.1")

    def bindings(self, *pools: PoolKey) -> dict[str, VirtualNodeBinding]:
        """Return the bindings of the virtual nodes of pools; of both pools if none is given."""
        return {f"{pool[1]}.{pool[0]}": self.binding(pool) for pool in pools or (POOL, OTHER_POOL)}

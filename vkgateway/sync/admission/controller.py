"""All that concerns admission of one tenant's pods, wired; what its watches and reconcilers speak to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from vkgateway.arbiter.queueing.node_limits import Admission
from vkgateway.arbiter.snapshot import Quota
from vkgateway.model.names import COMPUTE_NODE_ANNOTATION
from vkgateway.model.objects import Object
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.completion_records import CompletionRecords
from vkgateway.sync.admission.eviction_notices import EvictionNotices
from vkgateway.sync.admission.gate_reconciler import GateReconciler, is_gated
from vkgateway.sync.admission.size_policy import SizePolicy
from vkgateway.sync.admission.tenant_admission import ArbitrationService, TenantAdmission
from vkgateway.sync.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.gangs import Kind, Reference
from vkgateway.translate.governed import VirtualNode

RETAKEN: Final = Admission("retaken")


class ArbiterService(ArbitrationService, Protocol):
    """The arbitration, as one tenant's part sees it."""

    @property
    def clock(self) -> Callable[[], float]:
        """The time by which notices run, in seconds since the epoch."""

    @property
    def bind_timeout(self) -> float:
        """Seconds after which a compute pod that its node has not taken is taken back."""

    def add_tenant(self, tenant: TenantAdmission) -> None:
        """Arbitrate for a tenant from now on."""

    def remove_tenant(self, name: str) -> None:
        """Do so no longer."""

    def avoid_node(self, cluster: str, node: str) -> bool:
        """Leave a node alone for a while; False: too many are already."""


class AdmissionController:
    """One tenant's. `whole`, `places` and `refuse` are as `GateReconciler` has them, `sent` as `TenantAdmission`."""

    def __init__(
        self,
        name: str,
        shared: TenantScope,
        *,
        service: ArbiterService,
        sent: Mapping[str, float],
        whole: Callable[[TenantPodView], Awaitable[bytes]],
        places: Callable[[Object], Sequence[Sequence[Object]]],
        refuse: Callable[[TenantPodView, Object], Awaitable[bool]],
    ) -> None:
        client, links, bindings, events = shared.client, shared.links, shared.bindings, shared.events
        self._name = name
        self._pods = pods = shared.cache.pods
        self._service = service
        self._work_queue = shared.work_queue
        self._clock = clock = shared.clock
        self._unbound: dict[str, tuple[str, float]] = {}
        """Compute pods that no node has taken, by the uid of whom they stand for, and since when that is seen."""
        self._virtual_nodes: dict[str, VirtualNode] = {}
        """The tenant's virtual nodes as its API server shows them."""
        self.companions = CompanionObjects(
            name, client, changed=self._companion_changed, kind_changed=self._kind_changed
        )
        self.size_policy = SizePolicy(
            name, client, bindings=bindings, nodes=self._virtual_nodes, changed=self._node_sizes_changed
        )
        self.notices = EvictionNotices(client, events=events, clock=clock)
        self.completion_records = CompletionRecords(name, links, who=lambda: self.tenant_admission)
        self.tenant_admission = TenantAdmission(
            name,
            pods,
            links=links,
            bindings=bindings,
            service=service,
            sent=sent,
            look=self._enqueue_pod,
            clock=clock,
            memory=self.completion_records,
            settled=lambda: self.gate_reconciler.is_settled,
            followed=lambda: shared.cache.is_complete,
        )
        self.gate_reconciler = GateReconciler(
            self.tenant_admission,
            client,
            pods,
            bindings=bindings,
            nodes=self._virtual_nodes,
            beside=self.companions,
            events=events,
            whole=whole,
            places=places,
            refuse=refuse,
            machines=self.size_policy.judge_pod,
            later=self._work_queue.enqueue_gate,
            go_on=self._work_queue.enqueue_pod,
            clock=clock,
            monotonic=shared.monotonic,
        )

    async def run(self) -> None:
        """Take part in the arbitration until cancelled."""
        self._service.add_tenant(self.tenant_admission)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.companions.run(), name=f"tenant/{self._name}/beside")
                group.create_task(self.completion_records.run(), name=f"tenant/{self._name}/done")
                group.create_task(self.size_policy.run(), name=f"tenant/{self._name}/machines")
        finally:
            self._service.remove_tenant(self._name)

    def pools_changed(self, quotas: Iterable[Quota]) -> None:
        """The tenant's pools, or what it may use of them, changed: pods may reach others now."""
        self.tenant_admission.quotas_changed(quotas)
        self.size_policy.pools_changed()
        self._reachable_nodes_changed()

    def node_changed(self, name: str, node: VirtualNode) -> None:
        """A virtual node's labels or taints are others now, or it was cordoned or uncordoned: pods may reach others."""
        if self._virtual_nodes.get(name) != node:
            self._virtual_nodes[name] = node
            self._reachable_nodes_changed()

    def volumes_changed(self) -> None:
        """Volumes may be elsewhere than was known: pods that use any may fit on other nodes."""
        for key in self.gate_reconciler.volumes_changed():
            self._work_queue.enqueue_gate(key)

    def _reachable_nodes_changed(self) -> None:
        self.gate_reconciler.pools_changed()
        for member in self.tenant_admission.gangs:
            self._work_queue.enqueue_gate(member.key)
        self._node_sizes_changed()

    def _node_sizes_changed(self) -> None:
        """Look again at the pods that are held by their size, or whose size could not be judged yet."""
        for key, view in self._pods.store.items():
            if is_gated(view) and not self.tenant_admission.is_governed_pod(view.metadata.uid):
                self._work_queue.enqueue_gate(key)

    def pods_listed(self) -> None:
        """Everything that the tenant has is known: what was not read yet is read, looks that were put off are made."""
        self.tenant_admission.unread_pods.intersection_update(self._pods.store)
        for key, view in self._pods.store.items():
            if self.gate_reconciler.needs_read(view):
                self._enqueue_read(key)
            elif is_gated(view):
                self._work_queue.enqueue_gate(key)
        self.tenant_admission.pods_listed()

    def pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        """A pod came, changed or went above."""
        view = new or old
        assert view is not None
        key = view.metadata.key
        if new is None:
            self.gate_reconciler.pod_deleted(view.metadata.uid)
        elif self.gate_reconciler.needs_read(new):
            self._enqueue_read(key)
        self.compute_pod_changed(key)

    def compute_pod_changed(self, key: Key) -> None:
        """What stands for a pod below came, changed or went."""
        for member in self.tenant_admission.pod_changed(key):
            self.gate_reconciler.forget_member(member)
            self._unbound.pop(member.uid, None)
        if self.gate_reconciler.compute_pod_changed(key):
            self._enqueue_read(key)

    # What the pods' reconciler asks.

    def observe_pod(self, pod: Object, view: TenantPodView, *, governed: bool) -> None:
        """The whole of a pod that is bound was read. One of which the tenant's server must be asked waits for that."""
        if (
            governed
            and self.gate_reconciler.must_read(view)
            and not self.gate_reconciler.ordinary.must_query_kinds(pod)
        ):
            self.gate_reconciler.observe_pod(pod, view.fingerprint)

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Whether a pod starts without the arbiter though it carries a mark: its tenant has no such kind."""
        return self.gate_reconciler.ordinary.is_ordinary(view)

    def admission_for(self, case: PodContext) -> Admission:
        """What is said of a pod that is not below yet."""
        above = tenant_pod_of(case)
        return self.tenant_admission.admission_for(above.metadata.uid, above.spec.node_name)

    def running_admission(self, case: PodContext) -> Admission:
        """What is said of one that is; where no node has taken it in time, that it is to be taken back."""
        below = compute_pod_of(case)
        node = below.metadata.annotations.get(COMPUTE_NODE_ANNOTATION, "")
        uid = tenant_pod_of(case).metadata.uid
        if below.spec.node_name:
            self._unbound.pop(uid, None)
            self.tenant_admission.keep_compute_pod(uid, below.metadata.uid)
        elif node:
            left = self._unbound_since(uid, below.metadata.uid) + self._service.bind_timeout - self._clock()
            if left <= 0 and self._service.avoid_node(case.link.name, node):
                self.tenant_admission.revert_compute_pod(uid, below.metadata.uid)
                return RETAKEN
            self._work_queue.enqueue_pod(case.key, left if left > 0 else self._service.bind_timeout)
        return self.tenant_admission.running_admission(uid)

    def _unbound_since(self, uid: str, compute_uid: str) -> float:
        """Since when a compute pod is seen without a node, by our own clock: the compute cluster's may be another."""
        known = self._unbound.get(uid)
        if known is None or known[0] != compute_uid:
            known = self._unbound[uid] = compute_uid, self._clock()
        return known[1]

    async def report_pending(self, case: PodContext) -> None:
        """Tell a pod that is held at the gateway why it waits."""
        view = tenant_pod_of(case)
        member = self.tenant_admission.gangs.find_member(view.metadata.uid)
        if member is not None:
            await self.gate_reconciler.report_pending(view, member)

    def _enqueue_read(self, key: Key) -> None:
        self.tenant_admission.unread_pods.add(key)
        self._work_queue.enqueue_gate(key)

    def _enqueue_pod(self, key: Key) -> None:
        """Something new is said of a pod: whoever has it in hands looks at it."""
        view = self._pods.store.get(key)
        if view is not None and view.spec.node_name:
            self._work_queue.enqueue_pod(key)
        else:
            self._work_queue.enqueue_gate(key)

    def _companion_changed(self, reference: Reference) -> None:
        for key in self.gate_reconciler.companion_changed(reference):
            self._enqueue_read(key)

    def _kind_changed(self, kind: Kind) -> None:
        for key in self.gate_reconciler.kind_changed(kind):
            self._enqueue_read(key)

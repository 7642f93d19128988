"""Admission of one tenant's pods: its parts, and the questions of the pod reconciler that it answers."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from vkgateway.api.names import COMPUTE_NODE_ANNOTATION, POOL_LABEL
from vkgateway.api.objects import Object
from vkgateway.kinds.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube.clock import Clock
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import PoolKey
from vkgateway.scheduler.service.companion_objects import CompanionObjects
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.event_handler import GateEventHandler
from vkgateway.scheduler.service.eviction_notices import EvictionNotices
from vkgateway.scheduler.service.gate_reconciler import GateReconciler
from vkgateway.scheduler.service.member_reader import MemberReader, PodReader, VolumeTerms
from vkgateway.scheduler.service.size_policy import SizePolicy
from vkgateway.scheduler.service.tenant_admission import ArbitrationService, TenantAdmission

RETAKEN: Final = Admission(AdmissionState.RETAKEN)


class ArbiterService(ArbitrationService, Protocol):
    """The arbitration, as one tenant's admission uses it."""

    @property
    def clock(self) -> Clock:
        """Time by which notices run, in seconds since the epoch."""

    @property
    def bind_timeout(self) -> float:
        """Seconds after which a compute pod that its node has not accepted is reverted."""

    def add_tenant(self, tenant: TenantAdmission) -> None:
        """Include a tenant in the cycles from now on."""

    def remove_tenant(self, name: str) -> None:
        """Exclude a tenant from the cycles."""

    def avoid_node(self, cluster: str, node: str) -> bool:
        """Exclude a node from placement for a while; False: too many are excluded already."""

    def is_foreign(self, pool: PoolKey) -> bool:
        """Return whether another scheduler than the arbiter admits the gangs of a pool."""


class AdmissionController:
    """Admission of one tenant's pods."""

    def __init__(self, scope: TenantScope, arbiter: ArbiterService, *, reader: PodReader, volumes: VolumeTerms) -> None:
        self._scope = scope
        self._arbiter = arbiter
        self.notices = EvictionNotices(scope)
        self.companions = CompanionObjects(scope)
        self.size_policy = SizePolicy(scope)
        self.completion_records = CompletionRecords(scope)
        self.tenant_admission = TenantAdmission(scope, arbiter, self.companions, self.completion_records)
        self.member_reader = MemberReader(scope, self.tenant_admission, self.companions, reader=reader, volumes=volumes)
        self.gate_reconciler = GateReconciler(
            scope, self.tenant_admission, self.member_reader, reader=reader, sizes=self.size_policy
        )
        self.event_handler = GateEventHandler(
            scope,
            self.tenant_admission,
            gates=self.gate_reconciler,
            members=self.member_reader,
            size_policy=self.size_policy,
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.runs("admission", self.run)
        self.gate_reconciler.set_up(registry)
        self.event_handler.set_up(registry)
        self.member_reader.set_up(registry)

    async def run(self) -> None:
        """Take part in the arbitration until cancelled."""
        self._arbiter.add_tenant(self.tenant_admission)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.companions.run(), name=f"tenant/{self._scope.name}/companions")
                group.create_task(
                    self.completion_records.run(self.tenant_admission), name=f"tenant/{self._scope.name}/done"
                )
                group.create_task(self.size_policy.run(), name=f"tenant/{self._scope.name}/machines")
        finally:
            self._arbiter.remove_tenant(self._scope.name)

    def compute_pod_changed(self, key: Key) -> None:
        """See `PodAdmission`."""
        self.event_handler.compute_pod_changed(key)

    def observe_pod(self, pod: Object, view: TenantPodView) -> None:
        """Pass a bound pod that was read to the gates, unless the server must be asked about its kinds first."""
        if self.member_reader.must_read(view) and not self.member_reader.ordinary.must_query_kinds(pod):
            self.member_reader.observe_pod(pod, view.fingerprint)

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Return whether a marked pod starts without the arbiter, because its tenant does not have the kind of the
        mark.
        """
        return self.member_reader.ordinary.is_ordinary(view)

    def admission_for(self, context: PodContext) -> Admission:
        """Return the admission of a pod without a compute pod."""
        tenant_pod = tenant_pod_of(context)
        return self.tenant_admission.admission_for(tenant_pod.metadata.uid, tenant_pod.spec.node_name)

    def running_admission(self, context: PodContext) -> Admission:
        """Return the admission of a pod with a compute pod: retaken if no node has accepted it in time."""
        compute_pod = compute_pod_of(context)
        node = compute_pod.metadata.annotations.get(COMPUTE_NODE_ANNOTATION, "")
        uid, compute_uid = tenant_pod_of(context).metadata.uid, compute_pod.metadata.uid
        if compute_pod.spec.node_name:
            self.tenant_admission.verdicts.keep_compute_pod(uid, compute_uid)
        elif node and not self._arbiter.is_foreign(
            (context.link.name, compute_pod.metadata.labels.get(POOL_LABEL, ""))
        ):
            since = self.tenant_admission.observer.unbound.seen_since(uid, compute_uid)
            remaining = since + self._arbiter.bind_timeout - self._scope.clock.time()
            if remaining <= 0 and self._arbiter.avoid_node(context.link.name, node):
                self.tenant_admission.verdicts.revert_compute_pod(uid, compute_uid)
                return RETAKEN
            self._scope.work_queue.enqueue(POD, context.key, remaining if remaining > 0 else self._arbiter.bind_timeout)
        return self.tenant_admission.running_admission(uid)

    async def report_pending(self, context: PodContext) -> None:
        """Report to a pending pod why it waits."""
        view = tenant_pod_of(context)
        member = self.tenant_admission.gangs.find_member(view.metadata.uid)
        if member is not None:
            await self.gate_reconciler.report_pending(view, member)

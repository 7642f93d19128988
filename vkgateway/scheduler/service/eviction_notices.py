"""Notices of evictions and of promotions on the pods of one tenant."""

from __future__ import annotations

from datetime import UTC, datetime

from vkgateway.api import times
from vkgateway.api.names import BORROWED_ANNOTATION, EVICTION_DEADLINE_ANNOTATION
from vkgateway.api.objects import Meta, Object
from vkgateway.kinds.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.kinds.pods.translation.conditions import DISRUPTION_CONDITION
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.runtime.views.annotations import EVICTED, EVICTED_FOR
from vkgateway.scheduler.service.conditions import set_condition


class EvictionNotices:
    """Writer of one tenant's notices. The compute pod comes first, since its containers read the deadline there."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._client = scope.client
        self._events = scope.events

    async def give_notice(self, context: PodContext) -> None:
        """Write the deadline to the compute pod and the tenant pod, once."""
        admission, tenant_metadata, compute_metadata = (
            context.admission,
            tenant_pod_of(context).metadata,
            compute_pod_of(context).metadata,
        )
        assert admission is not None
        deadline = times.render_time(datetime.fromtimestamp(admission.deadline or 0.0, UTC))
        # A run limit may be reached under notice, with the same deadline.
        is_restated = admission.has_reached_limit and compute_metadata.annotations.get(EVICTED) != admission.reason_text
        if compute_metadata.annotations.get(EVICTION_DEADLINE_ANNOTATION) != deadline or is_restated:
            # The reason is written now, so that only the deletion is left at the deadline.
            marks = {EVICTED_FOR: admission.evicted_for, EVICTED: admission.reason_text}
            if not admission.has_reached_limit:
                marks[BORROWED_ANNOTATION] = "true"
            await self._annotate_pod(
                context.link.client, compute_metadata, {EVICTION_DEADLINE_ANNOTATION: deadline, **marks}
            )
        if tenant_metadata.annotations.get(EVICTION_DEADLINE_ANNOTATION) == deadline and not is_restated:
            return
        message = f"{admission.message}; it is deleted at {deadline}"
        await self._events.emit_event(tenant_metadata, reason=admission.code, message=message)
        await self._set_condition(context, status="True", reason=admission.code, message=message)
        await self._annotate_pod(self._client, tenant_metadata, {EVICTION_DEADLINE_ANNOTATION: deadline})

    async def withdraw_notice(self, context: PodContext) -> None:
        """Remove a withdrawn notice from the tenant pod and the compute pod."""
        tenant_metadata, compute_metadata = tenant_pod_of(context).metadata, compute_pod_of(context).metadata
        if EVICTION_DEADLINE_ANNOTATION in tenant_metadata.annotations:
            message = "the eviction is withdrawn: the capacity is not needed any more"
            await self._events.emit_event(tenant_metadata, reason="EvictionWithdrawn", message=message, kind="Normal")
            await self._set_condition(context, status="False", reason="EvictionWithdrawn", message=message)
            await self._annotate_pod(self._client, tenant_metadata, {EVICTION_DEADLINE_ANNOTATION: None})
        if EVICTION_DEADLINE_ANNOTATION in compute_metadata.annotations:
            marks: Object = {EVICTION_DEADLINE_ANNOTATION: None, EVICTED_FOR: None, EVICTED: None}
            await self._annotate_pod(context.link.client, compute_metadata, marks)

    async def mark_promoted(self, context: PodContext) -> None:
        """Record once on a compute pod that it runs inside the tenant's guarantee.

        Its priority class does not change: Kubernetes does not allow that for an existing pod.
        """
        admission, compute_metadata = context.admission, compute_pod_of(context).metadata
        borrows = compute_metadata.annotations.get(BORROWED_ANNOTATION) == "true"
        if admission is None or admission.borrowed is not False or not borrows:
            return
        await self._annotate_pod(context.link.client, compute_metadata, {BORROWED_ANNOTATION: "false"})
        message = "the pod runs inside the tenant's guarantee from now on: its capacity is not reclaimed any more"
        await self._events.emit_event(
            tenant_pod_of(context).metadata, reason="InsideGuarantee", message=message, kind="Normal"
        )

    async def _annotate_pod(self, client: Client, metadata: Meta, annotations: Object) -> None:
        try:
            await client.patch(
                resources.PODS,
                metadata.name,
                {"metadata": {"uid": metadata.uid, "annotations": annotations}},
                namespace=metadata.namespace,
                metadata_only=True,
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _set_condition(self, context: PodContext, *, status: str, reason: str, message: str) -> None:
        view = tenant_pod_of(context)
        await set_condition(self._scope, view, DISRUPTION_CONDITION, status=status, reason=reason, message=message)

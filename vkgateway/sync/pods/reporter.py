"""Reports to tenants about their pods: events, and conditions that say why a pod is not forwarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from vkgateway.model.objects import Object
from vkgateway.sync.pods.absences import Absence
from vkgateway.sync.pods.pod_context import PodContext, tenant_pod_of
from vkgateway.sync.pods.status_writer import PodStatusWriter
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.ephemeral_status import waiting_status
from vkgateway.translate.to_tenant import condition_status

FORWARDED_CONDITION: Final = "vkgateway.io/Forwarded"
"""Condition on a tenant pod that says why it is not in the compute cluster yet."""


class PodReporter:
    """Reporter to one tenant."""

    def __init__(self, scope: TenantScope, writer: PodStatusWriter) -> None:
        self._scope = scope
        self._writer = writer

    async def report_waiting(
        self, context: PodContext, reason: str, message: str, *, kind: Literal["Normal", "Warning"] = "Warning"
    ) -> None:
        """Report why the pod waits: an event, and a condition with the same reason while it waits."""
        await self.report_pod_waiting(tenant_pod_of(context), reason, message, kind=kind)

    async def report_absences(self, context: PodContext, found: Sequence[Absence]) -> None:
        """Emit an event for each kind of missing object; the condition has the first reason and names all objects."""
        tenant_pod = tenant_pod_of(context)
        for absence in found:
            await self._scope.events.emit_event(tenant_pod.metadata, reason=absence.reason, message=absence.message)
        await self._set_not_forwarded(tenant_pod, found[0].reason, ", ".join(absence.message for absence in found))

    async def report_pod_waiting(
        self, tenant_pod: TenantPodView, reason: str, message: str, *, kind: Literal["Normal", "Warning"]
    ) -> None:
        """Report why a pod without a context waits."""
        await self._scope.events.emit_event(tenant_pod.metadata, reason=reason, message=message, kind=kind)
        await self._set_not_forwarded(tenant_pod, reason, message)

    async def _set_not_forwarded(self, tenant_pod: TenantPodView, reason: str, message: str) -> None:
        current_status = msgspec.json.decode(tenant_pod.status)
        patch = condition_status(
            current_status,
            FORWARDED_CONDITION,
            status="False",
            reason=reason,
            message=message,
            now=self._writer.utc_now(),
        )
        if patch is not None:
            await self._writer.patch_status(tenant_pod.metadata, patch, current_status)

    async def show_waiting(self, context: PodContext, containers: Sequence[Object], reasons: Mapping[str, str]) -> None:
        """Show ephemeral containers that do not start as waiting; `reasons` are by container name."""
        tenant_pod = tenant_pod_of(context)
        current_status = msgspec.json.decode(tenant_pod.status)
        patch = waiting_status(containers, reasons, tenant_status=current_status)
        if patch is not None:
            await self._writer.patch_status(tenant_pod.metadata, patch, current_status)

    async def emit_event(self, context: PodContext, reason: str, message: str) -> None:
        """Emit an event about the tenant pod."""
        await self._scope.events.emit_event(tenant_pod_of(context).metadata, reason=reason, message=message)

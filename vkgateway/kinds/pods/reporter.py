"""Reports to tenants about their pods: events, conditions in their status, and failures that persist."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog

from vkgateway.api.names import compute_namespace
from vkgateway.api.objects import Meta, Object, decode_object
from vkgateway.kinds.pods.pod_context import PodContext, tenant_pod_of
from vkgateway.kinds.pods.translation.conditions import FORWARDED_CONDITION
from vkgateway.kinds.pods.translation.ephemeral_status import waiting_status
from vkgateway.kinds.pods.translation.to_tenant import condition_status, strategic_patch
from vkgateway.kinds.refusals import lacks_rights
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.views.ownership import CopyKind, Key, Reference
from vkgateway.runtime.views.pods import TenantPodView

log = structlog.get_logger(__name__)

CLAIM_NOT_READY: Final = "PersistentVolumeClaimNotReady"
"""A claim of the pod does not exist, is not bound, or is bound to a volume that the pod cannot mount."""
_KINDS: Final[dict[CopyKind, str]] = {"configmaps": "ConfigMap", "secrets": "Secret"}
_SERVER_DETAILS: Final = re.compile(r"\w://|\bdial\b|\d{1,3}(?:\.\d{1,3}){3}|\bx509\b")
"""Patterns of server-internal details in error messages: addresses of webhooks and machines."""
_REPORT_AFTER: Final = 60.0
"""Seconds of consecutive failures after which the tenant is notified (design contract: transient failures are visible).
"""
_REPORT_TIMEOUT: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Absence:
    """Reason and message of one event about all missing objects of one kind."""

    reason: str
    message: str


class PodReporter:
    """Reporter to one tenant. Every status write names the pod's UID, so that it cannot change another pod."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope

    async def report_waiting(
        self, context: PodContext, reason: str, message: str, *, kind: Literal["Normal", "Warning"] = "Warning"
    ) -> None:
        """Report why the pod waits: an event, and a condition with the same reason while it waits."""
        await self.report_pod_waiting(tenant_pod_of(context), reason, message, kind=kind)

    async def report_missing(self, context: PodContext) -> None:
        """Report objects without which the pod cannot start: one event for each kind.

        The condition has the first reason and names all objects.
        """
        tenant_pod, found = tenant_pod_of(context), _not_found("Mandatory", context.missing_references)
        if context.claims.unready:
            found.append(_Absence(CLAIM_NOT_READY, ", ".join(context.claims.unready)))
        for absence in found:
            await self._scope.events.emit_event(tenant_pod.metadata, reason=absence.reason, message=absence.message)
        await self._set_not_forwarded(tenant_pod, found[0].reason, ", ".join(absence.message for absence in found))

    async def report_optional(self, context: PodContext, missing: Sequence[Reference]) -> None:
        """Emit events about missing objects without which the pod starts."""
        for absence in _not_found("Optional", missing):
            await self.emit_event(context, absence.reason, absence.message)

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
            now=self._scope.clock.now(),
        )
        if patch is not None:
            await self.patch_status(tenant_pod.metadata, patch, current_status)

    async def show_waiting(self, context: PodContext, containers: Sequence[Object], reasons: Mapping[str, str]) -> None:
        """Show ephemeral containers that do not start as waiting; `reasons` are by container name."""
        tenant_pod = tenant_pod_of(context)
        current_status = msgspec.json.decode(tenant_pod.status)
        patch = waiting_status(containers, reasons, tenant_status=current_status)
        if patch is not None:
            await self.patch_status(tenant_pod.metadata, patch, current_status)

    async def emit_event(self, context: PodContext, reason: str, message: str) -> None:
        """Emit an event about the tenant pod."""
        await self._scope.events.emit_event(tenant_pod_of(context).metadata, reason=reason, message=message)

    async def patch_status(self, metadata: Meta, status: Object, current_status: Object) -> str:
        """Patch the pod's status if its UID still matches; return the resulting version.

        `current_status` is the status that the watch has shown. Conditions that others have set since are retained.
        """
        change = strategic_patch(status, current_status)
        answer = await self._scope.client.patch_status(resources.PODS, metadata, change, kind="strategic")
        return decode_object(answer).metadata.resource_version


class FailureReporter:
    """Reporter of one tenant's pods whose reconciliation fails persistently."""

    def __init__(self, scope: TenantScope, reporter: PodReporter) -> None:
        self._scope = scope
        self._reporter = reporter
        self._failing_since: dict[Key, float] = {}

    def forget_pod(self, key: Key) -> None:
        """Record that a pod was reconciled."""
        self._failing_since.pop(key, None)

    async def report_failure(self, context: PodContext, error: Exception) -> None:
        """Record a failed reconciliation; notify the tenant if failures persist."""
        since = self._failing_since.setdefault(context.key, self._scope.clock.time())
        is_persistent = self._scope.clock.time() - since >= _REPORT_AFTER
        if context.tenant is None or context.tenant.is_terminal or not is_persistent:
            return
        try:
            message = clean_message(
                context, error_message(error), namespace=compute_namespace(self._scope.name, context.key[0])
            )
            # If the tenant's own API server does not answer, the report must not block the worker.
            async with asyncio.timeout(_REPORT_TIMEOUT):
                await self._reporter.report_waiting(context, "ForwardingDelayed", message)
        except (errors.ApiError, TimeoutError) as report_error:
            log.warning(
                "delay not reported", tenant=self._scope.name, pod="/".join(context.key), error=str(report_error)
            )


def error_message(error: Exception) -> str:
    """Return the error message for the tenant, without server names and requests."""
    if isinstance(error, errors.Unreachable):
        return "a server does not answer; the gateway retries"
    if isinstance(error, errors.ServerError) and _SERVER_DETAILS.search(error.server_message):
        return f"a server failed ({error.status}); the gateway retries"
    if lacks_rights(error):
        return "a server does not allow this request at the moment; the gateway retries"
    return error.server_message if isinstance(error, errors.ApiError) else str(error)


def clean_message(context: PodContext, text: str, *, namespace: str) -> str:
    """Return a message of the compute cluster in the tenant's names; `namespace` is the compute namespace."""
    node = context.tenant.spec.node_name if context.tenant is not None else "the node"
    pairs = [(namespace, context.key[0])]
    if context.compute is not None and context.compute.spec.node_name:
        pairs.append((context.compute.spec.node_name, node))
    return Sanitizer(tuple(pairs)).sanitize_text(text)


def _not_found(prefix: str, missing: Sequence[Reference]) -> list[_Absence]:
    """Return one event for each kind of missing object.

    The reasons are those of virtual-kubelet (internal/podutils/env.go), whose end-to-end tests expect them.
    """
    return [
        _Absence(f"{prefix}{word}NotFound", _not_found_message(word, (name for of, _, name in missing if of == kind)))
        for kind, word in _KINDS.items()
        if any(of == kind for of, _, _ in missing)
    ]


def _not_found_message(word: str, names: Iterable[str]) -> str:
    """Name the objects in the words of a kubelet."""
    return ", ".join(f'{word.lower()} "{name}" not found' for name in names)

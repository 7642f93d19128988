"""Forwarding of changes to a running pod: labels, annotations, spec, subresources and readiness gate conditions."""

from __future__ import annotations

from typing import Final

import msgspec

from vkgateway.api.objects import Object
from vkgateway.api.requests import pod_requests
from vkgateway.kinds.configs.reconciler import CopyReconciler
from vkgateway.kinds.metadata import resources_checksum, tenant_gates
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import PodContext, compute_pod_of, decode, plan_of, tenant_pod_of
from vkgateway.kinds.pods.policy.feature_gates import lost_fields_message
from vkgateway.kinds.pods.reporter import clean_message
from vkgateway.kinds.pods.translation.conditions import gate_conditions_patch
from vkgateway.kinds.pods.translation.pod_diff import PodDiff, diff_pods, without_resize
from vkgateway.kinds.pods.translation.subresources import Subresource, drop_lost_containers, split_patch
from vkgateway.kinds.refusals import is_starting, lacks_rights
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.kube.client import encode
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.annotations import AMOUNTS, FORWARDED, REQUESTS

_RETRY: Final = 30.0
"""Seconds until a change is retried that lacked free capacity or permission, or that was refused."""
_NO_RIGHTS: Final = "the compute cluster does not allow the gateway to make this change at the moment"
_NO_CONDITION_RIGHTS: Final = "the compute cluster does not allow the gateway to write pod conditions at the moment"


class _Status(msgspec.Struct, gc=False):
    conditions: list[Object] | None = None


_status = msgspec.json.Decoder(_Status)


class _LostError(Exception):
    """The compute cluster would drop fields of every part of a patch."""


class ChangeForwarder:
    """Forwarder of one tenant's pod changes."""

    def __init__(self, scope: TenantScope, mirror: PodMirror, *, copies: CopyReconciler) -> None:
        self._scope = scope
        self._mirror = mirror
        self._copies = copies

    async def forward_changes(self, context: PodContext) -> None:
        """Forward labels, annotations and mutable spec fields, and record the forwarded state on the compute pod."""
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        if context.binding is None:
            return  # its virtual node was deleted, and the tenant's pod garbage collector removes the pod
        pod = decode(await self._mirror.read_pod(tenant_pod))
        namespace, name = compute_pod.metadata.namespace, compute_pod.metadata.name
        current = decode(await context.link.client.get(resources.PODS, name, namespace=namespace))
        changes = diff_pods(pod, current, tenant=self._scope.tenant, pool=context.binding.pool)
        for refusal in changes.unsupported:
            await self._mirror.reporter.emit_event(context, "ChangeNotForwarded", refusal.message)
        patch: Object = changes.patch or {}
        annotations = patch.setdefault("metadata", {}).setdefault("annotations", {})
        checksum, forwarded_checksum = (
            resources_checksum(pod["spec"]),
            (current["metadata"].get("annotations") or {}).get(AMOUNTS),
        )
        if checksum == forwarded_checksum and _is_within(current, context):
            changes = without_resize(changes)
        waiting = dict(changes.waiting_containers)
        if await self._write_subresources(context, changes, pod, waiting):
            annotations[FORWARDED] = tenant_pod.fingerprint
            if checksum != forwarded_checksum and not context.resize_refused:
                annotations[AMOUNTS] = checksum
        if waiting:
            await self._mirror.reporter.show_waiting(context, pod["spec"]["ephemeralContainers"], waiting)
        if (
            not _is_resize_pending(context)
            and not context.resize_refused
            and compute_pod.admitted_requests != plan_of(context).requests
        ):
            annotations[REQUESTS] = encode(plan_of(context).requests).decode()
        if changes.patch or annotations:
            await self._write_patch(context, patch)

    async def _write_patch(self, context: PodContext, patch: Object) -> None:
        """Patch the compute pod. If its spec is refused, emit an event and patch the metadata only."""
        compute_pod = compute_pod_of(context).metadata
        patch["metadata"]["uid"] = compute_pod.uid
        refusal = await self._patch_pod(context, patch)
        if refusal is not None:
            await self._mirror.reporter.emit_event(context, "ChangeNotForwarded", refusal)
            if "spec" in patch:
                await self._patch_pod(context, {"metadata": patch["metadata"]})

    async def _write_subresources(
        self, context: PodContext, changes: PodDiff, pod: Object, waiting: dict[str, str]
    ) -> bool:
        """Forward ephemeral containers and resizes; return whether nothing of it must be retried.

        `pod` is the tenant pod that `changes` was computed from. Refused ephemeral containers are added to `waiting`,
        with the reason.
        """
        uid, complete = compute_pod_of(context).metadata.uid, True
        for subresource, patch in changes.subresources.items():
            if subresource == "resize" and not await self._is_counted(context, pod):
                complete = False
                continue
            if subresource == "ephemeralcontainers":
                for reference in plan_of(context).references:
                    await self._copies.ensure_copy(context.link, reference)
            found = await self._write_subresource(context, {**patch, "metadata": {"uid": uid}}, subresource)
            for refusal in dict.fromkeys(reason for reason, _ in found):
                await self._mirror.reporter.emit_event(context, "ChangeNotForwarded", refusal)
                if refusal == _NO_RIGHTS:
                    complete = False
                context.resize_refused = context.resize_refused or subresource == "resize"
            for reason, one in found:
                waiting |= {container["name"]: reason for container in one["spec"].get("ephemeralContainers") or ()}
        if not complete:
            self._scope.work_queue.enqueue(POD, context.key, _RETRY)
        return complete

    async def _write_subresource(
        self, context: PodContext, patch: Object, subresource: Subresource
    ) -> list[tuple[str, Object]]:
        """Patch a subresource; return the refused parts, each with the reason for the tenant.

        If several ephemeral containers are refused together, each is tried alone: an ephemeral container cannot be
        removed from the tenant pod, so a refused one must not block later ones.
        """
        refusal = await self._patch_pod(context, patch, subresource)
        if refusal is None or refusal == _NO_RIGHTS or len(parts := split_patch(patch)) < 2:
            return [] if refusal is None else [(refusal, patch)]
        found = [(await self._patch_pod(context, one, subresource), one) for one in parts]
        return [(reason, one) for reason, one in found if reason is not None]

    async def _is_counted(self, context: PodContext, pod: Object) -> bool:
        """Return whether the requested resources are admitted; a deferred resize emits an event.

        The pod may have changed since its reconciliation started, and a tenant may run a manipulated API server: see
        `PodForwarder._read_admitted`.
        """
        if context.resize_admission is not None and _is_resize_pending(context):
            await self._mirror.reporter.emit_event(
                context, "ResizeDeferred", f"the pod is not resized yet: {context.resize_admission.message}"
            )
            return False
        return pod_requests(pod) == plan_of(context).requests

    async def _patch_pod(
        self, context: PodContext, patch: Object, subresource: Subresource | None = None
    ) -> str | None:
        """Patch the compute pod; return why the compute cluster refuses it, in the tenant's names, or None."""
        compute_pod = compute_pod_of(context).metadata
        try:
            accepted_patch = (
                patch if subresource is None else await self._without_lost_fields(context, patch, subresource)
            )
            await context.link.client.patch(
                resources.PODS,
                compute_pod.name,
                accepted_patch,
                namespace=compute_pod.namespace,
                subresource=subresource,
                kind="strategic",
                metadata_only=True,
            )
        except _LostError as error:
            return str(error)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            has_no_rights = lacks_rights(error)
            if is_starting(error) or (subresource is None and has_no_rights):
                raise
            return (
                _NO_RIGHTS
                if has_no_rights
                else clean_message(context, error.server_message, namespace=compute_pod.namespace)
            )
        except errors.NotFound as error:
            if subresource is None or f'pods "{compute_pod.name}" not found' in error.server_message:
                raise  # the pod itself was deleted, as its watch is about to report
            return f"the compute cluster does not support the pod subresource {subresource}"
        return None

    async def _without_lost_fields(self, context: PodContext, patch: Object, subresource: Subresource) -> Object:
        """Return the patch without containers that would lose fields, and emit an event about them.

        Raises _LostError if nothing is left.
        """
        lost = await context.link.pods.fields_lost_on_patch(compute_pod_of(context).metadata, patch, subresource)
        if not lost:
            return patch
        remaining_patch = drop_lost_containers(patch, lost)
        if remaining_patch is None:
            raise _LostError(lost_fields_message(lost))
        await self._mirror.reporter.emit_event(context, "ChangeNotForwarded", lost_fields_message(lost))
        return remaining_patch


def _is_within(current: Object, context: PodContext) -> bool:
    """Return whether the compute pod requests at most its admitted resources, and the tenant pod exactly these."""
    requests = plan_of(context).requests
    if compute_pod_of(context).admitted_requests != requests:
        return False
    return all(amount <= requests.get(name, 0) for name, amount in pod_requests(current).items())


def _is_resize_pending(context: PodContext) -> bool:
    return context.resize_admission is not None and context.resize_admission.verdict == "held"


class ReadinessForwarder:
    """Forwarder of one tenant's readiness gate conditions; the compute kubelet derives the readiness from them."""

    def __init__(self, scope: TenantScope, mirror: PodMirror) -> None:
        self._scope = scope
        self._mirror = mirror

    async def forward_conditions(self, context: PodContext) -> None:
        """Copy the conditions of the pod's readiness gates from the tenant cluster to the compute cluster.

        Raises ApiError if the request must be retried. A refusal is reported to the tenant.
        """
        compute_pod = compute_pod_of(context)
        gates = tenant_gates(compute_pod.metadata.annotations)
        if not gates:
            return
        tenant_status = tenant_pod_of(context).status
        differing = gate_conditions_patch(
            _decode_conditions(tenant_status), _decode_conditions(compute_pod.status), gates
        )
        if not differing:
            return
        try:
            status = {"conditions": differing}
            await context.link.client.patch_status(resources.PODS, compute_pod.metadata, status, kind="strategic")
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            if is_starting(error):
                raise
            message = clean_message(context, error.server_message, namespace=compute_pod.metadata.namespace)
            reason = _NO_CONDITION_RIGHTS if lacks_rights(error) else message
            await self._mirror.reporter.emit_event(
                context, "ReadinessNotForwarded", f"conditions of readiness gates: {reason}"
            )
            self._scope.work_queue.enqueue(POD, context.key, _RETRY)


def _decode_conditions(status: bytes) -> list[Object]:
    return _status.decode(status).conditions or []

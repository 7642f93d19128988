"""Readiness gate conditions: the tenant sets them, and the compute kubelet derives the pod's readiness from them."""

from __future__ import annotations

from typing import Final

import msgspec

from vkgateway.kube import errors, resources
from vkgateway.model.objects import Object
from vkgateway.sync.pods.mirror import PodMirror, clean_message
from vkgateway.sync.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.sync.refusals import is_starting, lacks_rights
from vkgateway.sync.runtime.requests import POD
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.translate.conditions import gate_conditions_patch
from vkgateway.translate.metadata import tenant_gates

_RETRY: Final = 30.0
"""Seconds until a refused patch is retried."""
_NO_RIGHTS: Final = "the compute cluster does not allow the gateway to write pod conditions at the moment"


class _Status(msgspec.Struct, gc=False):
    conditions: list[Object] | None = None


_status = msgspec.json.Decoder(_Status)


class ReadinessForwarder:
    """Forwarder of one tenant's readiness gate conditions."""

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
            await context.link.client.patch(
                resources.PODS,
                compute_pod.metadata.name,
                {"metadata": {"uid": compute_pod.metadata.uid}, "status": {"conditions": differing}},
                namespace=compute_pod.metadata.namespace,
                subresource="status",
                kind="strategic",
                metadata_only=True,
            )
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            if is_starting(error):
                raise
            message = clean_message(context, error.server_message, namespace=compute_pod.metadata.namespace)
            reason = _NO_RIGHTS if lacks_rights(error) else message
            await self._mirror.reporter.emit_event(
                context, "ReadinessNotForwarded", f"conditions of readiness gates: {reason}"
            )
            self._scope.work_queue.enqueue(POD, context.key, _RETRY)


def _decode_conditions(status: bytes) -> list[Object]:
    return _status.decode(status).conditions or []

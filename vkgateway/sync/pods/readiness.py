"""Conditions of readiness gates: the tenant writes them, the compute kubelet judges the pod's readiness by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from vkgateway.kube import errors, resources
from vkgateway.model.objects import Object
from vkgateway.sync.pods.mirror import PodMirror, clean_message
from vkgateway.sync.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.sync.refusals import is_starting, lacks_rights
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.readiness_gates import gate_conditions_patch, tenant_gates

_RETRY: Final = 30.0
"""Seconds until a refused patch is tried again."""
_NO_RIGHTS: Final = "the compute cluster does not let the gateway write conditions of pods now"


class _Status(msgspec.Struct, gc=False):
    conditions: list[Object] | None = None


_status = msgspec.json.Decoder(_Status)


class ReadinessForwarder:
    """Mirrors the conditions of one tenant's readiness gates; `later(key, seconds)` asks for another look at a pod."""

    def __init__(self, *, upward: PodMirror, later: Callable[[Key, float], None]) -> None:
        self._mirror = upward
        self._requeue_after = later

    async def forward_conditions(self, case: PodContext) -> None:
        """Make the conditions of the pod's gates in the compute cluster equal to those in the tenant cluster.

        Raises ApiError if the compute cluster cannot be asked now. A refusal is reported to the tenant.
        """
        below = compute_pod_of(case)
        gates = tenant_gates(below.metadata.annotations)
        if not gates:
            return
        above = tenant_pod_of(case).status
        differing = gate_conditions_patch(_decode_conditions(above), _decode_conditions(below.status), gates)
        if not differing:
            return
        try:
            await case.link.client.patch(
                resources.PODS,
                below.metadata.name,
                {"metadata": {"uid": below.metadata.uid}, "status": {"conditions": differing}},
                namespace=below.metadata.namespace,
                subresource="status",
                kind="strategic",
                metadata_only=True,
            )
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            if is_starting(error):
                raise
            said = clean_message(case, error.server_message, namespace=below.metadata.namespace)
            why = _NO_RIGHTS if lacks_rights(error) else said
            await self._mirror.emit_event(case, "ReadinessNotForwarded", f"conditions of readiness gates: {why}")
            self._requeue_after(case.key, _RETRY)


def _decode_conditions(status: bytes) -> list[Object]:
    return _status.decode(status).conditions or []

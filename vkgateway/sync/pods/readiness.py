"""Conditions of readiness gates: the tenant writes them, the compute kubelet judges the pod's readiness by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from vkgateway.kube import errors, resources
from vkgateway.model.objects import Object
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.pods.case import Case, above_of, below_of
from vkgateway.sync.pods.upward import Upward, cleaned
from vkgateway.sync.refusals import is_starting, lacks_rights
from vkgateway.translate.readiness import gate_conditions, tenants_gates

_RETRY: Final = 30.0
"""Seconds until a refused patch is tried again."""
_NO_RIGHTS: Final = "the compute cluster does not let the gateway write conditions of pods now"


class _Status(msgspec.Struct, gc=False):
    conditions: list[Object] | None = None


_status = msgspec.json.Decoder(_Status)


class ReadinessDown:
    """Mirrors the conditions of one tenant's readiness gates; `later(key, seconds)` asks for another look at a pod."""

    def __init__(self, *, upward: Upward, later: Callable[[Key, float], None]) -> None:
        self._upward = upward
        self._later = later

    async def write(self, case: Case) -> None:
        """Make the conditions of the pod's gates in the compute cluster equal to those in the tenant cluster.

        Raises ApiError if the compute cluster cannot be asked now. A refusal is reported to the tenant.
        """
        below = below_of(case)
        gates = tenants_gates(below.metadata.annotations)
        if not gates:
            return
        above = above_of(case).status
        differing = gate_conditions(_conditions(above), _conditions(below.status), gates)
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
            said = cleaned(case, error.words, namespace=below.metadata.namespace)
            why = _NO_RIGHTS if lacks_rights(error) else said
            await self._upward.tell(case, "ReadinessNotForwarded", f"conditions of readiness gates: {why}")
            self._later(case.key, _RETRY)


def _conditions(status: bytes) -> list[Object]:
    return _status.decode(status).conditions or []

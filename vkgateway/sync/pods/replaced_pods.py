"""Removal of ended pods that their controllers have replaced, as Kubernetes removes evicted pods."""

from __future__ import annotations

from typing import Final

from vkgateway.kube import errors
from vkgateway.model import times
from vkgateway.model.objects import Object
from vkgateway.sync.pods.mirror import PodMirror
from vkgateway.sync.pods.pod_context import PodContext, decode, tenant_pod_of
from vkgateway.sync.runtime.requests import POD
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.translate.conditions import DISRUPTION_CONDITION

SHOWN_SECONDS: Final = 30.0
"""Seconds for which an ended pod stays visible for users and log collectors."""
_REPLACING: Final = frozenset({("apps", "ReplicaSet"), ("", "ReplicationController")})
"""Controllers that replace a failed pod without deleting it. StatefulSets and DaemonSets delete it; Jobs retain it,
because their failure policies count it.
"""


class ReplacedPods:
    """Removal of one tenant's pods that the platform ended and that their controller replaced."""

    def __init__(self, scope: TenantScope, mirror: PodMirror) -> None:
        self._scope = scope
        self._mirror = mirror
        self._clock = scope.clock

    async def remove_replaced(self, context: PodContext) -> None:
        """Remove the tenant pod after it was visible for a while, if its controller has replaced it."""
        tenant_pod = tenant_pod_of(context)
        now = self._clock.time()
        remaining = _ended_at(decode(tenant_pod.status), default=now) + SHOWN_SECONDS - now
        if remaining > 0:
            self._scope.work_queue.enqueue(POD, context.key, remaining)
            return
        try:
            pod = decode(await self._mirror.read_pod(tenant_pod))
        except (errors.NotFound, errors.Conflict):
            return
        if is_replaced(pod):
            await self._mirror.delete_pod(context)


def is_replaced(pod: Object) -> bool:
    """Return whether a pod's controller replaces failed pods without deleting them."""
    owners = pod["metadata"].get("ownerReferences") or ()
    controllers = (owner for owner in owners if owner.get("controller"))
    return any((_api_group(owner["apiVersion"]), owner["kind"]) in _REPLACING for owner in controllers)


def _api_group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _ended_at(status: Object, *, default: float) -> float:
    """Return when the pod ended, in seconds since the epoch; `default` if its status has no time."""
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    end_times = [end for state in states if (end := (state.get("terminated") or {}).get("finishedAt"))]
    conditions = status.get("conditions") or ()
    end_times += [
        since
        for entry in conditions
        if entry["type"] == DISRUPTION_CONDITION and (since := entry.get("lastTransitionTime"))
    ]
    return max((times.parse_time(end).timestamp() for end in end_times), default=default)

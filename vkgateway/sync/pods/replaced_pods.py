"""Removes ended pods whose controller has made others in their place, as Kubernetes removes what it evicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vkgateway.kube import errors
from vkgateway.model import times
from vkgateway.model.objects import Object
from vkgateway.sync.pods.mirror import PodMirror
from vkgateway.sync.pods.pod_context import PodContext, decode, tenant_pod_of
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.conditions import DISRUPTION_CONDITION

SHOWN_SECONDS: Final = 30.0
"""How long such a pod is shown after its end, for people and log collectors to read what became of it."""
_REPLACING: Final = frozenset({("apps", "ReplicaSet"), ("", "ReplicationController")})
"""Controllers that replace a failed pod and leave it where it is. StatefulSets and DaemonSets delete it; Jobs
keep it, as their failure policies count it."""


class ReplacedPods:
    """Removes pods of one tenant that the platform took away; `later(key, seconds)` asks for another look at a pod."""

    def __init__(self, upward: PodMirror, *, later: Callable[[Key, float], None], clock: Callable[[], float]) -> None:
        self._mirror = upward
        self._requeue_after = later
        self._clock = clock

    async def remove_replaced(self, case: PodContext) -> None:
        """Remove the tenant pod once it has been shown for a while, if its controller is one that replaced it."""
        above = tenant_pod_of(case)
        left = _ended_at(decode(above.status), default=self._clock()) + SHOWN_SECONDS - self._clock()
        if left > 0:
            self._requeue_after(case.key, left)
            return
        try:
            pod = decode(await self._mirror.read_pod(above))
        except (errors.NotFound, errors.Conflict):
            return
        if is_replaced(pod):
            await self._mirror.delete_pod(case)


def is_replaced(pod: Object) -> bool:
    """Whether a pod's controller makes another in the place of a failed one, and leaves that one where it is."""
    owners = pod["metadata"].get("ownerReferences") or ()
    controllers = (owner for owner in owners if owner.get("controller"))
    return any((_api_group(owner["apiVersion"]), owner["kind"]) in _REPLACING for owner in controllers)


def _api_group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _ended_at(status: Object, *, default: float) -> float:
    """Return when the pod ended, in seconds since the epoch; `default` where its status does not say."""
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    ends = [end for state in states if (end := (state.get("terminated") or {}).get("finishedAt"))]
    conditions = status.get("conditions") or ()
    ends += [
        since
        for entry in conditions
        if entry["type"] == DISRUPTION_CONDITION and (since := entry.get("lastTransitionTime"))
    ]
    return max((times.parse_time(end).timestamp() for end in ends), default=default)

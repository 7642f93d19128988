"""Failures of gangs by compute node: nodes on which several gangs fail are chosen last.

The record is in memory: after a restart of the gateway, no node is avoided.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog

from vkgateway.runtime.views.pods import ComputePodView

log = structlog.get_logger(__name__)

FAILURE_SECONDS: Final = 3600.0
"""Seconds for which a failure counts."""
_MAX_NODES: Final = 4096
_MAX_GANGS: Final = 16
"""Maximum gangs recorded for a node: more than two do not change the choice."""
MIN_GANGS: Final = 2
"""Number of different gangs from which a node is avoided: one gang fails by its own fault wherever it runs."""


class NodeFailures:
    """Gangs that failed on the nodes of one compute cluster, with the time of their last failure there."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._times: OrderedDict[str, dict[str, float]] = OrderedDict()
        """By node and gang, in seconds since the epoch; the node with the latest failure is the last one."""

    def record_failure(self, node: str, gang: str, now: float) -> None:
        """Record that a container of a gang's pod ended with an error on a node."""
        gangs = self._times.setdefault(node, {})
        self._times.move_to_end(node)
        gangs.pop(gang, None)
        gangs[gang] = now
        if len(gangs) > _MAX_GANGS:
            del gangs[next(iter(gangs))]
        if len(self._times) > _MAX_NODES:
            self._times.popitem(last=False)
        failed = sum(now - time < FAILURE_SECONDS for time in gangs.values())
        if failed >= MIN_GANGS:
            log.warning(
                "pods of several gangs failed on a node; it is chosen last for an hour",
                compute_cluster=self._cluster,
                node=node,
                gangs=failed,
            )

    def failed_gangs(self, now: float) -> Mapping[str, int]:
        """Return the avoided nodes, with the number of gangs that failed there."""
        found = {}
        for node, gangs in list(self._times.items()):
            for gang in [gang for gang, time in gangs.items() if now - time >= FAILURE_SECONDS]:
                del gangs[gang]
            if not gangs:
                del self._times[node]
            elif len(gangs) >= MIN_GANGS:
                found[node] = len(gangs)
        return found


class _Terminated(msgspec.Struct, rename="camel", gc=False):
    exit_code: int = 0


class _ContainerState(msgspec.Struct, gc=False):
    terminated: _Terminated | None = None


class _Container(msgspec.Struct, rename="camel", gc=False):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)
    last_state: _ContainerState = msgspec.field(default_factory=_ContainerState)
    restart_count: int = 0


class _Condition(msgspec.Struct, gc=False):
    type: str = ""
    status: str = ""


class _Status(msgspec.Struct, rename="camel", gc=False):
    reason: str = ""
    conditions: tuple[_Condition, ...] = ()
    container_statuses: tuple[_Container, ...] = ()
    init_container_statuses: tuple[_Container, ...] = ()


_decode = msgspec.json.Decoder(_Status).decode


def failed_runs(pod: ComputePodView) -> int:
    """Return how many runs of the pod's containers ended with an error, as far as its status shows it.

    0 for a pod that is being deleted, or that Kubernetes evicted or preempted: its containers are stopped by a signal.
    """
    if pod.metadata.deletion_timestamp is not None or b'"exitCode"' not in pod.status:
        return 0
    try:
        status = _decode(pod.status)
    except msgspec.DecodeError:
        return 0
    disrupted = any(each.type == "DisruptionTarget" and each.status == "True" for each in status.conditions)
    if status.reason or disrupted:
        return 0
    containers = (*status.init_container_statuses, *status.container_statuses)
    return sum(each.restart_count + 1 for each in containers if _has_failed(each.state) or _has_failed(each.last_state))


def _has_failed(state: _ContainerState) -> bool:
    return state.terminated is not None and state.terminated.exit_code != 0

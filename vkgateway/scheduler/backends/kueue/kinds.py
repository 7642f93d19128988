"""Kueue's kinds in a compute cluster."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from vkgateway.api import times
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import Object
from vkgateway.api.types import KUEUE
from vkgateway.kube.resources import Resource
from vkgateway.scheduler.backends.kinds import ModeKinds
from vkgateway.scheduler.backends.kueue.names import API_VERSION
from vkgateway.scheduler.backends.kueue.views import PODS_READY, WorkloadView, decode_workload, read_attempt

PREFIX: Final = f"apis/{API_VERSION}"
WORKLOADS: Final = Resource(PREFIX, "workloads", "Workload")
LOCAL_QUEUES: Final = Resource(PREFIX, "localqueues", "LocalQueue")
CLUSTER_QUEUES: Final = Resource(PREFIX, "clusterqueues", "ClusterQueue", namespaced=False)
COHORTS: Final = Resource(PREFIX, "cohorts", "Cohort", namespaced=False)
FLAVORS: Final = Resource(PREFIX, "resourceflavors", "ResourceFlavor", namespaced=False)
TOPOLOGIES: Final = Resource(PREFIX, "topologies", "Topology", namespaced=False)


def _ready_status(now: datetime) -> Object:
    """Return the condition without which Kueue would evict a gang if it waits for its pods (`waitForPodsReady`)."""
    return {
        "conditions": [
            {
                "type": PODS_READY,
                "status": "True",
                "reason": "Started",
                "message": "All pods are ready",
                "lastTransitionTime": times.render_time(now),
            }
        ]
    }


def _returned_status(slots: Mapping[str, int]) -> Object:
    """Return the number of pods by pod set for which Kueue reserves no quota any more. It must never decrease."""
    return {"reclaimablePods": [{"name": name, "count": count} for name, count in sorted(slots.items())]}


KUEUE_KINDS: Final[ModeKinds[WorkloadView]] = ModeKinds(
    mode=KUEUE,
    title="Kueue",
    attempts=WORKLOADS,
    namespace=SYSTEM_NAMESPACE,
    pool_kinds=(LOCAL_QUEUES, CLUSTER_QUEUES, COHORTS, FLAVORS, TOPOLOGIES),
    decode=decode_workload,
    read=read_attempt,
    ready_status=_ready_status,
    returned_status=_returned_status,
)

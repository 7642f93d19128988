"""Pods of the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.names import GANG_ANNOTATION, GANG_MIN_ANNOTATION

RUN_LABEL: Final = "bench"
"""Label of every pod of a run, with the run's name, so that watches see no others."""
GPU: Final = "nvidia.com/gpu"
_TOKENS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodKind:
    """Properties that all pods of a run share.

    `token`: mount a service account token. `selector`: node selector. `scheduler`: scheduler name, the default
    scheduler if empty. `node`: node to which the pods are already bound. `finalizer`: finalizer. `gpus`: requested
    GPUs. `priority_class`: priority class. `restart`: restart policy. `handed_token`: mount a Secret with the pod's
    name in place of a token.
    """

    run: str
    token: bool = False
    selector: dict[str, str] | None = None
    scheduler: str = ""
    node: str = ""
    finalizer: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    gpus: int = 0
    priority_class: str = ""
    restart: str = ""
    handed_token: bool = False


def pod_manifest(name: str, kind: PodKind) -> dict[str, Any]:
    """Return a pod with one small container."""
    metadata: dict[str, Any] = {"name": name, "labels": {RUN_LABEL: kind.run, "app": "load", **(kind.labels or {})}}
    if kind.annotations:
        metadata["annotations"] = kind.annotations
    if kind.finalizer:
        metadata["finalizers"] = [kind.finalizer]
    resources: dict[str, Any] = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    if kind.gpus:
        resources["limits"] = {GPU: str(kind.gpus)}
    spec: dict[str, Any] = {
        "containers": [
            {
                "name": "main",
                "image": "registry.invalid/load:1",
                "command": ["sleep", "infinity"],
                "resources": resources,
            }
        ]
    }
    if not kind.token:
        spec["automountServiceAccountToken"] = False
    if kind.handed_token:
        spec["volumes"] = [{"name": "token", "secret": {"secretName": name}}]
        spec["containers"][0]["volumeMounts"] = [{"name": "token", "mountPath": _TOKENS, "readOnly": True}]
    chosen = {
        "nodeSelector": kind.selector,
        "schedulerName": kind.scheduler,
        "nodeName": kind.node,
        "priorityClassName": kind.priority_class,
        "restartPolicy": kind.restart,
    }
    spec |= {field: value for field, value in chosen.items() if value}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def gang_marks(gang: str, members: int) -> dict[str, str]:
    """Return the annotations of a gang with this number of pods."""
    return {GANG_ANNOTATION: gang, GANG_MIN_ANNOTATION: str(members)}


def spread_pods(count: int, places: int, *, prefix: str = "p") -> list[tuple[int, str]]:
    """Return place and pod name of each of `count` pods, distributed over `places`."""
    return [(number % places, f"{prefix}-{number:05d}") for number in range(count)]


def running_status(now: str, *, node_ip: str = "10.0.0.1", ready: bool = True) -> dict[str, Any]:
    """Return the status that a node writes for such a pod: running and ready, or ended by a signal."""
    kinds: Sequence[str] = ("PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready")
    running = {"running": {"startedAt": now}}
    ended = {"terminated": {"exitCode": 143, "reason": "Error", "startedAt": now, "finishedAt": now}}
    return {
        "phase": "Running" if ready else "Failed",
        "startTime": now,
        "hostIP": node_ip,
        "hostIPs": [{"ip": node_ip}],
        "podIP": "10.0.1.1",
        "podIPs": [{"ip": "10.0.1.1"}],
        "conditions": [
            {"type": kind, "status": "True" if ready else "False", "lastProbeTime": None, "lastTransitionTime": now}
            for kind in kinds
        ],
        "containerStatuses": [
            {
                "name": "main",
                "image": "registry.invalid/load:1",
                "imageID": "",
                "ready": ready,
                "restartCount": 0,
                "started": ready,
                "state": running if ready else ended,
            }
        ],
    }

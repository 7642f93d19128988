"""Statuses of tenant pods, field by field beside those that the real kubelet writes for equal pods of no tenant.

Each case is a pod that exists twice: in the tenant cluster, where the gateway writes its status, and in the compute
cluster on the real node, where only the kubelet does. The gateway's status is compared with that of its own compute
pod, too, since the kubelet may report two equal pods differently.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.e2e.cluster import BUSYBOX, REAL, Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience

pytestmark = pytest.mark.usefixtures("real")

NODE: Final = "real-0"
VIRTUAL_NODE: Final = "real.local"
COMPUTE_NAMESPACE: Final = "alpha--default"
LABELS: Final = {"vkgateway-test": "statuses"}
NEVER: Final = {"restartPolicy": "Never"}
_SCRATCH: Final[dict[str, Any]] = {
    "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
    "container": {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
}
CASES: Final[dict[str, dict[str, Any]]] = {
    "running": {},
    "succeeded": {"command": "true", **NEVER},
    "failed": {"command": "echo broken > /dev/termination-log; exit 3", **NEVER},
    "init": {
        "initContainers": [
            {"name": "first", "image": BUSYBOX, "command": ["true"]},
            {"name": "sidecar", "image": BUSYBOX, "command": ["sleep", "3600"], "restartPolicy": "Always"},
        ]
    },
    "init-failed": {"initContainers": [{"name": "first", "image": BUSYBOX, "command": ["false"]}], **NEVER},
    "debugged": {},
    # The container has started by then on a busy machine, too.
    "deadline": {"activeDeadlineSeconds": math.ceil(patience(5)), **NEVER},
    "evicted": {"command": "head -c 8000000 /dev/zero > /scratch/file; sleep 3600", **_SCRATCH, **NEVER},
    "without-image": {"container": {"image": "vkgateway.local/none:1", "imagePullPolicy": "Never"}},
    "rejected": {"container": {"resources": {"requests": {"cpu": "100000"}}}},
    "unschedulable": {"nodeSelector": {"vkgateway-test": "no-such-node"}},
}
"""Fields of each pod. `unschedulable` waits for a scheduler; the kubelet rejects `rejected`, which is bound already."""
_PHASES: Final = {
    "succeeded": "Succeeded",
    "without-image": "Pending",
    "unschedulable": "Pending",
    **dict.fromkeys(("failed", "init-failed", "deadline", "evicted", "rejected"), "Failed"),
}
"""Phase that a pod reaches and keeps; the others run."""

_WITHOUT_CONTAINERS: Final = ("rejected", "unschedulable")
"""Cases whose status the gateway writes itself."""
_VARYING: Final = re.compile(
    r"(.*\.)?(startTime|startedAt|finishedAt|lastTransitionTime|lastProbeTime|containerID|podIP|hostIP|ip)"
)
"""Fields whose values differ between any two pods."""
DIFFERENCES: Final[tuple[tuple[str, str, str], ...]] = (
    (".*", r"conditions\[vkgateway\.io/[^]]*\]\..*", "conditions of the gateway, which a tenant reads besides"),
    ("deadline|evicted", r"conditions\[DisruptionTarget\]\..*", "the gateway reports why the node ended the pod, too"),
)
"""Pattern of cases, pattern of fields, and why the gateway's status may differ there from that of its compute pod."""
KUBELET_DIFFERENCES: Final[tuple[tuple[str, str, str], ...]] = (
    ("rejected", "message", "the gateway names the largest request that a machine of the pool can hold"),
    ("unschedulable", r"conditions\[PodScheduled\]\.message", "it counts the nodes of its cluster"),
    (".*", r"resources(\..*)?", "the kubelet reads them from the cgroup of the pod, which comes and goes with it"),
    ("evicted", r".*", "the kubelet sometimes loses a container that it evicts: reason ContainerStatusUnknown"),
)
"""The same for the status of an equal pod."""


def pod_of(case: str, place: dict[str, Any], bound: dict[str, Any]) -> Document:
    """Return the pod of a case: scheduled to `place`, or `bound` there by its creator."""
    fields = {"automountServiceAccountToken": False, **place, **CASES[case], **(bound if case == "rejected" else {})}
    if case == "unschedulable":
        fields.pop("nodeName", None)
    pod = pod_manifest(f"status-{case}", **fields)
    pod["metadata"]["labels"] = LABELS
    return pod


@pytest.fixture(scope="module")
def clusters(platform: Platform, alpha: Cluster) -> Iterator[tuple[Cluster, Cluster]]:
    """Yield the tenant cluster and the compute cluster with a pod of each case, all created at once."""
    if not platform.real:
        pytest.skip("no real node here")
    compute = platform.compute
    below = {"nodeName": NODE}
    compute.apply(*(pod_of(case, below, below) for case in CASES))
    alpha.apply(*(pod_of(case, REAL, {"nodeName": VIRTUAL_NODE, "nodeSelector": {}}) for case in CASES))
    for cluster in (compute, alpha):
        cluster.wait_pod("status-debugged")
        debug = ("debug", "status-debugged", "-c", "tool", "--profile=baseline", f"--image={BUSYBOX}")
        cluster.kubectl(*debug, "--", "sleep", "3600")
    yield alpha, compute
    for cluster in (compute, alpha):
        cluster.kubectl("delete", "pods", "-l", "vkgateway-test=statuses", "--wait=false", "--grace-period=1")


def status_of(cluster: Cluster, case: str, namespace: str = "default") -> Document:
    """Return the status of a case's pod."""
    status: Document = cluster.get("pod", f"status-{case}", "-n", namespace).get("status", {})
    return status


def is_settled(case: str, status: Document) -> bool:
    """Return whether a pod has reached the state that its case is about."""
    if status.get("phase") != _PHASES.get(case, "Running"):
        return False
    containers = status.get("containerStatuses") or []
    if case == "debugged":
        tools = status.get("ephemeralContainerStatuses") or []
        return any("running" in tool["state"] for tool in tools)
    if case == "without-image":
        return any((one["state"].get("waiting") or {}).get("reason") == "ErrImageNeverPull" for one in containers)
    return case in _PHASES or (bool(containers) and all(one["ready"] for one in containers))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a status by path. A list item has its name, type or mount path, or else its number."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            keys = ("name", "type", "mountPath") if isinstance(inner, dict) else ()
            name = next((inner[key] for key in keys if key in inner), number)
            yield from flatten(inner, f"{path}[{name}]")
    else:
        yield path, value


def compare(
    case: str, written: Document, by_kubelet: Document, differences: tuple[tuple[str, str, str], ...]
) -> list[str]:
    """Return the fields that only one of two statuses has, or whose values differ without one of these reasons."""
    ours, theirs = dict(flatten(written)), dict(flatten(by_kubelet))
    found = []
    for path in sorted(ours.keys() | theirs.keys()):
        if any(re.fullmatch(cases, case) and re.fullmatch(field, path) for cases, field, _ in differences):
            continue
        if path not in theirs:
            found.append(f"{path}: the kubelet does not write it, the gateway writes {ours[path]!r}")
        elif path not in ours:
            found.append(f"{path}: the kubelet writes {theirs[path]!r}, the gateway does not")
        elif _VARYING.fullmatch(path) and type(ours[path]) is type(theirs[path]):
            continue
        elif ours[path] != theirs[path]:
            found.append(f"{path}: the kubelet writes {theirs[path]!r}, the gateway {ours[path]!r}")
    return found


@pytest.mark.parametrize("case", CASES)
def test_status_has_the_fields_and_values_of_a_kubelets(clusters: tuple[Cluster, Cluster], case: str) -> None:
    alpha, compute = clusters
    for cluster, whose in ((compute, "kubelet"), (alpha, "gateway")):
        eventually(lambda: is_settled(case, status_of(cluster, case)), what=f"the {whose}'s status of {case}")  # noqa: B023

    def differences() -> list[str]:
        written = status_of(alpha, case)
        found = compare(case, written, status_of(compute, case), DIFFERENCES + KUBELET_DIFFERENCES)
        if case not in _WITHOUT_CONTAINERS:
            own = status_of(compute, case, COMPUTE_NAMESPACE)
            found += [f"own {one}" for one in compare(case, written, own, DIFFERENCES)]
        return found

    found: list[str] = []

    def is_equal() -> bool:
        nonlocal found
        found = differences()
        return not found

    # A kubelet writes several times, also after the end of a pod: the statuses are equal between two of its writes.
    with contextlib.suppress(AssertionError):
        eventually(is_equal, seconds=60)
    assert found == []

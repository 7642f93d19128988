"""Helpers for tests of admission over both servers: gated pods, the tenant's scheduler, conditions and request logs."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.sync.world import COMPUTE_NODE, NODE, World, compute_node, until
from vkgateway.kube.resources import NODES, PODS
from vkgateway.model.names import ADMISSION_GATE

Document = dict[str, Any]

GATE = {"name": ADMISSION_GATE}
ADMITTED = "vkgateway.io/Admitted"
DEADLINE = "vkgateway.io/eviction-deadline"
SECOND_NODE = "gpu-host-18"
LOW: Document = {"priorityClassName": "vkgateway-low", "priority": -1000}


def gated(
    here: World,
    name: str = "web",
    *,
    gpus: int = 1,
    gang: tuple[str, int] | None = None,
    marks: Document | None = None,
    **spec: Any,
) -> Document:
    """A pod as it is born: behind our gate, without a node.

    `gang` is its name and size, `marks` are its annotations; None takes a field of its spec off.
    """
    metadata: Document = {"name": name, "annotations": dict(marks or {})}
    if gang is not None:
        metadata["annotations"] |= {"vkgateway.io/gang": gang[0], "vkgateway.io/gang-size": str(gang[1])}
    body = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        "enableServiceLinks": False,
        "schedulingGates": [GATE],
        "terminationGracePeriodSeconds": 5,
        **spec,
    }
    body = {key: value for key, value in body.items() if value is not None}
    return here.above.store.create(PODS, {"metadata": metadata, "spec": body}, "default")


def pod(here: World, name: str = "web") -> Document:
    found = here.tenant_pod(name)
    assert found is not None
    return found


def is_let_go(here: World, name: str = "web") -> bool:
    return not pod(here, name)["spec"].get("schedulingGates")


async def let_go(here: World, name: str = "web") -> Document:
    """Wait until the gate is off."""
    await until(lambda: is_let_go(here, name))
    return pod(here, name)


def change(here: World, name: str = "web", **spec: Any) -> None:
    """The tenant changes a pod's spec; None takes a field off."""
    changed = copy.deepcopy(pod(here, name))
    changed["spec"] = {key: value for key, value in (changed["spec"] | spec).items() if value is not None}
    here.above.store.update(PODS, changed, name=name, namespace="default")


def bind(here: World, name: str = "web", node: str = NODE) -> None:
    """What the tenant's scheduler does."""
    assert is_let_go(here, name)
    change(here, name, nodeName=node)


async def start(here: World, name: str = "web") -> Document:
    """Wait until a pod is let go, bind it with what is let go of its gang, and run it below, where it was pinned to."""
    await let_go(here, name)
    await until(lambda: _bind_gang(here, name) and here.compute_pod(name))
    below = await here.forwarded(name)
    run(here, name)
    await until(lambda: here.phase(name) == "Running")
    return below


def _bind_gang(here: World, name: str) -> bool:
    """Bind what is let go of a pod's gang, as the tenant's scheduler does; no pod of it is forwarded before."""
    gang = annotation(pod(here, name), "vkgateway.io/gang")
    for each in here.above.store.all(PODS):
        mine = each["metadata"]["name"] == name or (gang and annotation(each, "vkgateway.io/gang") == gang)
        if mine and not each["spec"].get("nodeName") and is_let_go(here, each["metadata"]["name"]):
            bind(here, each["metadata"]["name"])
    return True


async def low_runs(here: World, name: str = "low", *, gpus: int = 8, **other: Any) -> None:
    gated(here, name, gpus=gpus, **LOW, **other)
    below = await start(here, name)
    assert annotation(below, "vkgateway.io/borrowed") == "true"


async def noticed(here: World, name: str = "low") -> str:
    """Wait until a notice stands above and below; its deadline."""
    await until(lambda: annotation(here.tenant_pod(name), DEADLINE))
    deadline = annotation(here.tenant_pod(name), DEADLINE)
    assert annotation(here.compute_pod(name), DEADLINE) == deadline
    return deadline


def run(here: World, name: str = "web") -> None:
    """The compute cluster takes a pod on the very node that it requires."""
    here.run(name)
    moved = copy.deepcopy(here.compute_pod(name))
    assert moved is not None
    moved["spec"]["nodeName"] = pinned_to(moved)
    here.below.store.update(PODS, moved, name=name, namespace=moved["metadata"]["namespace"])


def pinned_to(below: Document) -> str:
    """The compute node that a compute pod requires."""
    required = below["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = {
        value
        for term in required["nodeSelectorTerms"]
        for field in term["matchFields"]
        if (field["key"], field["operator"]) == ("metadata.name", "In")
        for value in field["values"]
    }
    assert len(found) == 1
    return str(found.pop())


def condition(here: World, kind: str, name: str = "web") -> tuple[str, str, str] | None:
    """Status, reason and message of a condition above."""
    found = here.tenant_pod(name)
    for entry in (found or {}).get("status", {}).get("conditions", ()):
        if entry["type"] == kind:
            return entry["status"], entry["reason"], entry["message"]
    return None


async def told(here: World, reason: str, name: str = "web") -> str:
    """Wait until a pod is told why it waits; the message."""
    try:
        await until(lambda: (condition(here, ADMITTED, name) or ("", "", ""))[:2] == ("False", reason))
    except AssertionError:
        raise AssertionError(f"not told {reason}, but {condition(here, ADMITTED, name)}") from None
    found = condition(here, ADMITTED, name)
    assert found is not None
    return found[2]


def annotation(document: Document | None, key: str) -> str:
    return str(((document or {}).get("metadata", {}).get("annotations") or {}).get(key, ""))


def deleted(document: Document | None) -> bool:
    return document is None or "deletionTimestamp" in document["metadata"]


def about(requests: list[str], name: str) -> list[str]:
    """The writes among requests about a pod itself."""
    return [
        request
        for request in requests
        if not request.startswith("GET") and (f"/pods/{name}?" in request or f"/pods/{name}/" in request)
    ]


def creations(here: World) -> int:
    """How many pods were created below."""
    return sum(
        1 for request in here.below.requests if request.startswith("POST") and request.split("?")[0].endswith("/pods")
    )


def status_writes(here: World, name: str = "web") -> int:
    return sum(1 for request in here.above.requests if f"/pods/{name}/status" in request)


def add_node(here: World, name: str = SECOND_NODE, *, gpus: int = 8) -> None:
    here.below.store.create(NODES, compute_node(name, gpus=gpus))


def cordon(here: World, name: str = COMPUTE_NODE, *, closed: bool = True) -> None:
    """Close a node, or open it again, with the taint that Kubernetes then puts on it."""
    node = copy.deepcopy(here.below.store.get(NODES, name))
    node["spec"]["unschedulable"] = closed
    node["spec"]["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if closed else []
    here.below.store.update(NODES, node, name=name)


def stranger(
    here: World, name: str = "daemon", *, gpus: int = 1, node: str = COMPUTE_NODE, namespace: str = "default"
) -> None:
    """A pod of the compute cluster that is none of ours."""
    spec: Document = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
    }
    if node:
        spec["nodeName"] = node
    here.below.store.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)

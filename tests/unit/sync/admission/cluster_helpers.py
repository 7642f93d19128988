"""Helpers for admission tests with both API servers: gated pods, tenant scheduler, conditions and request logs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NODE, NODE, World, make_node
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.kube.resources import NODES, PODS

Document = dict[str, Any]

GATE = {"name": ADMISSION_GATE}
ADMITTED = "vkgateway.io/Admitted"
DEADLINE = "vkgateway.io/eviction-deadline"
SECOND_NODE = "gpu-host-18"
LOW: Document = {"priorityClassName": "vkgateway-low", "priority": -1000}


def create_gated(
    world: World,
    name: str = "web",
    *,
    gpus: int = 1,
    gang: tuple[str, int] | None = None,
    annotations: Document | None = None,
    owners: Sequence[Document] = (),
    **spec: Any,
) -> Document:
    """Create a pod with our scheduling gate and without a node.

    `gang` is its name and size, `marks` are annotations; a spec field of None is removed.
    """
    metadata: Document = {"name": name, "annotations": dict(annotations or {}), "ownerReferences": [*owners]}
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
    return world.tenant_server.store.create(PODS, {"metadata": metadata, "spec": body}, "default")


def get_pod(world: World, name: str = "web") -> Document:
    found = world.tenant_pod(name)
    assert found is not None
    return found


def is_ungated(world: World, name: str = "web") -> bool:
    return not get_pod(world, name)["spec"].get("schedulingGates")


async def wait_ungated(world: World, name: str = "web") -> Document:
    """Wait until the gate is removed."""
    await wait_until(lambda: is_ungated(world, name))
    return get_pod(world, name)


def change_spec(world: World, name: str = "web", **spec: Any) -> None:
    """Change a pod's spec as the tenant; None removes a field."""
    changed = copy.deepcopy(get_pod(world, name))
    changed["spec"] = {key: value for key, value in (changed["spec"] | spec).items() if value is not None}
    world.tenant_server.store.update(PODS, changed, name=name, namespace="default")


def bind_pod(world: World, name: str = "web", node: str = NODE) -> None:
    """Bind a pod as the tenant's scheduler."""
    assert is_ungated(world, name)
    change_spec(world, name, nodeName=node)


async def start_pod(world: World, name: str = "web") -> Document:
    """Wait until a pod is admitted, bind the admitted pods of its gang, and run it on its node."""
    await wait_ungated(world, name)
    await wait_until(lambda: _bind_gang(world, name) and world.compute_pod(name))
    compute_pod = await world.wait_forwarded(name)
    run_pod(world, name)
    await wait_until(lambda: world.pod_phase(name) == "Running")
    return compute_pod


def _bind_gang(world: World, name: str) -> bool:
    """Bind the admitted pods of a pod's gang as the tenant's scheduler; the gang is forwarded only then."""
    gang = get_annotation(get_pod(world, name), "vkgateway.io/gang")
    for other_pod in world.tenant_server.store.all(PODS):
        is_member = other_pod["metadata"]["name"] == name or (
            gang and get_annotation(other_pod, "vkgateway.io/gang") == gang
        )
        if is_member and not other_pod["spec"].get("nodeName") and is_ungated(world, other_pod["metadata"]["name"]):
            bind_pod(world, other_pod["metadata"]["name"])
    return True


async def start_low(world: World, name: str = "low", *, gpus: int = 8, **spec: Any) -> None:
    create_gated(world, name, gpus=gpus, **LOW, **spec)
    compute_pod = await start_pod(world, name)
    assert get_annotation(compute_pod, "vkgateway.io/borrowed") == "true"


async def wait_notice(world: World, name: str = "low") -> str:
    """Wait until both pods have the notice, and return its deadline."""
    await wait_until(lambda: get_annotation(world.tenant_pod(name), DEADLINE))
    deadline = get_annotation(world.tenant_pod(name), DEADLINE)
    assert get_annotation(world.compute_pod(name), DEADLINE) == deadline
    return deadline


def run_pod(world: World, name: str = "web") -> None:
    """Run a compute pod on the node that it requires."""
    world.run_pod(name)
    moved = copy.deepcopy(world.compute_pod(name))
    assert moved is not None
    moved["spec"]["nodeName"] = pinned_node(moved)
    world.compute_server.store.update(PODS, moved, name=name, namespace=moved["metadata"]["namespace"])


def pinned_node(compute_pod: Document) -> str:
    """Return the compute node that a compute pod requires."""
    required = compute_pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = {
        value
        for term in required["nodeSelectorTerms"]
        for field in term["matchFields"]
        if (field["key"], field["operator"]) == ("metadata.name", "In")
        for value in field["values"]
    }
    assert len(found) == 1
    return str(found.pop())


def get_condition(world: World, kind: str, name: str = "web") -> tuple[str, str, str] | None:
    """Return status, reason and message of a condition of the tenant pod."""
    found = world.tenant_pod(name)
    for entry in (found or {}).get("status", {}).get("conditions", ()):
        if entry["type"] == kind:
            return entry["status"], entry["reason"], entry["message"]
    return None


async def event_messages(world: World, reason: str, name: str = "web") -> str:
    """Wait until the tenant pod has a pending reason, and return the message."""
    try:
        await wait_until(lambda: (get_condition(world, ADMITTED, name) or ("", "", ""))[:2] == ("False", reason))
    except AssertionError:
        raise AssertionError(f"not told {reason}, but {get_condition(world, ADMITTED, name)}") from None
    found = get_condition(world, ADMITTED, name)
    assert found is not None
    return found[2]


def get_annotation(document: Document | None, key: str) -> str:
    return str(((document or {}).get("metadata", {}).get("annotations") or {}).get(key, ""))


def is_deleting(document: Document | None) -> bool:
    return document is None or "deletionTimestamp" in document["metadata"]


def requests_about(requests: list[str], name: str) -> list[str]:
    """Return the writes of a pod itself."""
    return [
        request
        for request in requests
        if not request.startswith("GET") and (f"/pods/{name}?" in request or f"/pods/{name}/" in request)
    ]


def count_creations(world: World) -> int:
    """Return the number of created compute pods."""
    return sum(
        1
        for request in world.compute_server.requests
        if request.startswith("POST") and request.split("?")[0].endswith("/pods")
    )


def count_status_writes(world: World, name: str = "web") -> int:
    return sum(1 for request in world.tenant_server.requests if f"/pods/{name}/status" in request)


def add_node(world: World, name: str = SECOND_NODE, *, gpus: int = 8) -> None:
    world.compute_server.store.create(NODES, make_node(name, gpus=gpus))


def cordon_node(world: World, name: str = COMPUTE_NODE, *, closed: bool = True) -> None:
    """Cordon or uncordon a node, with the taint that Kubernetes sets."""
    node = copy.deepcopy(world.compute_server.store.get(NODES, name))
    node["spec"]["unschedulable"] = closed
    node["spec"]["taints"] = [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}] if closed else []
    world.compute_server.store.update(NODES, node, name=name)


def create_unmanaged(
    world: World, name: str = "daemon", *, gpus: int = 1, node: str = COMPUTE_NODE, namespace: str = "default"
) -> None:
    """Create an unmanaged pod in the compute cluster."""
    spec: Document = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}]
    }
    if node:
        spec["nodeName"] = node
    world.compute_server.store.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace)

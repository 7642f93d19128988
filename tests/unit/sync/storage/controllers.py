"""Controllers of claims and volumes in both clusters, driven by the test."""

from __future__ import annotations

import copy
from typing import Any

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, NODE, World
from vkgateway.kinds.volumes.translation.views import PROVISIONER
from vkgateway.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES

Document = dict[str, Any]


def create_class(world: World, name: str = "local", *, wait_for_consumer: bool = True, **fields: Any) -> None:
    """Create a storage class in the compute cluster."""
    mode = "WaitForFirstConsumer" if wait_for_consumer else "Immediate"
    document = {"metadata": {"name": name}, "provisioner": "disks.example.org", "volumeBindingMode": mode}
    world.compute_server.store.create(STORAGE_CLASSES, document | {"reclaimPolicy": "Delete"} | fields)


def create_claim(
    world: World, name: str = "data", *, storage_class: str = "local", size: str = "1Gi", **spec: Any
) -> Document:
    """Create a claim of the tenant for which its controllers have requested provisioning, as for a scheduled pod."""
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    annotations = {"volume.kubernetes.io/storage-provisioner": PROVISIONER, "volume.kubernetes.io/selected-node": NODE}
    document = {"metadata": {"name": name, "annotations": annotations}, "spec": wanted | spec}
    return world.tenant_server.store.create(
        PERSISTENT_VOLUME_CLAIMS, document | {"status": {"phase": "Pending"}}, namespace="default"
    )


def tenant_claim(world: World, name: str = "data") -> Document | None:
    return world.tenant_server.store.find(PERSISTENT_VOLUME_CLAIMS, name, "default")


def compute_claim(world: World, name: str = "data") -> Document | None:
    return world.compute_server.store.find(PERSISTENT_VOLUME_CLAIMS, name, COMPUTE_NAMESPACE)


def tenant_volumes(world: World) -> list[Document]:
    return world.tenant_server.store.all(PERSISTENT_VOLUMES)


async def wait_volume(world: World) -> Document:
    """Wait for the tenant's only volume and return it."""
    (found,) = await wait_until(lambda: tenant_volumes(world))
    assert isinstance(found, dict)
    return found


def bind_tenant_claim(world: World, name: str = "data") -> None:
    """Bind a claim to the volume that is reserved for it, as the tenant's controller."""
    found = copy.deepcopy(tenant_claim(world, name))
    assert found is not None
    (reserved,) = [
        copy.deepcopy(candidate)
        for candidate in tenant_volumes(world)
        if candidate["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
    ]
    found["spec"]["volumeName"] = reserved["metadata"]["name"]
    found["status"] = {
        "phase": "Bound",
        "capacity": reserved["spec"]["capacity"],
        "accessModes": reserved["spec"]["accessModes"],
    }
    _store_object(world.tenant_server, PERSISTENT_VOLUME_CLAIMS, found)
    reserved["status"] = {"phase": "Bound"}
    _store_object(world.tenant_server, PERSISTENT_VOLUMES, reserved)


def bind_compute_claim(world: World, name: str = "data", *, size: str = "1Gi", **spec: Any) -> None:
    """Provision the volume of a claim, as the compute cluster's provisioner."""
    found = copy.deepcopy(compute_claim(world, name))
    assert found is not None
    created = f"disk-{found['metadata']['uid']}"
    disk = {"path": "/mnt/secret/place", "type": "Directory"}
    world.compute_server.store.create(
        PERSISTENT_VOLUMES, {"metadata": {"name": created}, "spec": {"hostPath": disk} | spec}
    )
    found["spec"]["volumeName"] = created
    found["status"] = {"phase": "Bound", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    _store_object(world.compute_server, PERSISTENT_VOLUME_CLAIMS, found)


def change_compute_claim(world: World, name: str = "data", **status: Any) -> None:
    """Change the status of a compute claim."""
    found = copy.deepcopy(compute_claim(world, name))
    assert found is not None
    found["status"] |= status
    _store_object(world.compute_server, PERSISTENT_VOLUME_CLAIMS, found)


def change_claim(world: World, name: str = "data", *, annotations: Document | None = None, **spec: Any) -> None:
    """Change a claim as the tenant."""
    found = copy.deepcopy(tenant_claim(world, name))
    assert found is not None
    found["spec"] |= spec
    found["metadata"]["annotations"] |= annotations or {}
    _store_object(world.tenant_server, PERSISTENT_VOLUME_CLAIMS, found)


def release_claim(world: World, name: str = "data") -> None:
    """Delete a claim as the tenant; its controller releases the volume."""
    found = tenant_claim(world, name)
    assert found is not None
    world.tenant_server.store.delete(PERSISTENT_VOLUME_CLAIMS, name, "default")
    for candidate in copy.deepcopy(tenant_volumes(world)):
        if candidate["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]:
            unprotect_volume(world, candidate["metadata"]["name"])
            candidate["metadata"]["finalizers"].remove("kubernetes.io/pv-protection")
            candidate["status"] = {"phase": "Released"}
            _store_object(world.tenant_server, PERSISTENT_VOLUMES, candidate)


def retain_volume(world: World, name: str) -> None:
    """Set the reclaim policy of a claim's volume to Retain."""
    uid = (tenant_claim(world, name) or {})["metadata"]["uid"]
    found = copy.deepcopy(world.tenant_server.store.get(PERSISTENT_VOLUMES, f"pvc-{uid}"))
    found["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    _store_object(world.tenant_server, PERSISTENT_VOLUMES, found)


def unprotect_volume(world: World, name: str) -> None:
    """Remove the protection finalizer of a volume without a claim."""
    found = copy.deepcopy(world.tenant_server.store.get(PERSISTENT_VOLUMES, name))
    found["metadata"]["finalizers"].remove("kubernetes.io/pv-protection")
    _store_object(world.tenant_server, PERSISTENT_VOLUMES, found)


async def provision_volume(world: World, name: str = "data", *, size: str = "1Gi") -> None:
    """Provision a claim's volume and bind it in both clusters."""
    await wait_volume(world)
    bind_tenant_claim(world, name)
    bind_compute_claim(world, name, size=size)
    await wait_until(lambda: "vkgateway.io/provisional" not in tenant_volumes(world)[0]["metadata"]["annotations"])


def event_messages(world: World, reason: str) -> list[str]:
    return [message for found, message in world.events() if found == reason]


def _store_object(server: FakeApiServer, resource: Any, document: Document) -> None:
    metadata = document["metadata"]
    metadata.pop("resourceVersion", None)
    server.store.update(resource, document, name=metadata["name"], namespace=metadata.get("namespace", ""))

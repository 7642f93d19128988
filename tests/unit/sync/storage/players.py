"""What the controllers of both clusters do about claims and volumes, moved by hand."""

from __future__ import annotations

import copy
from typing import Any

from tests.fakes.apiserver import FakeApiServer
from tests.unit.sync.world import BELOW, NODE, World, until
from vkgateway.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES
from vkgateway.translate.storage.views import PROVISIONER

Document = dict[str, Any]


def offer(here: World, name: str = "local", *, waits: bool = True, **fields: Any) -> None:
    """A storage class of the compute cluster."""
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    document = {"metadata": {"name": name}, "provisioner": "disks.example.org", "volumeBindingMode": mode}
    here.below.store.create(STORAGE_CLASSES, document | {"reclaimPolicy": "Delete"} | fields)


def claim(here: World, name: str = "data", *, storage_class: str = "local", size: str = "1Gi", **spec: Any) -> Document:
    """A claim of the tenant that its own controllers have asked the gateway about, as they do once a pod has a node."""
    wanted = {
        "accessModes": ["ReadWriteOnce"],
        "volumeMode": "Filesystem",
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": size}},
    }
    annotations = {"volume.kubernetes.io/storage-provisioner": PROVISIONER, "volume.kubernetes.io/selected-node": NODE}
    document = {"metadata": {"name": name, "annotations": annotations}, "spec": wanted | spec}
    return here.above.store.create(
        PERSISTENT_VOLUME_CLAIMS, document | {"status": {"phase": "Pending"}}, namespace="default"
    )


def above(here: World, name: str = "data") -> Document | None:
    return here.above.store.find(PERSISTENT_VOLUME_CLAIMS, name, "default")


def below(here: World, name: str = "data") -> Document | None:
    return here.below.store.find(PERSISTENT_VOLUME_CLAIMS, name, BELOW)


def volumes(here: World) -> list[Document]:
    return here.above.store.all(PERSISTENT_VOLUMES)


async def volume(here: World) -> Document:
    """The tenant's only volume, once it is there."""
    (found,) = await until(lambda: volumes(here))
    assert isinstance(found, dict)
    return found


def bind_above(here: World, name: str = "data") -> None:
    """The tenant's controller binds a claim and the volume that is reserved for it."""
    found = copy.deepcopy(above(here, name))
    assert found is not None
    (reserved,) = [
        copy.deepcopy(one) for one in volumes(here) if one["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]
    ]
    found["spec"]["volumeName"] = reserved["metadata"]["name"]
    found["status"] = {
        "phase": "Bound",
        "capacity": reserved["spec"]["capacity"],
        "accessModes": reserved["spec"]["accessModes"],
    }
    _store(here.above, PERSISTENT_VOLUME_CLAIMS, found)
    reserved["status"] = {"phase": "Bound"}
    _store(here.above, PERSISTENT_VOLUMES, reserved)


def bind_below(here: World, name: str = "data", *, size: str = "1Gi", **spec: Any) -> None:
    """The compute cluster's provisioner makes the volume of a claim."""
    found = copy.deepcopy(below(here, name))
    assert found is not None
    made = f"disk-{found['metadata']['uid']}"
    disk = {"path": "/mnt/secret/place", "type": "Directory"}
    here.below.store.create(PERSISTENT_VOLUMES, {"metadata": {"name": made}, "spec": {"hostPath": disk} | spec})
    found["spec"]["volumeName"] = made
    found["status"] = {"phase": "Bound", "capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]}
    _store(here.below, PERSISTENT_VOLUME_CLAIMS, found)


def change_below(here: World, name: str = "data", **status: Any) -> None:
    """Something about a compute claim's status changes."""
    found = copy.deepcopy(below(here, name))
    assert found is not None
    found["status"] |= status
    _store(here.below, PERSISTENT_VOLUME_CLAIMS, found)


def change(here: World, name: str = "data", *, annotations: Document | None = None, **spec: Any) -> None:
    """The tenant changes a claim."""
    found = copy.deepcopy(above(here, name))
    assert found is not None
    found["spec"] |= spec
    found["metadata"]["annotations"] |= annotations or {}
    _store(here.above, PERSISTENT_VOLUME_CLAIMS, found)


def release(here: World, name: str = "data") -> None:
    """The tenant deletes a claim; its controller releases the volume."""
    found = above(here, name)
    assert found is not None
    here.above.store.delete(PERSISTENT_VOLUME_CLAIMS, name, "default")
    for one in copy.deepcopy(volumes(here)):
        if one["spec"]["claimRef"]["uid"] == found["metadata"]["uid"]:
            unprotect(here, one["metadata"]["name"])
            one["metadata"]["finalizers"].remove("kubernetes.io/pv-protection")
            one["status"] = {"phase": "Released"}
            _store(here.above, PERSISTENT_VOLUMES, one)


def retain(here: World, name: str) -> None:
    """The tenant has a claim's volume kept."""
    uid = (above(here, name) or {})["metadata"]["uid"]
    found = copy.deepcopy(here.above.store.get(PERSISTENT_VOLUMES, f"pvc-{uid}"))
    found["spec"]["persistentVolumeReclaimPolicy"] = "Retain"
    _store(here.above, PERSISTENT_VOLUMES, found)


def unprotect(here: World, name: str) -> None:
    """A volume that no claim has is protected no more."""
    found = copy.deepcopy(here.above.store.get(PERSISTENT_VOLUMES, name))
    found["metadata"]["finalizers"].remove("kubernetes.io/pv-protection")
    _store(here.above, PERSISTENT_VOLUMES, found)


async def mounted(here: World, name: str = "data", *, size: str = "1Gi") -> None:
    """From a claim to a volume that is bound on both sides."""
    await volume(here)
    bind_above(here, name)
    bind_below(here, name, size=size)
    await until(lambda: "vkgateway.io/provisional" not in volumes(here)[0]["metadata"]["annotations"])


def reasons(here: World, reason: str) -> list[str]:
    return [words for found, words in here.events() if found == reason]


def _store(server: FakeApiServer, resource: Any, document: Document) -> None:
    metadata = document["metadata"]
    metadata.pop("resourceVersion", None)
    server.store.update(resource, document, name=metadata["name"], namespace=metadata.get("namespace", ""))

"""The platform's volume provisioner: one directory per claim whose pod has a node, deleted after the claim."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import let_pass, wait_until
from tests.unit.background import in_background
from vkgateway.kube.resources import NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from vkgateway_platform.embedded.provisioner.controller import VolumeProvisioner
from vkgateway_platform.embedded.provisioner.folders import PROVISIONER
from vkgateway_platform.embedded.provisioner.process import manifest_objects

Document = dict[str, Any]


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        labels = {"platform.vkgateway.io/pool": "real", "kubernetes.io/hostname": "real-0"}
        made.store.create(NODES, {"metadata": {"name": "real-0", "labels": labels}})
        yield made


@asynccontextmanager
async def running(server: FakeApiServer, directory: Path) -> AsyncIterator[None]:
    async with server.client() as client, in_background(VolumeProvisioner(client, directory).run()):
        yield


def claim(server: FakeApiServer, name: str = "data", *, node: str = "real-0", by: str = PROVISIONER) -> Document:
    annotations = {"volume.kubernetes.io/storage-provisioner": by}
    if node:
        annotations["volume.kubernetes.io/selected-node"] = node
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    document = {"metadata": {"name": name, "annotations": annotations}, "spec": spec, "status": {"phase": "Pending"}}
    return server.store.create(PERSISTENT_VOLUME_CLAIMS, document, "default")


def volumes(server: FakeApiServer) -> list[Document]:
    return server.store.all(PERSISTENT_VOLUMES)


def set_phase(server: FakeApiServer, document: Document, phase: str, **spec: Any) -> None:
    changed = {**document, "status": {"phase": phase}, "spec": {**document["spec"], **spec}}
    server.store.update(PERSISTENT_VOLUMES, changed, name=document["metadata"]["name"])


async def test_directory_is_created_and_deleted_with_its_claim(server: FakeApiServer, tmp_path: Path) -> None:
    uid = claim(server)["metadata"]["uid"]
    async with running(server, tmp_path):
        (made,) = await wait_until(lambda: volumes(server))
        folder = tmp_path / f"pvc-{uid}"
        assert folder.stat().st_mode & 0o777 == 0o777
        assert made["spec"]["hostPath"] == {"path": str(folder), "type": "Directory"}
        assert made["spec"]["claimRef"]["uid"] == uid
        (term,) = made["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["real"]
        (folder / "kept").write_text("data")
        (folder / "elsewhere").symlink_to(tmp_path)
        set_phase(server, made, "Released")
        await wait_until(lambda: volumes(server) == [])
    assert os.listdir(tmp_path) == []


async def test_waiting_and_other_claims_get_no_volume(server: FakeApiServer, tmp_path: Path) -> None:
    claim(server, "waits", node="")
    claim(server, "others", by="disks.example.org")
    claim(server)
    async with running(server, tmp_path):
        await wait_until(lambda: volumes(server))
        await let_pass(0.1)
    assert len(volumes(server)) == len(os.listdir(tmp_path)) == 1


async def test_volumes_of_others_are_never_deleted(server: FakeApiServer, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    annotations = {"pv.kubernetes.io/provisioned-by": PROVISIONER}
    spec = {"hostPath": {"path": str(tmp_path / "precious")}, "persistentVolumeReclaimPolicy": "Delete"}
    for name in ("pvc-00000000-0000-4000-8000-000000000000", "precious"):
        document = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
        server.store.create(PERSISTENT_VOLUMES, document | {"status": {"phase": "Released"}})
    claim(server)
    async with running(server, tmp_path):
        await wait_until(lambda: len(volumes(server)) == 3)
    assert (tmp_path / "precious").exists()


async def test_volume_grows_with_its_claim(server: FakeApiServer, tmp_path: Path) -> None:
    bound = claim(server)
    async with running(server, tmp_path):
        (made,) = await wait_until(lambda: volumes(server))
        bound = {**bound, "spec": {**bound["spec"], "volumeName": made["metadata"]["name"]}}
        bound["spec"]["resources"] = {"requests": {"storage": "3Gi"}}
        bound["status"] = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
        server.store.update(PERSISTENT_VOLUME_CLAIMS, bound, name="data", namespace="default")
        await wait_until(lambda: volumes(server)[0]["spec"]["capacity"]["storage"] == "3Gi")
        await wait_until(lambda: claim_capacity(server) == {"storage": "3Gi"})


def claim_capacity(server: FakeApiServer) -> object:
    """Return the capacity in the claim's status."""
    return server.store.get(PERSISTENT_VOLUME_CLAIMS, "data", "default")["status"]["capacity"]


def test_manifest_has_storage_class_and_permissions() -> None:
    assert [document["kind"] for document in manifest_objects()] == [
        "StorageClass",
        "ClusterRole",
        "ClusterRoleBinding",
    ]
    assert manifest_objects()[0]["provisioner"] == PROVISIONER

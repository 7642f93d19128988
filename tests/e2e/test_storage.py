"""Volumes on the real node: written by one pod, read by the next, and deleted with their claims and tenants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import BUSYBOX, REAL, Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience_option

GONE_WITHIN = 200.0
NAMESPACE = "kept"
BELOW = f"gamma--{NAMESPACE}"
DATA: dict[str, Any] = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}


@pytest.fixture(scope="module")
def gamma(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant with volumes, and delete it with all of them."""
    if not platform.real:
        pytest.skip("no real node here")
    platform.vkgateway("tenant", "create", "gamma", "--pool", "real", "--pool", "a100", "--storage-class", "local")
    cluster = platform.tenant("gamma")
    cluster.create_namespace(NAMESPACE)
    cluster.kubectl("config", "set-context", "--current", "--namespace", NAMESPACE)
    eventually(lambda: cluster.find("storageclass", "local"), what="the class")
    yield cluster
    if platform.compute.find("namespace", BELOW) is not None:
        platform.vkgateway("tenant", "delete", "gamma", "--yes", timeout=200)


def claim_manifest(name: str, *, size: str = "64Mi", **spec: Any) -> Document:
    spec_fields = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec_fields | spec}


def claim_user_pod(name: str, command: str, **volume: Any) -> Document:
    pod = pod_manifest(
        name, command=command, container=DATA, volumes=[{"name": "data", **volume}], restartPolicy="Never", **REAL
    )
    pod["metadata"]["namespace"] = NAMESPACE
    return pod


def stateful_set() -> Document:
    command = "echo started >> /data/log; exec sleep 3600"
    container = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command], **DATA}
    labels = {"app": "db"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **REAL},
    }
    claims = {"metadata": {"name": "data"}, "spec": claim_manifest("data")["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": NAMESPACE},
        "spec": {
            "serviceName": "db",
            "selector": {"matchLabels": labels},
            "template": template,
            "volumeClaimTemplates": [claims],
        },
    }


def volume_folders(platform: Platform) -> list[str]:
    """Return the folders of tenants' volumes; etcd in a pod has another one."""
    volumes = platform.compute.get("pv")["items"]
    others = {volume["metadata"]["name"] for volume in volumes} - set(tenant_volumes(platform))
    return sorted({path.name for path in (platform.data_dir / "volumes").glob("*")} - others)


def tenant_volumes(platform: Platform) -> list[str]:
    """Return the volumes of tenants' claims in the compute cluster."""
    volumes = platform.compute.get("pv")["items"]
    return [
        volume["metadata"]["name"]
        for volume in volumes
        if volume["spec"]["claimRef"]["namespace"] != "vkgateway-system"
    ]


def test_volume_data_survives_its_pod(platform: Platform, gamma: Cluster) -> None:
    claim_volume = {"persistentVolumeClaim": {"claimName": "mine"}}
    gamma.apply(claim_manifest("mine"), claim_user_pod("writer", "echo kept > /data/file", **claim_volume))
    gamma.wait_pod("writer", "jsonpath={.status.phase}=Succeeded")
    gamma.kubectl("delete", "pod", "writer", "--wait")
    gamma.apply(claim_user_pod("reader", "cat /data/file", **claim_volume))
    gamma.wait_pod("reader", "jsonpath={.status.phase}=Succeeded")
    assert gamma.kubectl("logs", "reader").strip() == "kept"

    bound = gamma.get("pvc", "mine")
    assert (bound["status"]["phase"], bound["status"]["capacity"]) == ("Bound", {"storage": "64Mi"})
    volume = gamma.get("pv", bound["spec"]["volumeName"])
    assert volume["spec"]["csi"] == {"driver": "storage.vkgateway.io", "volumeHandle": bound["metadata"]["uid"]}
    shown_objects = gamma.kubectl("get", "pv,pvc,sc,events", "-o", "yaml")
    assert [
        word for word in (str(platform.data_dir), "real-0", BELOW, "folders.vkgateway.io") if word in shown_objects
    ] == []

    # It is on the real node: the tenant's scheduler sends no pod that uses it to another pool.
    (term,) = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "vkgateway.io/pool", "operator": "In", "values": ["real"]}]


def test_claim_is_expanded(gamma: Cluster) -> None:
    grown = '{"spec": {"resources": {"requests": {"storage": "128Mi"}}}}'
    gamma.kubectl("patch", "pvc", "mine", "-p", grown)
    eventually(lambda: gamma.get("pvc", "mine")["status"]["capacity"] == {"storage": "128Mi"}, what="the new size")
    name = gamma.get("pvc", "mine")["spec"]["volumeName"]
    eventually(lambda: gamma.get("pv", name)["spec"]["capacity"] == {"storage": "128Mi"}, what="the volume's size")


def test_data_is_deleted_with_its_claim(platform: Platform, gamma: Cluster) -> None:
    before = volume_folders(platform)
    gamma.kubectl("delete", "pod", "reader", "--wait")
    gamma.kubectl("delete", "pvc", "mine", "--wait")
    eventually(lambda: gamma.get("pv")["items"] == [], what="no volume above")
    eventually(lambda: len(volume_folders(platform)) == len(before) - 1, what="no folder")
    assert platform.compute.find("pvc", "mine", "-n", BELOW) is None


def test_stateful_set_keeps_its_data(platform: Platform, gamma: Cluster) -> None:
    gamma.apply(stateful_set())
    eventually(lambda: gamma.pod_phase("db-0") == "Running", what="the first pod")
    gamma.wait_pod("db-0")
    gamma.kubectl("delete", "pod", "db-0", "--wait")
    eventually(lambda: gamma.pod_phase("db-0") == "Running", what="the second pod")
    gamma.wait_pod("db-0")
    eventually(lambda: gamma.try_kubectl("exec", "db-0", "--", "cat", "/data/log").out.split() == ["started"] * 2)
    assert platform.compute.find("pvc", "data-db-0", "-n", BELOW) is not None


def test_generic_ephemeral_volume_lives_with_its_pod(platform: Platform, gamma: Cluster) -> None:
    before = volume_folders(platform)
    template = {"volumeClaimTemplate": {"spec": claim_manifest("any")["spec"]}}
    gamma.apply(claim_user_pod("scratch", "echo x > /data/file && sleep 3600", ephemeral=template))
    gamma.wait_pod("scratch")
    eventually(lambda: len(volume_folders(platform)) == len(before) + 1, what="a folder more")
    gamma.kubectl("delete", "pod", "scratch", "--wait")
    eventually(lambda: gamma.find("pvc", "scratch-data") is None, what="no claim")
    eventually(lambda: volume_folders(platform) == before, what="no folder")


def test_forbidden_class_is_refused_with_the_allowed_ones(gamma: Cluster) -> None:
    gamma.apply(claim_manifest("gold", storageClassName="gold"))
    messages = eventually(lambda: [words for reason, words in gamma.events("gold") if reason == "StorageClassRefused"])
    assert messages == ["storage class gold is not allowed for this tenant; allowed: local"]
    gamma.kubectl("delete", "pvc", "gold", "--wait")


def test_directly_bound_pod_waits_for_its_claim(gamma: Cluster) -> None:
    late = claim_user_pod("early", "sleep 3600", persistentVolumeClaim={"claimName": "late"})
    late["spec"] |= {"nodeName": "real.local"}
    gamma.apply(late)
    eventually(
        lambda: ("PersistentVolumeClaimNotReady", 'persistentvolumeclaim "late" not found') in gamma.events("early")
    )
    gamma.kubectl("delete", "pod", "early", "--wait")


def test_volumes_of_a_deleted_tenant_are_mounted_after_it_is_restored(platform: Platform, gamma: Cluster) -> None:
    claim_volume = {"persistentVolumeClaim": {"claimName": "kept"}}
    gamma.apply(claim_manifest("kept"), claim_user_pod("before", "echo kept > /data/file", **claim_volume))
    gamma.wait_pod("before", "jsonpath={.status.phase}=Succeeded")
    bound = platform.compute.get("pvc", "kept", "-n", BELOW)
    volume = platform.compute.get("pv", bound["spec"]["volumeName"])
    assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"
    folders = volume_folders(platform)

    platform.vkgateway("tenant", "delete", "gamma", "--keep", "1h", "--yes", timeout=GONE_WITHIN)
    assert platform.compute.get("pods", "-n", BELOW)["items"] == []
    assert not platform.runs_control_plane("gamma")
    kept = platform.compute.get("pv", volume["metadata"]["name"])
    assert (kept["metadata"]["uid"], kept["status"]["phase"]) == (volume["metadata"]["uid"], "Bound")
    assert volume_folders(platform) == folders

    platform.vkgateway("tenant", "restore", "gamma", timeout=GONE_WITHIN)
    eventually(lambda: gamma.try_kubectl("get", "namespaces").code == 0, what="the former kubeconfig works")
    gamma.apply(claim_user_pod("after", "cat /data/file", **claim_volume))
    gamma.wait_pod("after", "jsonpath={.status.phase}=Succeeded")
    assert gamma.kubectl("logs", "after").strip() == "kept"
    assert platform.compute.get("pvc", "kept", "-n", BELOW)["metadata"]["uid"] == bound["metadata"]["uid"]
    # The controllers of the tenant replace the pods that ended with it, and these mount their volumes again.
    # Until then, the pod from before is shown as running.
    reading = ("exec", "db-0", "--", "cat", "/data/log")
    eventually(lambda: len(gamma.try_kubectl(*reading).out.split()) >= 3, what="the log of the set's next pod")


def test_deleted_tenant_leaves_no_compute_objects_at_the_end_of_its_time(platform: Platform, gamma: Cluster) -> None:
    platform.vkgateway("tenant", "delete", "gamma", "--keep", "1h", "--yes", timeout=GONE_WITHIN)
    assert volume_folders(platform)
    platform.vkgateway("tenant", "delete", "gamma", "--keep", "2s", "--no-wait", "--yes")
    platform.compute.kubectl("wait", "--for=delete", "tenant/gamma", patience_option(120), timeout=GONE_WITHIN)
    assert not platform.has_control_plane("gamma")
    assert platform.compute.get("pvc", "-A", "-l", "vkgateway.io/tenant=gamma")["items"] == []
    eventually(lambda: volume_folders(platform) == [], what="no folder")
    eventually(lambda: tenant_volumes(platform) == [], what="no volume")

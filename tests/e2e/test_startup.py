"""Starts of pods by phase, and images that nodes keep, with a real kubelet and a real container runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import COMPUTE_MINOR, REAL, Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.image_registry import ImageRegistry, serve_images
from tests.support.machine import patience_option
from vkgateway_platform.embedded.hollow.nodes import MANAGED_ANNOTATION, POOL_LABEL
from vkgateway_platform.embedded.realnode.busybox import Busybox
from vkgateway_platform.embedded.realnode.images import BUSYBOX, PAUSE_IMAGE, Image, ImageEntry, busybox_image

pytestmark = pytest.mark.usefixtures("real")

VOLUMES_SINCE = 35
image_volumes = pytest.mark.skipif(
    COMPUTE_MINOR < VOLUMES_SINCE, reason=f"a compute cluster before 1.{VOLUMES_SINCE} has no image volumes by default"
)
PULL_SECRET = "test-registry"
DAEMON_SETS = ("daemonset", "-n", "vkgateway-system", "-l", "vkgateway.io/pre-pull")
TWIN = "a-twin"
"""A hollow node in the pool of the real one, whose name is the first."""
TRAIN, SLOW, MODEL, NO_SHELL = "train:1", "slow:1", "model:1", "data:1"


@pytest.fixture(scope="module")
def registry(platform: Platform, alpha: Cluster) -> Iterator[ImageRegistry]:
    """Yield a registry of images; after the last test, no image is kept."""
    with serve_images(platform) as registry:
        userland = busybox_image(Busybox.from_file(BUSYBOX))
        for name in (TRAIN, SLOW, MODEL):
            mark = ImageEntry("name", 0o644, name.encode())
            registry.add_image(name, Image(name=name, entries=[*userland.entries, mark], command=("sh",)))
        data = [ImageEntry("data", 0o644, b"weights" * 1000)]
        registry.add_image(NO_SHELL, Image(name=NO_SHELL, entries=data, command=("/none",)))
        registry.private = NO_SHELL.partition(":")[0]
        yield registry
        keep_images(platform, None)


def keep_images(platform: Platform, images: list[str] | None) -> None:
    """Set prePull of the pool `real`; without images, remove it."""
    pools = platform.compute.get("computecluster", "local")["spec"]["pools"]
    for pool in pools:
        pool.pop("prePull", None)
        if pool["name"] == "real" and images is not None:
            pool["prePull"] = {
                "images": images,
                "imagePullSecrets": [PULL_SECRET],
                "pauseImage": PAUSE_IMAGE,
                "parallelism": 1,
            }
    patch = json.dumps({"spec": {"pools": pools}})
    platform.compute.kubectl("patch", "computecluster", "local", "--type=merge", f"--patch={patch}")


def images_pulled(platform: Platform) -> tuple[str, str, str]:
    """Return status, reason and message of the condition; empty while there is none."""
    conditions = platform.compute.get("computecluster", "local")["status"]["conditions"]
    found: Document = next((each for each in conditions if each["type"] == "ImagesPulled"), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def pre_pull_status(platform: Platform) -> Any:
    pools = platform.compute.get("computecluster", "local")["status"]["pools"]
    return next(pool.get("prePull") for pool in pools if pool["name"] == "real")


def wait_pulled(platform: Platform, nodes: int) -> None:
    eventually(
        lambda: images_pulled(platform)[0] == "True" and pre_pull_status(platform)["nodes"] == nodes,
        what=f"nodes have all images: {images_pulled(platform)}",
    )


def wait_pull_failed(platform: Platform) -> str:
    """Wait until the condition reports a failed pull, and return its message."""

    def message() -> str:
        status, reason, text = images_pulled(platform)
        return text if (status, reason) == ("False", "PullFailed") else ""

    return eventually(message, what="a failed pull")


def start_phases(platform: Platform, pod: str) -> dict[str, float]:
    """Return the seconds of each phase that `vkgateway explain` shows."""
    found = json.loads(platform.vkgateway("explain", pod, "--tenant", "alpha", "-o", "json"))
    parts = (part.split() for part in found["start"].partition(";")[0].split(", ") if part)
    return {phase: float(seconds) for phase, seconds, _ in parts}


def remove(cluster: Cluster, *names: str) -> None:
    cluster.kubectl("delete", "pod", *names, "--grace-period=0", "--ignore-not-found", patience_option(60), timeout=70)


def test_slow_pull_is_shown_to_tenant_and_platform(platform: Platform, alpha: Cluster, registry: ImageRegistry) -> None:
    image = f"{registry.address}/{SLOW}"
    registry.layer_seconds = 12.0
    with registry.held():
        alpha.apply(pod_manifest("slow", image=image, **REAL))
        eventually(lambda: "in pull for" in platform.vkgateway("explain", "slow", "--tenant", "alpha"), what="in pull")
    alpha.wait_pod("slow")
    registry.layer_seconds = 0.0
    # The kubelet reports the pull independently of the pod's status. The gateway waits for it before it counts.
    events = eventually(lambda: [text for reason, text in alpha.events("slow") if reason == "SlowStart"])
    seconds = {phase: float(number) for phase, number in re.findall(r"(\w+) ([0-9.]+) s", events[0].partition(": ")[2])}
    phases = start_phases(platform, "slow")
    for found in (seconds, phases):
        assert set(found) == {"admit", "bind", "sandbox", "pull", "start", "ready"}
        assert found["pull"] > 11
        assert max(found, key=found.__getitem__) == "pull", "the pull counts in no other phase"

    def has_metrics() -> bool:
        metrics = platform.metrics().splitlines()
        sums = [line for line in metrics if line.startswith("vkgateway_pod_start_phase_seconds_sum")]
        pulls = [line for line in sums if 'phase="pull"' in line and 'pool="real.local"' in line]
        top = [line for line in metrics if line.startswith("vkgateway_top_image_pull_seconds") and image in line]
        return bool(top) and any(float(line.rpartition(" ")[2]) > 11 for line in pulls)

    eventually(has_metrics, what="the pull in the metrics")
    remove(alpha, "slow")


def test_image_that_does_not_exist_is_counted(platform: Platform, alpha: Cluster, registry: ImageRegistry) -> None:
    alpha.apply(pod_manifest("missing", image=f"{registry.address}/missing:1", **REAL))

    def failures() -> float:
        start = 'vkgateway_image_pulls_total{pool="real.local",result="not_found"}'
        return sum(float(line.split()[1]) for line in platform.metrics().splitlines() if line.startswith(start))

    eventually(failures, what="the failed pull is counted")
    remove(alpha, "missing")


@image_volumes
def test_images_are_kept_also_a_private_one_without_a_shell(
    platform: Platform, alpha: Cluster, registry: ImageRegistry
) -> None:
    registry.layer_seconds = 5.0
    keep_images(platform, [f"{registry.address}/{name}" for name in (TRAIN, NO_SHELL)])
    assert f"{registry.address}/{NO_SHELL}" in wait_pull_failed(platform), "no access without the secret"
    platform.compute.apply(pull_secret(registry))
    wait_pulled(platform, 1)
    assert pre_pull_status(platform) == {"images": 2, "nodes": 1, "readyNodes": 1}
    (daemon_set,) = platform.compute.get(*DAEMON_SETS)["items"]
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == 1

    alpha.apply(pod_manifest("kept", image=f"{registry.address}/{TRAIN}", **REAL))
    alpha.wait_pod("kept")
    eventually(lambda: any("already present" in text for _, text in alpha.events("kept")), what="the kubelet's event")
    eventually(lambda: start_phases(platform, "kept").get("pull") == 0.0, what="a start without a pull")
    remove(alpha, "kept")


@image_volumes
def test_arbiter_prefers_the_node_that_keeps_the_image(
    platform: Platform, alpha: Cluster, registry: ImageRegistry
) -> None:
    """An equal node, the first by name, lacks the image. A hollow node does no harm."""
    model = f"{registry.address}/{MODEL}"
    keep_images(platform, [model])
    wait_pulled(platform, 1)
    eventually(lambda: model in images_on(platform, "real-0"), what="the node reports the image")
    platform.compute.apply(twin_node())
    try:
        allocatable = platform.compute.get("node", "real-0")["status"]["allocatable"]
        status = json.dumps({"status": {"capacity": allocatable, "allocatable": allocatable}})
        platform.compute.kubectl("patch", "node", TWIN, "--subresource=status", "--type=merge", f"--patch={status}")
        wait_pulled(platform, 2)
        eventually(lambda: not platform.compute.get("node", TWIN)["spec"].get("taints"), what="the node takes pods")
        for name, image, node in (("chosen", model, "real-0"), ("other", "any:1", TWIN)):
            alpha.apply(
                pod_manifest(name, image=image, **REAL, container={"resources": {"limits": {"nvidia.com/gpu": "1"}}})
            )
            assert compute_node(platform, name) == node
            remove(alpha, name)
    finally:
        remove(alpha, "chosen", "other")
        platform.compute.kubectl("delete", "node", TWIN, patience_option(60), timeout=70)


def pull_secret(registry: ImageRegistry) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": PULL_SECRET, "namespace": "vkgateway-system"},
        "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": registry.docker_config},
    }


def images_on(platform: Platform, node: str) -> list[str]:
    """Return the images that a node reports. Kubelets read them every half minute."""
    images = platform.compute.get("node", node)["status"].get("images") or ()
    return [name for image in images for name in image["names"]]


def twin_node() -> Document:
    key, value = MANAGED_ANNOTATION
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": TWIN,
            "annotations": {key: value},
            "labels": {POOL_LABEL: "real", "kubernetes.io/hostname": TWIN, "kubernetes.io/os": "linux"},
        },
    }


def compute_node(platform: Platform, name: str) -> str:
    def node() -> str:
        pod = platform.compute.find("pod", name, "-n", "alpha--default")
        return str(pod["spec"].get("nodeName") or "") if pod is not None else ""

    return eventually(node, what=f"{name} is bound")


@image_volumes
def test_missing_image_is_reported_until_the_list_is_empty(platform: Platform, registry: ImageRegistry) -> None:
    missing = f"{registry.address}/missing:2"
    keep_images(platform, [missing])
    message = wait_pull_failed(platform)
    assert missing in message
    assert "node real-0" in message
    assert "check the names in prePull.images" in message

    keep_images(platform, [])
    eventually(lambda: not platform.compute.get(*DAEMON_SETS)["items"], what="no DaemonSet")
    eventually(lambda: images_pulled(platform) == ("", "", ""), what="no condition")
    eventually(lambda: pre_pull_status(platform) is None, what="no numbers of images")


@pytest.mark.skipif(COMPUTE_MINOR >= VOLUMES_SINCE, reason="the compute cluster has image volumes")
def test_cluster_without_image_volumes_is_reported(platform: Platform, registry: ImageRegistry) -> None:
    keep_images(platform, [f"{registry.address}/{TRAIN}"])
    eventually(lambda: images_pulled(platform)[1] == "ImageVolumesMissing", what=f"{images_pulled(platform)}")
    keep_images(platform, None)


def test_invalid_names_are_refused(platform: Platform) -> None:
    pool = {"name": "real", "prePull": {"images": ["no image"]}}
    compute = {
        "apiVersion": "vkgateway.io/v1alpha1",
        "kind": "ComputeCluster",
        "metadata": {"name": "invalid"},
        "spec": {"pools": [pool]},
    }
    result = platform.compute.try_kubectl("apply", "--dry-run=server", "-f", "-", stdin=json.dumps(compute))
    assert result.code != 0
    assert "an image is a name with a tag or a digest" in result.err

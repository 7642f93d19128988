"""The DaemonSet that keeps a pool's images on its nodes (pure).

Its only container mounts each image as a volume (https://kep.k8s.io/4639). So any image works, also one without a
shell, and a kubelet does not remove an image that a running container mounts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from vkgateway.api.names import COMPUTE_CLUSTER_LABEL, GATEWAY_LABEL, LOW_CLASS, SYSTEM_NAMESPACE
from vkgateway.api.objects import Meta, Object
from vkgateway.api.types import Pool, PrePull
from vkgateway.kube.resources import DAEMON_SETS

PRE_PULL_LABEL: Final = "vkgateway.io/pre-pull"
"""On a DaemonSet and its pods: the name of the DaemonSet."""
IMAGES_ANNOTATION: Final = "vkgateway.io/pre-pull-images"
"""On a DaemonSet and its pods: a digest of the images that its pods mount; empty: none yet."""
_DOCUMENT_ANNOTATION: Final = "vkgateway.io/pre-pull-digest"
"""On a DaemonSet: a digest of the object as the gateway wrote it."""
_FOLDER: Final = "/images"
_NOBODY: Final = 65_534
_HASH_LENGTH: Final = 10


class DaemonSetStatus(msgspec.Struct, rename="camel", kw_only=True):
    """Numbers of nodes: those that must have a pod, have one, have an up-to-date one, and have an available one."""

    observed_generation: int = 0
    desired_number_scheduled: int = 0
    current_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_available: int = 0


class DaemonSetView(msgspec.Struct, kw_only=True):
    """A DaemonSet without its spec."""

    metadata: Meta
    status: DaemonSetStatus = msgspec.field(default_factory=DaemonSetStatus)

    @property
    def has_images(self) -> bool:
        """Whether its pods mount images."""
        return bool(self.metadata.annotations.get(IMAGES_ANNOTATION))

    @property
    def is_observed(self) -> bool:
        """Whether the status describes the current spec."""
        return self.status.observed_generation >= self.metadata.generation

    def has_pods_everywhere(self, *, broken: int) -> bool:
        """Return whether each node has a pod, and an available one unless it is one of the `broken` nodes."""
        status = self.status
        return (
            self.is_observed
            and status.current_number_scheduled >= status.desired_number_scheduled
            and status.number_available >= status.desired_number_scheduled - broken
        )

    def is_complete(self, *, broken: int) -> bool:
        """Return whether each node, except `broken` ones, has an available pod with the current images."""
        status = self.status
        return self.has_pods_everywhere(broken=broken) and (
            status.updated_number_scheduled >= status.desired_number_scheduled
        )


decode_daemon_set: Final = msgspec.json.Decoder(DaemonSetView).decode


def daemon_set_name(pool: str, *, cluster: str, gateway: str) -> str:
    """Return the name of a pool's DaemonSet, unique among all gateways that use the cluster."""
    return f"pre-pull-{pool}-{_digest(f'{gateway}/{cluster}')}"


def own_labels(*, cluster: str, gateway: str) -> dict[str, str]:
    """Return the labels by which a gateway finds its DaemonSets in a compute cluster."""
    return {COMPUTE_CLUSTER_LABEL: cluster, GATEWAY_LABEL: gateway}


def images_digest(images: Iterable[str]) -> str:
    """Return the digest of a list of images, whose order does not count; empty for none."""
    names = sorted(images)
    return _digest("\n".join(names)) if names else ""


def build_daemon_set(
    pool: Pool, wanted: PrePull, *, images: Sequence[str], cluster: str, gateway: str, broken: int
) -> Object:
    """Return the DaemonSet of a pool whose pods mount `images`.

    A rolling update replaces a pod only while fewer than `maxUnavailable` nodes have no available pod. Nodes that are
    not ready, `broken`, never have one, so they are added to the nodes that may pull.
    """
    name = daemon_set_name(pool.name, cluster=cluster, gateway=gateway)
    annotations = {IMAGES_ANNOTATION: images_digest(images)}
    labels = {PRE_PULL_LABEL: name}
    document: Object = {
        "apiVersion": DAEMON_SETS.api_version,
        "kind": DAEMON_SETS.kind,
        "metadata": {
            "name": name,
            "namespace": SYSTEM_NAMESPACE,
            "labels": {**labels, **own_labels(cluster=cluster, gateway=gateway)},
            "annotations": annotations,
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": wanted.parallelism + broken},
            },
            "template": {
                "metadata": {"labels": labels, "annotations": annotations},
                "spec": _pod_spec(pool, wanted, sorted(images)),
            },
        },
    }
    digest = _digest(msgspec.json.encode(document, order="deterministic").decode())
    document["metadata"]["annotations"] = {**annotations, _DOCUMENT_ANNOTATION: digest}
    return document


def is_written(found: DaemonSetView, document: Object) -> bool:
    """Return whether a DaemonSet is as the gateway last wrote this document."""
    written: str = document["metadata"]["annotations"][_DOCUMENT_ANNOTATION]
    return found.metadata.annotations.get(_DOCUMENT_ANNOTATION) == written


def _pod_spec(pool: Pool, wanted: PrePull, images: Sequence[str]) -> Object:
    return {
        "nodeSelector": dict(pool.node_selector),
        "tolerations": [dict(each) for each in pool.tolerations],
        "priorityClassName": LOW_CLASS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "imagePullSecrets": [{"name": name} for name in wanted.image_pull_secrets],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOBODY,
            "runAsGroup": _NOBODY,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "keep",
                "image": wanted.pause_image,
                "imagePullPolicy": "IfNotPresent",
                # None: a node full of tenants' pods still takes this pod.
                "resources": {"requests": {"cpu": "0", "memory": "0"}},
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "volumeMounts": [
                    {"name": f"image-{place}", "mountPath": f"{_FOLDER}/{place}", "readOnly": True}
                    for place in range(len(images))
                ],
            }
        ],
        "volumes": [
            {"name": f"image-{place}", "image": {"reference": image, "pullPolicy": "IfNotPresent"}}
            for place, image in enumerate(images)
        ],
    }


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]

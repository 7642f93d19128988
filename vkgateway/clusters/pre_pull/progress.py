"""Progress of pre-pulls: nodes that have the images, and why others do not (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from vkgateway.api.container_status import ContainerStatus
from vkgateway.api.objects import Condition, Meta, is_condition_true
from vkgateway.api.types import PrePullStatus
from vkgateway.clusters.pre_pull.daemon_set import IMAGES_ANNOTATION, DaemonSetView
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kube import errors

_FAILURES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ImageInspectError",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerError",
        "CreateContainerConfigError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
"""Reasons of a kubelet for a container that does not run, although it tried."""
_MESSAGE_MAX: Final = 300
_WAY_OUT: Final = "check the names in prePull.images, imagePullSecrets, and that the nodes reach the registry"
_NO_VOLUMES: Final = (
    "the API server does not know image volumes; upgrade the compute cluster to Kubernetes 1.35, or enable the feature "
    "gate ImageVolume on its API server and kubelets"
)


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _PodStatus(msgspec.Struct, rename="camel"):
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class KeeperPod(msgspec.Struct):
    """A pod of the DaemonSet."""

    metadata: Meta
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)

    @property
    def is_ready(self) -> bool:
        """Whether the node has the images of the pod."""
        return is_condition_true(self.status.conditions, "Ready")

    @property
    def failure(self) -> str:
        """Why the kubelet cannot start the pod, in its words; empty: it does not say."""
        waiting = (each.state.waiting for each in self.status.container_statuses)
        failed = next((found for found in waiting if found is not None and found.reason in _FAILURES), None)
        return f"{failed.reason}: {failed.message}"[:_MESSAGE_MAX] if failed is not None else ""


@dataclass(frozen=True, slots=True)
class PoolProgress:
    """Progress in one pool. `failure` is a problem in words, `reason` its word for programs."""

    status: PrePullStatus
    is_complete: bool = False
    failure: str = ""
    reason: str = "PullFailed"


def pool_progress(
    found: DaemonSetView, pods: Sequence[KeeperPod], *, images: int, digest: str, broken: int
) -> PoolProgress:
    """Return the progress of a pool's DaemonSet.

    `digest` is that of the images which its pods must mount, `broken` the number of nodes that are not ready. `pods`
    are needed only while it is not complete.
    """
    nodes = found.status.desired_number_scheduled
    if found.has_images and found.is_complete(broken=broken):
        return PoolProgress(
            PrePullStatus(images=images, nodes=nodes, ready_nodes=min(nodes, found.status.number_available)),
            is_complete=True,
        )
    current = [pod for pod in pods if pod.metadata.annotations.get(IMAGES_ANNOTATION) == digest]
    ready = len({pod.spec.node_name for pod in current if pod.is_ready and digest})
    failed = sorted((pod.spec.node_name, pod.failure) for pod in current if pod.failure)
    failure = f"node {failed[0][0]}: {failed[0][1]}" if failed else ""
    if len(failed) > 1:
        failure += f"; {len(failed) - 1} more nodes"
    return PoolProgress(PrePullStatus(images=images, nodes=nodes, ready_nodes=ready), failure=failure)


def refused_progress(error: errors.ApiError, *, images: int) -> PoolProgress:
    """Return the progress of a pool whose DaemonSet the API server refused."""
    if isinstance(error, errors.Forbidden):
        reason, failure = "Forbidden", f"{error.message}; apply deploy/rbac/compute.yaml in the compute cluster"
    elif "volume type" in error.message:
        reason, failure = "ImageVolumesMissing", _NO_VOLUMES
    else:
        reason, failure = "Refused", error.message[:_MESSAGE_MAX]
    return PoolProgress(PrePullStatus(images=images), failure=failure, reason=reason)


def pre_pull_verdict(pools: Iterable[tuple[str, PoolProgress]]) -> Verdict | None:
    """Return the verdict on all pools that keep images; None if no pool does."""
    found = list(pools)
    if not found:
        return None
    failed = [(name, progress) for name, progress in found if progress.failure]
    if failed:
        message = "; ".join(f"pool {name}: {progress.failure}" for name, progress in failed)
        way_out = f"; {_WAY_OUT}" if failed[0][1].reason == "PullFailed" else ""
        return false_verdict(failed[0][1].reason, message + way_out)
    message = "; ".join(
        f"pool {name}: {progress.status.ready_nodes} of {progress.status.nodes} nodes have all images"
        for name, progress in found
    )
    if all(progress.is_complete for _, progress in found):
        return true_verdict("Pulled", message)
    return unknown_verdict("Pulling", message)

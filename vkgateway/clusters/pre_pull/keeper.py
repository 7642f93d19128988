"""Writer of the DaemonSets that keep images on the nodes of one compute cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import structlog

from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import Condition, ContainerStatus, Meta, ObjectView, is_condition_true
from vkgateway.api.times import parse_seconds
from vkgateway.api.types import Pool, PrePull, PrePullStatus
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.pre_pull.daemon_set import (
    IMAGES_ANNOTATION,
    PRE_PULL_LABEL,
    DaemonSetView,
    build_daemon_set,
    daemon_set_name,
    decode_daemon_set,
    images_digest,
    is_written,
    own_labels,
)
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.kube import errors
from vkgateway.kube.resources import DAEMON_SETS, PODS

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


log = structlog.get_logger(__name__)

_PULLING_SECONDS: Final = 2.0
"""Interval between checks while nodes pull; in a large cluster longer, because a check lists a pod of each node."""
_COMPLETE_SECONDS: Final = 20.0
"""Interval between checks of complete pools, for new nodes, and of failed ones."""
_NODES_PER_SECOND: Final = 100
_REPAIR_SECONDS: Final = 300.0
"""Interval after which objects are written again, and leftovers are looked for."""
_EMPTY_SECONDS: Final = 60.0
"""Seconds after which a DaemonSet mounts its images, even if some node has no pod yet."""


class _DaemonSets(msgspec.Struct):
    items: tuple[ObjectView, ...] = ()


class _Pods(msgspec.Struct):
    items: tuple[KeeperPod, ...] = ()


@dataclass(slots=True)
class ImageKeeper:
    """Keeper of the images of one compute cluster's pools.

    A new DaemonSet starts a pod on all nodes at once. So its pods mount no images at first, and a rolling update, which
    limits the number of nodes, adds them.
    """

    link: ComputeLink
    progress: dict[str, PoolProgress] = field(default_factory=dict)
    """By pool, as of the last check."""
    _wanted: dict[str, PrePull] = field(default_factory=dict)
    _check_due: float = 0.0
    _repair_due: float = 0.0

    @property
    def check_seconds(self) -> float:
        """Interval between checks, in seconds."""
        pulling = [each for each in self.progress.values() if not (each.is_complete or each.failure)]
        nodes = sum(each.status.nodes for each in pulling)
        return min(_PULLING_SECONDS + nodes / _NODES_PER_SECOND, _COMPLETE_SECONDS) if pulling else _COMPLETE_SECONDS

    def verdict(self) -> Verdict | None:
        """Return the verdict on all pools; None if no pool keeps images."""
        return pre_pull_verdict(sorted(self.progress.items()))

    def status_of(self, pool: str) -> PrePullStatus | None:
        """Return the status of a pool; None if it keeps no images."""
        progress = self.progress.get(pool)
        return progress.status if progress is not None else None

    async def keep(self, pools: Iterable[Pool], *, now: float, time: float) -> None:
        """Write the DaemonSets of pools, delete those of others, and read the progress, if due.

        `now` is in monotonic seconds, `time` in seconds since the epoch. What fails is retried.
        """
        pools = [pool for pool in pools if pool.pre_pull is not None and pool.pre_pull.images]
        wanted = {pool.name: pool.pre_pull for pool in pools if pool.pre_pull is not None}
        changed = wanted != self._wanted
        if not self.link.is_reachable or not self.link.gateway.value or not (changed or now >= self._check_due):
            return
        repair = changed or now >= self._repair_due
        self.progress = {pool.name: await self._keep_pool(pool, repair=repair, time=time) for pool in pools}
        if repair and await self._delete_others(wanted):
            self._wanted, self._repair_due = wanted, now + _REPAIR_SECONDS
        self._check_due = now + self.check_seconds

    async def delete_all(self) -> None:
        """Delete all DaemonSets of this gateway in the cluster. What fails is logged."""
        if self.link.is_reachable and self.link.gateway.value:
            await self._delete_others({})

    async def _keep_pool(self, pool: Pool, *, repair: bool, time: float) -> PoolProgress:
        wanted = pool.pre_pull
        assert wanted is not None
        try:
            return await self._write_pool(pool, wanted, repair=repair, time=time)
        except errors.ApiError as error:
            if error.is_transient and pool.name in self.progress:
                return self.progress[pool.name]
            log.warning("images not kept", compute=self.link.name, pool=pool.name, error=error.message)
            return refused_progress(error, images=len(wanted.images))

    async def _write_pool(self, pool: Pool, wanted: PrePull, *, repair: bool, time: float) -> PoolProgress:
        nodes = self.link.nodes.pool_nodes(pool.node_selector).nodes
        broken = sum(not is_condition_true(node.status.conditions, "Ready") for node in nodes)
        cluster, gateway = self.link.name, self.link.gateway.value
        found = await self._read(daemon_set_name(pool.name, cluster=cluster, gateway=gateway))
        images = wanted.images if found is not None and _may_pull(found, broken=broken, time=time) else ()
        document = build_daemon_set(pool, wanted, images=images, cluster=cluster, gateway=gateway, broken=broken)
        if found is None or repair or not is_written(found, document):
            name = document["metadata"]["name"]
            answer = await self.link.client.patch(DAEMON_SETS, name, document, kind="apply", namespace=SYSTEM_NAMESPACE)
            found = decode_daemon_set(answer)
        pods = () if found.is_complete(broken=broken) else await self._list_pods(found.metadata)
        return pool_progress(found, pods, images=len(wanted.images), digest=images_digest(images), broken=broken)

    async def _read(self, name: str) -> DaemonSetView | None:
        try:
            return decode_daemon_set(await self.link.client.get(DAEMON_SETS, name, namespace=SYSTEM_NAMESPACE))
        except errors.NotFound:
            return None

    async def _list_pods(self, owner: Meta) -> tuple[KeeperPod, ...]:
        params = {"labelSelector": f"{PRE_PULL_LABEL}={owner.name}"}
        answer = await self.link.client.request("GET", PODS.path(SYSTEM_NAMESPACE), params=params)
        return msgspec.json.decode(answer, type=_Pods).items

    async def _delete_others(self, wanted: Iterable[str]) -> bool:
        """Delete the DaemonSets of pools that keep no images any more. Return whether nothing must be retried.

        A cluster whose roles do not name DaemonSets has none.
        """
        cluster, gateway = self.link.name, self.link.gateway.value
        kept = {daemon_set_name(pool, cluster=cluster, gateway=gateway) for pool in wanted}
        labels = own_labels(cluster=cluster, gateway=gateway)
        selector = ",".join([*(f"{key}={value}" for key, value in labels.items()), PRE_PULL_LABEL])
        client = self.link.client
        try:
            answer = await client.request("GET", DAEMON_SETS.path(SYSTEM_NAMESPACE), params={"labelSelector": selector})
            for found in msgspec.json.decode(answer, type=_DaemonSets).items:
                if found.metadata.name not in kept and found.metadata.deletion_timestamp is None:
                    with contextlib.suppress(errors.NotFound, errors.Conflict):
                        await client.delete(
                            DAEMON_SETS, found.metadata.name, namespace=SYSTEM_NAMESPACE, uid=found.metadata.uid
                        )
        except (errors.NotFound, errors.Forbidden):
            return True
        except errors.ApiError as error:
            log.warning("kept images not released", compute=cluster, error=error.message)
            return False
        return True


def _may_pull(found: DaemonSetView, *, broken: int, time: float) -> bool:
    """Return whether a rolling update may add the images: each node has a pod, or enough time has passed."""
    age = time - parse_seconds(found.metadata.creation_timestamp)
    return found.has_images or found.has_pods_everywhere(broken=broken) or age > _EMPTY_SECONDS

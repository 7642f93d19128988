"""Deletion of compute pods: by the tenant, by evictions, and of pods that no node took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from vkgateway.api import times
from vkgateway.api.names import BORROWED_ANNOTATION, MIRROR_FINALIZER, POOL_LABEL
from vkgateway.api.objects import Meta, Object, decode_object
from vkgateway.kinds.pods.log_tails import read_tails
from vkgateway.kinds.pods.pod_context import PodContext, compute_pod_of, tenant_pod_of
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.kube.client import encode
from vkgateway.runtime import finalizers
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.annotations import EVICTED, LOG_TAILS, RETAKEN

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration

_RELEASED_GRACE: Final = 30.0
"""Seconds for which a pod without its finalizer is left alone, although the watch still shows the finalizer."""


class PodDeleter:
    """Deleter of one tenant's compute pods."""

    def __init__(self, scope: TenantScope, arbiter: Arbitration) -> None:
        self._scope = scope
        self._arbiter = arbiter
        self._clock = scope.clock
        self._released_until: dict[str, float] = {}
        """UIDs of compute pods whose finalizer was removed, oldest first, with the time when the entry expires."""

    async def delete_pod(self, context: PodContext) -> None:
        """Delete the compute pod with its own grace period, unless it is terminating already."""
        if compute_pod_of(context).metadata.deletion_timestamp is None:
            await self._delete_pod(context, grace=self._bounded_grace(context, None))

    async def delete_like_tenant(self, context: PodContext) -> None:
        """Delete the compute pod with the tenant pod's remaining grace period; never by force, as only a kubelet ends a
        pod.

        Deletion timestamps come from three clocks, so grace periods are compared, and the remaining period never
        exceeds the given one. Timestamps are rounded down to whole seconds, so a started second counts as remaining.
        """
        tenant_meta, compute_meta = tenant_pod_of(context).metadata, compute_pod_of(context).metadata
        tenant_grace = self._bounded_grace(context, tenant_meta.deletion_grace_period_seconds)
        if compute_meta.deletion_timestamp is not None:
            compute_grace = compute_meta.deletion_grace_period_seconds
            if tenant_grace is None or compute_grace is None or compute_grace <= max(tenant_grace, 1):
                return
        deadline = _deletion_deadline(tenant_meta)
        remaining = tenant_grace if deadline is None else math.ceil(deadline - self._clock.time())
        await self._delete_pod(
            context, grace=None if tenant_grace is None or remaining is None else max(1, min(remaining, tenant_grace))
        )

    def _bounded_grace(self, context: PodContext, grace: int | None) -> int | None:
        """Return a grace period in seconds (None: the pod's own), capped for borrowing pods.

        The cap bounds how long the owner of borrowed capacity waits. A terminating pod gets no second notice, so an
        unbounded grace period would retain the capacity.
        """
        compute_pod = compute_pod_of(context)
        metadata = compute_pod.metadata
        if metadata.annotations.get(BORROWED_ANNOTATION) != "true":
            return grace
        max_grace = self._arbiter.eviction_terms((context.link.name, metadata.labels.get(POOL_LABEL, ""))).grace_max
        bounded = _cap_grace(compute_pod.spec.termination_grace_period_seconds if grace is None else grace, max_grace)
        return None if bounded == compute_pod.spec.termination_grace_period_seconds and grace is None else bounded

    async def _delete_pod(self, context: PodContext, *, grace: int | None, version: str | None = None) -> bool:
        """Delete the compute pod; return False if it was replaced or its version is not `version`."""
        metadata = compute_pod_of(context).metadata
        try:
            await context.link.client.delete(
                resources.PODS,
                metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=version,
                grace_period_seconds=grace,
            )
        except errors.Conflict:
            return False
        except errors.NotFound:
            pass
        return True

    async def delete_stale(self, context: PodContext) -> None:
        """Delete a compute pod of an earlier tenant pod, or a reverted one; its end is not reported.

        A reverted pod is deleted only while it has no node. If a node took it at the last moment, it may be running,
        and is the tenant pod's compute pod again.
        """
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        if compute_pod.tenant_uid != tenant_pod.metadata.uid or compute_pod.metadata.deletion_timestamp is not None:
            await self.delete_pod(context)
        elif compute_pod.spec.node_name:
            await self._patch_metadata(context, {"uid": compute_pod.metadata.uid, "annotations": {RETAKEN: None}})
            return
        elif not await self._delete_pod(context, grace=None, version=compute_pod.metadata.resource_version):
            return
        await self.remove_finalizer(context)

    async def remove_finalizer(self, context: PodContext) -> None:
        """Remove vkgateway's finalizer from the compute pod; other finalizers stay."""
        compute_pod = compute_pod_of(context)
        if not compute_pod.has_finalizer:
            return
        uid = compute_pod.metadata.uid
        if self._was_released(uid):
            return
        await finalizers.remove_finalizer(context.link.client, resources.PODS, compute_pod.metadata, MIRROR_FINALIZER)
        self._released_until[uid] = self._clock.time() + _RELEASED_GRACE

    def _was_released(self, uid: str) -> bool:
        """Return whether the finalizer was just removed; several events report the end of a pod."""
        now = self._clock.time()
        while self._released_until and next(iter(self._released_until.values())) <= now:
            del self._released_until[next(iter(self._released_until))]
        return uid in self._released_until

    async def delete_at_deadline(self, context: PodContext) -> None:
        """Delete the pod after its notice has expired, and record the reason."""
        assert context.admission is not None
        admission, compute_pod = context.admission, compute_pod_of(context)
        remaining = (admission.deadline or 0.0) - self._clock.time()
        if remaining > 0:
            self._scope.work_queue.enqueue(POD, context.key, remaining)
            return
        await self._annotate_ending(context, {EVICTED: admission.reason_text})
        if compute_pod.metadata.deletion_timestamp is None:
            await self._delete_pod(
                context, grace=_cap_grace(compute_pod.spec.termination_grace_period_seconds, admission.grace)
            )

    async def keep_logs(self, context: PodContext) -> None:
        """Record the last log lines of a pod that is being deleted in the compute cluster, while its logs exist."""
        await self._annotate_ending(context, {})

    async def _annotate_ending(self, context: PodContext, annotations: Mapping[str, str]) -> None:
        """Annotate a pod that the tenant did not delete, with its last log lines too; at most one write."""
        compute_pod = compute_pod_of(context)
        wanted = dict(annotations)
        if LOG_TAILS not in compute_pod.metadata.annotations and (
            tails := await read_tails(context.link.client, compute_pod)
        ):
            wanted[LOG_TAILS] = encode(tails).decode()
        if wanted.items() - compute_pod.metadata.annotations.items():
            await self._patch_metadata(context, {"uid": compute_pod.metadata.uid, "annotations": wanted})

    async def revert_pod(self, context: PodContext) -> None:
        """Delete a pod that no node took, so that it is placed again; the tenant cluster is not updated.

        If a node takes it at this moment, the write conflicts and the pod stays: see `delete_stale`.
        """
        current = compute_pod_of(context).metadata
        metadata: Object = {"uid": current.uid, "resourceVersion": current.resource_version}
        annotated = await self._patch_metadata(context, {**metadata, "annotations": {RETAKEN: "true"}})
        if annotated is not None:
            await self._delete_pod(context, grace=None, version=annotated.resource_version)

    async def _patch_metadata(self, context: PodContext, metadata: Object) -> Meta | None:
        """Patch the compute pod's metadata and return the result; None if the pod was deleted."""
        current = compute_pod_of(context).metadata
        try:
            answer = await context.link.client.patch(
                resources.PODS, current.name, {"metadata": metadata}, namespace=current.namespace, metadata_only=True
            )
        except errors.NotFound:
            return None
        return decode_object(answer).metadata


def _cap_grace(grace: int | None, max_grace: float | None) -> int | None:
    """Return the pod's own grace period, capped at `most` seconds; None means the pod's own."""
    return grace if max_grace is None or grace is None else min(grace, int(max_grace))


def _deletion_deadline(metadata: Meta) -> float | None:
    return times.parse_time(metadata.deletion_timestamp).timestamp() if metadata.deletion_timestamp else None

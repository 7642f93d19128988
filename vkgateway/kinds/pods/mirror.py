"""Mirroring of pods to the tenant cluster: status, end and removal."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta
from typing import Final

import msgspec

from vkgateway.api import times
from vkgateway.api.names import COMPUTE_NODE_ANNOTATION, EVICTION_DEADLINE_ANNOTATION
from vkgateway.api.objects import Meta, Object, decode_object
from vkgateway.kinds.pods.failures import LOST, FailureDelayedError, PodFailures
from vkgateway.kinds.pods.log_tails import kept_tails
from vkgateway.kinds.pods.pod_context import PodContext, as_object, compute_pod_of, decode, tenant_pod_of
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.reporter import PodReporter, clean_message
from vkgateway.kinds.pods.translation.conditions import (
    DELETED_IN_COMPUTE,
    DISRUPTION_CONDITION,
    unscheduled_reason,
)
from vkgateway.kinds.pods.translation.log_tails import with_tails
from vkgateway.kinds.pods.translation.to_tenant import (
    Disruption,
    disrupted_status,
    failed_status,
    final_status,
    has_ended_before,
    mirror_status,
    never_started,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.annotations import EVICTED
from vkgateway.runtime.views.pods import ComputePodView, TenantPodView
from vkgateway.scheduler.gangs.pod_view import controller_key

_DELETED: Final = "the pod was deleted in the compute cluster"


NEVER_STARTED: Final = Disruption(reason="Deleted", message="the pod was deleted before it was started")

_REASON_SECONDS: Final = 60.0
"""Minimum seconds between two events of a pod about the compute scheduler's reason, which changes with the cluster."""
_UNSCHEDULABLE: Final = b"Unschedulable"
_SILENT_SECONDS: Final = 60.0
"""Seconds after the end of a pod's grace period from which its kubelet counts as silent."""
_COMPARE_SECONDS: Final = 1.0
"""Seconds after which a status is compared again, if the watch was behind the last write."""
SHOWN_SECONDS: Final = 30.0
"""Seconds for which an ended pod stays visible for users and log collectors."""
_REPLACING: Final = frozenset({("apps", "ReplicaSet"), ("", "ReplicationController")})
"""Controllers that replace a failed pod without deleting it. StatefulSets and DaemonSets delete it; Jobs retain it,
because their failure policies count it.
"""


class PodMirror:
    """Mirror of one tenant's pods; every write names the pod's UID, so that it cannot affect another pod of the same
    name.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self.reporter = PodReporter(scope)
        self.failures = PodFailures(scope, self.reporter)
        self._client = scope.client
        self._meter = scope.meter
        self._events = scope.events
        self._clock = scope.clock
        self.written_versions: dict[str, tuple[str, str]] = {}
        """Base and result version of the last status write, by pod UID."""
        self._written_ends: dict[str, str] = {}
        """Version of the compute pod whose end was written last, by UID of the tenant pod."""
        self._quiet_until: dict[str, float] = {}
        """Time until which no other reason of the compute scheduler is reported, by pod UID."""
        self._deleted_uids: set[str] = set()
        """UIDs of removed pods that the watch still shows."""
        self._evicted_uids: set[str] = set()
        """UIDs of pods that `evict_pod` deleted, whose deletion the watch may not show yet."""

    def was_removed(self, uid: str) -> bool:
        """Return whether a pod was removed; it may still be visible because of watch lag or the tenant's finalizers."""
        return uid in self._deleted_uids

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted pod."""
        self.written_versions.pop(uid, None)
        self._written_ends.pop(uid, None)
        self._quiet_until.pop(uid, None)
        self._deleted_uids.discard(uid)
        self._evicted_uids.discard(uid)

    def is_own_write(self, old: Meta, new: Meta) -> bool:
        """Return whether the only change between two versions of a pod is the last status write of the gateway.

        A write that started from an earlier version than `old` may hide changes by others.
        """
        return self.written_versions.get(new.uid) == (old.resource_version, new.resource_version)

    def is_watch_behind(self, metadata: Meta) -> bool:
        """Return whether the watch has not shown the last status write yet; versions of one object are numbers."""
        _, written = self.written_versions.get(metadata.uid, ("", ""))
        shown = metadata.resource_version
        return written.isdecimal() and shown.isdecimal() and int(shown) < int(written)

    async def read_pod(self, view: TenantPodView) -> bytes:
        """Return the complete pod from the watch, or read it again if it was dropped; never another pod of the same
        name.
        """
        if view.raw is not None:
            return view.raw
        metadata = view.metadata
        found = await self._client.get(resources.PODS, metadata.name, namespace=metadata.namespace)
        found_meta = decode_object(found).metadata
        if (found_meta.uid, found_meta.key) != (metadata.uid, metadata.key):
            raise errors.Conflict("another pod has the name now", status=409, reason="Conflict")
        return found

    async def update_status(self, context: PodContext) -> None:
        """Update the tenant pod's status to the compute pod's, if it differs."""
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        document, current_status = as_object(compute_pod), msgspec.json.decode(tenant_pod.status)
        patch = mirror_status(
            document,
            current_status,
            node_ip=_node_ip(context),
            node_name=tenant_pod.spec.node_name,
            observed=_observed_generation(tenant_pod, compute_pod, document["status"]),
            hide=_nodes_in_status(context),
            containers=tenant_pod.containers,
        )
        await self._write_mirrored(tenant_pod.metadata, patch, current_status)
        if patch is not None:
            await self._report_unscheduled(
                tenant_pod.metadata,
                patch,
                current_status,
                placed=COMPUTE_NODE_ANNOTATION in compute_pod.metadata.annotations,
            )

    async def _write_mirrored(self, metadata: Meta, patch: Object | None, current_status: Object) -> bool:
        """Patch a status that mirrors the compute pod, if it differs, and record the versions before and after.

        Return whether the watch had shown the last write. Otherwise the patch lacks what that write added and this one
        should remove, and the watch may show the last write as an echo: the status is compared again later.
        """
        if is_behind := self.is_watch_behind(metadata):
            self._scope.work_queue.enqueue(POD, metadata.key, _COMPARE_SECONDS)
        if patch is not None:
            version = await self.reporter.patch_status(metadata, patch, current_status)
            self.written_versions[metadata.uid] = metadata.resource_version, version
            self._meter.count_mirrored()
        return not is_behind

    async def _report_unscheduled(self, metadata: Meta, patch: Object, current_status: Object, *, placed: bool) -> None:
        """Emit a new reason of the compute scheduler as an event.

        Pods that the arbiter placed are excluded: if the node does not take such a pod, it is placed again.
        """
        shown_reason = unscheduled_reason(current_status)
        reason = unscheduled_reason(patch)
        now = self._clock.time()
        if (
            not reason
            or reason == shown_reason
            or placed
            or (shown_reason and self._quiet_until.get(metadata.uid, 0.0) > now)
        ):
            return
        self._quiet_until[metadata.uid] = now + _REASON_SECONDS
        await self._events.emit_event(metadata, reason="FailedScheduling", message=reason)

    async def write_end(self, context: PodContext) -> None:
        """Write the final status of the pod, and again whenever its kubelet changes it; the phase stays.

        A kubelet may report the phase before it reports how the containers ended.

        Raises:
            FailureDelayedError: the pod failed before any container ran, as did many pods of its controller.
        """
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        metadata = tenant_pod.metadata
        version = compute_pod.metadata.resource_version
        if tenant_pod.is_terminal and (
            # A deletion after the end would look like its cause.
            compute_pod.metadata.deletion_timestamp is not None or self._written_ends.get(metadata.uid) == version
        ):
            return
        ended_pod = as_object(compute_pod)
        ended_pod["status"] = with_tails(ended_pod["status"], kept_tails(compute_pod))
        if (
            not tenant_pod.is_terminal
            and never_started(ended_pod["status"])
            and EVICTED not in compute_pod.metadata.annotations
        ):
            message = clean_message(
                context, ended_pod["status"].get("message") or _DELETED, namespace=compute_pod.metadata.namespace
            )
            await self.failures.check_backoff(
                tenant_pod, ended_pod["status"].get("reason") or DELETED_IN_COMPUTE, message
            )
        disruption = None
        if metadata.deletion_timestamp is None and compute_pod.metadata.deletion_timestamp is not None:
            # A deletion after the pod's end did not cause the end, and so is not reported as a disruption.
            disruption = (
                None
                if has_ended_before(ended_pod["status"], _deletion_requested(compute_pod.metadata))
                else _disruption_of(compute_pod)
            )
        current_status = msgspec.json.decode(tenant_pod.status)
        patch = final_status(
            ended_pod,
            current_status,
            disruption=disruption,
            now=self._scope.clock.now(),
            node_ip=_node_ip(context),
            node_name=tenant_pod.spec.node_name,
            observed=metadata.generation,
            containers=tenant_pod.containers,
        )
        if await self._write_mirrored(metadata, patch, current_status):
            self._written_ends[metadata.uid] = version
        if patch is not None and disruption is not None:
            self._meter.count_failed(disruption.reason)
            await self._events.emit_event(metadata, reason=disruption.reason, message=disruption.message)

    async def evict_pod(self, context: PodContext) -> None:
        """Delete the tenant pod of a compute pod that is being deleted, with the same grace period.

        Controllers replace a pod when its deletion begins, as after a drain or the loss of a node in their own cluster.
        Its end comes up to a grace period later, and never while its kubelet is silent. Until then, the pod of no
        controller remains, since it is the only record of its end, and so does a pod that the arbiter evicts, since
        its controller was notified before.

        Raises:
            FailureDelayedError: no container ran, and the controller's last pods ended in the same way.
        """
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        if tenant_pod.metadata.uid in self._evicted_uids:
            return
        if not tenant_pod.has_controller or EVICTED in compute_pod.metadata.annotations:
            deadline = times.parse_time(compute_pod.metadata.deletion_timestamp or "").timestamp()
            if (remaining := deadline + _SILENT_SECONDS - self._clock.time()) > 0:
                self._scope.work_queue.enqueue(POD, context.key, remaining)
                return
        disruption, compute_status = _disruption_of(compute_pod), decode(compute_pod.status)
        if never_started(compute_status):
            await self.failures.check_backoff(tenant_pod, disruption.reason, disruption.message)
        current_status = decode(tenant_pod.status)
        # The condition comes first: failure policies of Jobs read it when the pod has ended.
        patch = disrupted_status(current_status, compute_status, disruption=disruption, now=self._scope.clock.now())
        if patch is not None:
            await self.reporter.patch_status(tenant_pod.metadata, patch, current_status)
        metadata = tenant_pod.metadata
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._client.delete(
                resources.PODS,
                metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                # The API server removes a pod without a grace period at once; this one has not ended.
                grace_period_seconds=max(1, compute_pod.metadata.deletion_grace_period_seconds or 0),
            )
        self._evicted_uids.add(metadata.uid)
        self._meter.count_failed(disruption.reason)
        await self._events.emit_event(metadata, reason=disruption.reason, message=disruption.message)

    async def end_deleted(self, context: PodContext) -> None:
        """Write the end of a pod that is deleted before it has ended, as kubelets do, if a finalizer retains it.

        The Job controller may wait for this end before it removes its finalizer.
        """
        tenant_pod = tenant_pod_of(context)
        if not tenant_pod.metadata.finalizers or self.was_removed(tenant_pod.metadata.uid):
            return
        current_status = msgspec.json.decode(tenant_pod.status)
        disruption = LOST if tenant_pod.has_run else NEVER_STARTED
        patch = failed_status(
            disruption.reason,
            disruption.message,
            tenant_status=current_status,
            observed=tenant_pod.metadata.generation,
            now=self._scope.clock.now(),
        )
        if patch is not None:
            await self.reporter.patch_status(tenant_pod.metadata, patch, current_status)

    async def delete_pod(self, context: PodContext) -> None:
        """Remove the tenant pod with grace period 0 and its UID; then only the tenant's finalizers retain it."""
        metadata = tenant_pod_of(context).metadata
        if metadata.uid in self._deleted_uids:
            return
        # Added before the request: the watch may report the deletion before the answer arrives, and clears the entry.
        self._deleted_uids.add(metadata.uid)
        try:
            await self._client.delete(
                resources.PODS, metadata.name, namespace=metadata.namespace, uid=metadata.uid, grace_period_seconds=0
            )
        except (errors.NotFound, errors.Conflict):
            return
        except BaseException:
            self._deleted_uids.discard(metadata.uid)
            raise

    async def reject_forbidden(self, view: TenantPodView, pod: Object) -> bool:
        """Fail a pod that waits for admission and breaks the tenant's policy; return whether it does."""
        refusals = find_refusals(pod, tenant=self._scope.tenant, pool=None)
        if refusals:
            with contextlib.suppress(FailureDelayedError):
                await self.failures.refuse_pod(view, refusals)
        return bool(refusals)


class ReplacedPods:
    """Removal of one tenant's pods that the platform ended and that their controller replaced."""

    def __init__(self, scope: TenantScope, mirror: PodMirror) -> None:
        self._scope = scope
        self._mirror = mirror
        self._clock = scope.clock

    async def remove_replaced(self, context: PodContext) -> None:
        """Remove the tenant pod after it was visible for a while, if its controller has replaced it."""
        tenant_pod = tenant_pod_of(context)
        now = self._clock.time()
        remaining = _ended_at(decode(tenant_pod.status), default=now) + SHOWN_SECONDS - now
        if remaining > 0:
            self._scope.work_queue.enqueue(POD, context.key, remaining)
            return
        try:
            pod = decode(await self._mirror.read_pod(tenant_pod))
        except (errors.NotFound, errors.Conflict):
            return
        if is_replaced(pod):
            await self._mirror.delete_pod(context)


def is_replaced(pod: Object) -> bool:
    """Return whether a pod's controller replaces failed pods without deleting them."""
    return controller_key(pod)[:2] in _REPLACING


def _ended_at(status: Object, *, default: float) -> float:
    """Return when the pod ended, in seconds since the epoch; `default` if its status has no time."""
    states = (one.get("state") or {} for one in status.get("containerStatuses") or ())
    end_times = [end for state in states if (end := (state.get("terminated") or {}).get("finishedAt"))]
    conditions = status.get("conditions") or ()
    end_times += [
        since
        for entry in conditions
        if entry["type"] == DISRUPTION_CONDITION and (since := entry.get("lastTransitionTime"))
    ]
    return max((times.parse_time(end).timestamp() for end in end_times), default=default)


def _observed_generation(tenant_pod: TenantPodView, compute_pod: ComputePodView, status: Object) -> int:
    """Return the tenant pod's generation that is in force in the compute cluster; 0 if unknown or already reported.

    A deletion increments the generation, too. It is reported with the pod's end and not by a separate write.
    """
    if (
        compute_pod.forwarded_fingerprint != tenant_pod.fingerprint
        or tenant_pod.metadata.deletion_timestamp is not None
    ):
        return 0
    observed = status.get("observedGeneration")
    if observed is None:  # an older kubelet does not report it
        return tenant_pod.metadata.generation if status.get("startTime") else 0
    return tenant_pod.metadata.generation if observed >= compute_pod.metadata.generation else 0


def _nodes_in_status(context: PodContext) -> tuple[str, ...]:
    """Return the compute nodes that the scheduling message of an unbound pod names."""
    compute_pod = compute_pod_of(context)
    status = bytes(compute_pod.status)
    if compute_pod.spec.node_name or _UNSCHEDULABLE not in status:
        return ()
    text = status.decode()
    return tuple(name for _, name in context.link.nodes.store if name in text)


def _disruption_of(compute_pod: ComputePodView) -> Disruption:
    """Return why a pod that the tenant did not delete is being deleted in the compute cluster."""
    reason, _, message = compute_pod.metadata.annotations.get(EVICTED, "").partition(": ")
    if reason:
        return Disruption(reason=reason, message=message)
    return Disruption(reason=DELETED_IN_COMPUTE, message=_DELETED)


def _deletion_requested(metadata: Meta) -> datetime:
    """Return when a pod's deletion was requested; the timestamp is when its grace period ends (apimachinery's
    ObjectMeta).

    A second request with a shorter period moves the timestamp. The gateway's own first request came at the deadline.
    """
    grace = timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    requested = times.parse_time(metadata.deletion_timestamp or "") - grace
    deadline = metadata.annotations.get(EVICTION_DEADLINE_ANNOTATION)
    return min(requested, times.parse_time(deadline)) if deadline else requested


def _node_ip(context: PodContext) -> str:
    return context.binding.node_ip if context.binding is not None else ""

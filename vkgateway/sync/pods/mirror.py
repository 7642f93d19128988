"""What is written into the tenant's cluster about a pod: its status, how it ended, why it waits, and its removal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.model import times
from vkgateway.model.names import COMPUTE_NODE_ANNOTATION
from vkgateway.model.objects import Meta, Object, decode_object
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.metrics import PodMeter
from vkgateway.sync.pods.absences import Absence
from vkgateway.sync.pods.failure_backoff import FailureBackoff
from vkgateway.sync.pods.log_tails import kept_tails
from vkgateway.sync.pods.pod_context import PodContext, as_object, compute_pod_of, plan_of, tenant_pod_of
from vkgateway.sync.views.annotations import EVICTED
from vkgateway.sync.views.pods import ComputePodView, TenantPodView
from vkgateway.translate.conditions import unscheduled_reason
from vkgateway.translate.ephemeral_status import waiting_status
from vkgateway.translate.log_tails import with_tails
from vkgateway.translate.policy import Refusal
from vkgateway.translate.sanitizer import Sanitizer
from vkgateway.translate.to_tenant import (
    Disruption,
    condition_status,
    failed_status,
    final_status,
    has_ended_before,
    mirror_status,
    never_started,
    strategic_patch,
)

log = structlog.get_logger(__name__)

FORWARDED_CONDITION: Final = "vkgateway.io/Forwarded"
"""Condition on a tenant pod that says why it is not in the compute cluster yet."""

DELETED_IN_COMPUTE: Final = "DeletionByComputeCluster"
"""Reason of DisruptionTarget where a pod was deleted below and nothing there says why."""
_DELETED: Final = "the pod was deleted in the compute cluster"

LOST: Final = Disruption(
    reason="Lost",
    message="the pod ran, and nothing of it is left in the compute cluster; it is not started a second time",
)

NEVER_STARTED: Final = Disruption(reason="Deleted", message="the pod was deleted before it was started")

_REASON_SECONDS: Final = 60.0
"""Seconds between two events of a pod about the compute scheduler's reason, which changes with the cluster."""
_UNSCHEDULABLE: Final = b"Unschedulable"


class FailureDelayedError(Exception):
    """The pod fails later: too many pods of its controller have failed just now. It is reconciled again then."""


class PodMirror:
    """Writes about one tenant's pods; every write names the pod's UID, so that it never meets a namesake.

    `pace` says how soon pods may fail, and `later(view, seconds)` has a pod reconciled again.
    """

    def __init__(
        self,
        client: Client,
        *,
        events: EventRecorder,
        meter: PodMeter,
        clock: Callable[[], float],
        pace: FailureBackoff,
        later: Callable[[TenantPodView, float], None],
    ) -> None:
        self._client = client
        self._backoff = pace
        self._requeue_after = later
        self._meter = meter
        self._events = events
        self._clock = clock
        self._written_versions: dict[str, tuple[str, str]] = {}
        """Pod UIDs to the version that our last write of a status began from, and the one that it made."""
        self._quiet_until: dict[str, float] = {}
        """Pod UIDs to the time until which no other reason of the compute scheduler is reported."""
        self._deleted_uids: set[str] = set()
        """UIDs of pods that were removed, until the watch shows that they are gone."""

    def is_own_write(self, old: Meta, new: Meta) -> bool:
        """Whether all that lies between two versions of a pod is our last write of its status.

        Where it began from an earlier one than `old`, it told nothing of what others wrote in between.
        """
        return self._written_versions.get(new.uid) == (old.resource_version, new.resource_version)

    def is_watch_behind(self, metadata: Meta) -> bool:
        """Whether the watch has yet to tell what we wrote of a pod's status; versions of one object are numbers."""
        _, written = self._written_versions.get(metadata.uid, ("", ""))
        shown = metadata.resource_version
        return written.isdecimal() and shown.isdecimal() and int(shown) < int(written)

    def was_removed(self, uid: str) -> bool:
        """Whether a pod was removed; what still shows it is late, or finalizers of the tenant's own hold it."""
        return uid in self._deleted_uids

    def forget_pod(self, uid: str) -> None:
        """Drop what is remembered of a pod that is gone."""
        self._written_versions.pop(uid, None)
        self._quiet_until.pop(uid, None)
        self._deleted_uids.discard(uid)

    async def read_pod(self, view: TenantPodView) -> bytes:
        """The pod with all that is in it: as it came, or asked for anew once it was let go; never a namesake."""
        if view.raw is not None:
            return view.raw
        metadata = view.metadata
        found = await self._client.get(resources.PODS, metadata.name, namespace=metadata.namespace)
        told = decode_object(found).metadata
        if (told.uid, told.key) != (metadata.uid, metadata.key):
            raise errors.Conflict("another pod has the name now", status=409, reason="Conflict")
        return found

    async def update_status(self, case: PodContext) -> None:
        """Make the status above equal to that below, where it differs."""
        above, below = tenant_pod_of(case), compute_pod_of(case)
        compute_pod, standing = as_object(below), msgspec.json.decode(above.status)
        patch = mirror_status(
            compute_pod,
            standing,
            node_ip=_node_ip(case),
            node_name=above.spec.node_name,
            observed=_observed_generation(above, below, compute_pod["status"]),
            hide=_nodes_in_status(case),
        )
        if patch is not None:
            await self._write_mirrored(above.metadata, patch, standing)
            await self._report_unscheduled(
                above.metadata, patch, standing, placed=COMPUTE_NODE_ANNOTATION in below.metadata.annotations
            )

    async def _report_unscheduled(self, metadata: Meta, patch: Object, standing: Object, *, placed: bool) -> None:
        """Emit the compute scheduler's reason as an event where it is new.

        Pods that the arbiter placed are left out: one that its node does not take is placed again.
        """
        told = unscheduled_reason(standing)
        reason = unscheduled_reason(patch)
        now = self._clock()
        if not reason or reason == told or placed or (told and self._quiet_until.get(metadata.uid, 0.0) > now):
            return
        self._quiet_until[metadata.uid] = now + _REASON_SECONDS
        await self._events.emit_event(metadata, reason="FailedScheduling", message=reason)

    async def write_end(self, case: PodContext) -> None:
        """Write how the pod ended; a final status that stands above is never touched.

        Raises:
            FailureDelayedError: the pod failed before any container ran, as many of its controller did.
        """
        above, below = tenant_pod_of(case), compute_pod_of(case)
        if above.is_terminal:
            return
        ended = as_object(below)
        ended["status"] = with_tails(ended["status"], kept_tails(below))
        if never_started(ended["status"]) and EVICTED not in below.metadata.annotations:
            message = clean_message(
                case, ended["status"].get("message") or _DELETED, namespace=below.metadata.namespace
            )
            await self._check_backoff(above, ended["status"].get("reason") or DELETED_IN_COMPUTE, message)
        taken = None
        if above.metadata.deletion_timestamp is None and below.metadata.deletion_timestamp is not None:
            # What was deleted only after its end was not ended by that: nobody was there to tell of it.
            taken = (
                None
                if has_ended_before(ended["status"], _deletion_requested(below.metadata))
                else _disruption_of(below)
            )
        standing = msgspec.json.decode(above.status)
        patch = final_status(
            ended,
            standing,
            taken=taken,
            now=self._utc_now(),
            node_ip=_node_ip(case),
            node_name=above.spec.node_name,
            observed=above.metadata.generation,
        )
        if patch is None:
            return
        await self._write_mirrored(above.metadata, patch, standing)
        if taken is not None:
            self._meter.failed(taken.reason)
            await self._events.emit_event(above.metadata, reason=taken.reason, message=taken.message)

    async def end_deleted(self, case: PodContext) -> None:
        """End a pod that goes before it has ended, as kubelets do, where somebody's finalizer keeps it there.

        The controller of a Job may wait for that end, and takes its finalizer off only after it.
        """
        above = tenant_pod_of(case)
        if not above.metadata.finalizers or self.was_removed(above.metadata.uid):
            return
        standing = msgspec.json.decode(above.status)
        end = LOST if above.has_run else NEVER_STARTED
        patch = failed_status(end.reason, end.message, tenant_status=standing)
        if patch is not None:
            await self._patch_status(above.metadata, patch, standing)

    async def delete_pod(self, case: PodContext) -> None:
        """Remove the pod: grace 0, that very UID; what then still holds it are finalizers of the tenant's own."""
        metadata = tenant_pod_of(case).metadata
        if metadata.uid in self._deleted_uids:
            return
        # Before the answer: the watch may tell sooner that the pod is gone, and nobody would forget it after that.
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

    async def fail_refused(self, case: PodContext) -> None:
        """Fail the pod with the rule that it breaks. Raises FailureDelayedError."""
        await self.refuse_pod(tenant_pod_of(case), plan_of(case).refusals)

    async def refuse_pod(self, above: TenantPodView, refusals: Sequence[Refusal]) -> None:
        """Fail a pod with the first of the rules that it breaks. Raises FailureDelayedError."""
        first, *more = refusals
        suffix = f" (and {len(more)} more)" if more else ""
        await self._fail_pod(above, "PolicyRefused", f"{first.message}{suffix}")

    async def fail_lost(self, case: PodContext) -> None:
        """Fail the pod: it ran, and nothing of it is left below. Raises FailureDelayedError."""
        above = tenant_pod_of(case)
        await self._check_backoff(above, LOST.reason, LOST.message)
        status = msgspec.json.decode(above.status)
        patch = final_status({"status": status}, status, taken=LOST, now=self._utc_now())
        if patch is not None:
            await self._patch_status(above.metadata, patch, status)
            self._meter.failed(LOST.reason)
            await self._events.emit_event(above.metadata, reason=LOST.reason, message=LOST.message)

    async def fail_pod(self, case: PodContext, reason: str, message: str) -> None:
        """Fail a pod that never ran below, for good. Raises FailureDelayedError."""
        await self._fail_pod(tenant_pod_of(case), reason, message)

    async def _check_backoff(self, above: TenantPodView, reason: str, message: str) -> None:
        """Return if the pod may fail now, and note that it does; else report why it waits.

        Raises:
            FailureDelayedError: the pod is reconciled again when it may fail.
        """
        if above.is_terminal or above.metadata.deletion_timestamp is not None:
            return
        now = self._clock()
        wait = self._backoff.remaining_delay(above.owner, now=now)
        if wait <= 0:
            self._backoff.record_failure(above.owner, now=now)
            return
        self._requeue_after(above, wait)
        why = f"the pod fails later, because other pods of {above.owner[1]} have just failed"
        await self._report_waiting(above, reason, f"{message}; {why}", kind="Warning")
        raise FailureDelayedError

    async def _fail_pod(self, above: TenantPodView, reason: str, message: str) -> None:
        await self._check_backoff(above, reason, message)
        standing = msgspec.json.decode(above.status)
        patch = failed_status(reason, message, tenant_status=standing)
        if patch is not None:
            await self._patch_status(above.metadata, patch, standing)
            self._meter.failed(reason)
            await self._events.emit_event(above.metadata, reason=reason, message=message)

    async def report_waiting(
        self, case: PodContext, reason: str, message: str, *, kind: Literal["Normal", "Warning"] = "Warning"
    ) -> None:
        """Tell why the pod waits: an event, and a condition that says the same for as long as it is so."""
        await self._report_waiting(tenant_pod_of(case), reason, message, kind=kind)

    async def report_absences(self, case: PodContext, found: Sequence[Absence]) -> None:
        """Emit an event for each kind of absent object; the condition has the first reason and names all of them."""
        above = tenant_pod_of(case)
        for absence in found:
            await self._events.emit_event(above.metadata, reason=absence.reason, message=absence.message)
        await self._set_not_forwarded(above, found[0].reason, ", ".join(absence.message for absence in found))

    async def _report_waiting(
        self, above: TenantPodView, reason: str, message: str, *, kind: Literal["Normal", "Warning"]
    ) -> None:
        await self._events.emit_event(above.metadata, reason=reason, message=message, kind=kind)
        await self._set_not_forwarded(above, reason, message)

    async def _set_not_forwarded(self, above: TenantPodView, reason: str, message: str) -> None:
        standing = msgspec.json.decode(above.status)
        patch = condition_status(
            standing,
            FORWARDED_CONDITION,
            status="False",
            reason=reason,
            message=message,
            now=self._utc_now(),
        )
        if patch is not None:
            await self._patch_status(above.metadata, patch, standing)

    async def show_waiting(self, case: PodContext, containers: Sequence[Object], why: Mapping[str, str]) -> None:
        """Show ephemeral containers that do not start as waiting, each by its name with the reason why."""
        above = tenant_pod_of(case)
        standing = msgspec.json.decode(above.status)
        patch = waiting_status(containers, why, tenant_status=standing)
        if patch is not None:
            await self._patch_status(above.metadata, patch, standing)

    async def emit_event(self, case: PodContext, reason: str, message: str) -> None:
        """An event about the pod, and nothing else."""
        await self._events.emit_event(tenant_pod_of(case).metadata, reason=reason, message=message)

    async def _write_mirrored(self, metadata: Meta, patch: Object, standing: Object) -> None:
        version = await self._patch_status(metadata, patch, standing)
        self._written_versions[metadata.uid] = metadata.resource_version, version
        self._meter.mirrored()

    async def _patch_status(self, metadata: Meta, status: Object, standing: Object) -> str:
        """Patch the pod's status, only if it is still that very pod; returns the version it then has.

        `standing` is the status that the watch has shown. Others may have set conditions since, which stay.
        """
        answer = await self._client.patch(
            resources.PODS,
            metadata.name,
            {"metadata": {"uid": metadata.uid}, "status": strategic_patch(status, standing)},
            namespace=metadata.namespace,
            subresource="status",
            kind="strategic",
            metadata_only=True,
        )
        return decode_object(answer).metadata.resource_version

    def _utc_now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _observed_generation(above: TenantPodView, below: ComputePodView, status: Object) -> int:
    """The generation of the tenant's pod that is in force below; 0 where that cannot be told, or was told already.

    A deletion is a generation, too: it is told with the end, not by a write of its own.
    """
    if below.forwarded_fingerprint != above.fingerprint or above.metadata.deletion_timestamp is not None:
        return 0
    seen = status.get("observedGeneration")
    if seen is None:  # an older kubelet never tells
        return above.metadata.generation if status.get("startTime") else 0
    return above.metadata.generation if seen >= below.metadata.generation else 0


def _nodes_in_status(case: PodContext) -> tuple[str, ...]:
    """Return the compute nodes that the reason of a pod names which no node has taken."""
    below = compute_pod_of(case)
    status = bytes(below.status)
    if below.spec.node_name or _UNSCHEDULABLE not in status:
        return ()
    text = status.decode()
    return tuple(name for _, name in case.link.nodes.store if name in text)


def clean_message(case: PodContext, text: str, *, namespace: str) -> str:
    """What the compute cluster said, in the tenant's own names; `namespace` is the compute namespace."""
    node = case.tenant.spec.node_name if case.tenant is not None else "the node"
    pairs = [(namespace, case.key[0])]
    if case.compute is not None and case.compute.spec.node_name:
        pairs.append((case.compute.spec.node_name, node))
    return Sanitizer(tuple(pairs)).sanitize_text(text)


def _disruption_of(below: ComputePodView) -> Disruption:
    """Why a pod that the tenant did not delete is being deleted below."""
    reason, _, message = below.metadata.annotations.get(EVICTED, "").partition(": ")
    if reason:
        return Disruption(reason=reason, message=message)
    return Disruption(reason=DELETED_IN_COMPUTE, message=_DELETED)


def _deletion_requested(metadata: Meta) -> datetime:
    """When a pod's deletion was asked for: servers tell when its grace is over (apimachinery's ObjectMeta)."""
    grace = timedelta(seconds=metadata.deletion_grace_period_seconds or 0)
    return times.parse_time(metadata.deletion_timestamp or "") - grace


def _node_ip(case: PodContext) -> str:
    return case.binding.node_ip if case.binding is not None else ""

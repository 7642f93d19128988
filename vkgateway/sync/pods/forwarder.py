"""Forwarding of pods to a compute cluster: creation, changes, deletion and removal of the finalizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.snapshot import PoolKey
from vkgateway.kube import errors, resources
from vkgateway.kube.client import encode
from vkgateway.model import times
from vkgateway.model.names import BORROWED_ANNOTATION, MIRROR_FINALIZER, POOL_LABEL, compute_namespace
from vkgateway.model.objects import Meta, Object, decode_object
from vkgateway.sync import finalizers
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.copies import CopyReconciler
from vkgateway.sync.metrics import PodMeter
from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.pods import absences
from vkgateway.sync.pods.change_forwarder import ChangeForwarder
from vkgateway.sync.pods.feature_guard import fields_lost_on_create
from vkgateway.sync.pods.log_tails import read_tails
from vkgateway.sync.pods.mirror import PodMirror, clean_message
from vkgateway.sync.pods.pod_context import (
    PodContext,
    compute_pod_of,
    decode,
    make_plan,
    plan_of,
    pod_digest,
    tenant_pod_of,
)
from vkgateway.sync.pods.readiness import ReadinessForwarder
from vkgateway.sync.refusals import is_object_refused, lacks_rights
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.tokens import ServiceAccountTokens
from vkgateway.sync.views.annotations import AMOUNTS, BEHIND, EVICTED, FORWARDED, LOG_TAILS, REQUESTS, RETAKEN
from vkgateway.sync.views.ownership import owned_by
from vkgateway.sync.views.pods import decode_compute_pod
from vkgateway.translate.context import TenantContext
from vkgateway.translate.feature_gates import lost_fields_message
from vkgateway.translate.size_budget import OversizeError
from vkgateway.translate.subresources import resources_checksum
from vkgateway.translate.to_compute import forward_pod

log = structlog.get_logger(__name__)

_NAME_TAKEN_RETRY: Final = 30.0
_STALE_RETRY: Final = 1.0
_REFUSED_RETRY: Final = 60.0
_CREATED_GRACE: Final = 30.0
"""Seconds for which a pod counts as existing after its creation, although the watch has not shown it."""
_RELEASED_FOR: Final = 30.0
"""Seconds for which a pod without its finalizer is left alone, although the watch still shows the finalizer."""
_MISSING_ACCOUNT: Final = "error looking up service account"
_RETRIABLE: Final = (
    "exceeded quota",
    "status unknown for quota",
    "no PriorityClass with name",
    _MISSING_ACCOUNT,
)
"""Messages of 403 responses that are no verdict on the pod, in addition to those in `refusals`. These responses name no
machine-readable cause.
"""


class OutdatedPlanError(Exception):
    """The pod's requests or policy violations have changed since it was admitted."""


class TenantContextLookup(Protocol):
    """Lookup of the tenant context of a pod in a compute cluster.

    See `NameService.tenant_context_in` and `ServiceReconciler.settle_namespace`.
    """

    async def __call__(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """Return the tenant context; `with_services` first forwards the Services of the tenant's `namespace`."""


class PodForwarder:
    """Forwarder of one tenant's pods to compute clusters.

    `seen_from(link, namespace)` returns the tenant context for pods in a compute cluster. `grace_max(pool)` returns the
    maximum termination grace period of borrowing pods in a pool, in seconds.
    """

    def __init__(
        self,
        tenant: TenantContext,
        shared: TenantScope,
        *,
        upward: PodMirror,
        namespaces: NamespaceReconciler,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        seen_from: TenantContextLookup,
        grace_max: Callable[[PoolKey], float],
        meter: PodMeter,
    ) -> None:
        self.tenant = tenant
        self._mirror = upward
        self._namespaces = namespaces
        self._copies = copies
        self._tokens = tokens
        self._cache = shared.cache
        self._tenant_context_in = seen_from
        self._grace_max = grace_max
        self._requeue_after = shared.work_queue.enqueue_pod
        self._meter = meter
        self._clock = shared.clock
        self._changes = ChangeForwarder(upward=upward, copies=copies, later=self._requeue_after)
        self.readiness = ReadinessForwarder(upward=upward, later=self._requeue_after)
        self.created_until: dict[str, float] = {}
        """UIDs of tenant pods whose created compute pod the watch has not shown, with the time when it stops to count.
        """
        self.name_taken_until: dict[str, float] = {}
        """UIDs of tenant pods whose name is taken in the compute cluster, with the time of the next attempt."""
        self._released_until: dict[str, float] = {}
        """UIDs of compute pods whose finalizer was removed, oldest first, with the time when the entry expires."""

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted tenant pod; its created compute pod still exists."""
        self.name_taken_until.pop(uid, None)

    async def create_pod(self, context: PodContext) -> None:
        """Create namespace, copies, tokens and pod, in this order; each may exist already. Raises OutdatedPlanError."""
        tenant_pod, plan = tenant_pod_of(context), plan_of(context)
        pod = await self._read_admitted(context)
        namespace = tenant_pod.metadata.namespace
        compute_namespace_name = await self._namespaces.ensure_namespace(
            context.link, namespace, self._cache.namespace_uid(namespace)
        )
        self._copies.set_cluster(context.key, context.link)
        for reference in plan.references:
            await self._copies.ensure_copy(context.link, reference)
        if plan.tokens:
            await self._refresh_tokens(context)
        try:
            compute_pod = await self._translate_pod(context, pod, compute_namespace_name)
        except OversizeError as error:
            await self._mirror.fail_pod(context, "ForwardingRefused", f"the pod cannot be forwarded: {error}")
            return
        try:
            lost_fields = await fields_lost_on_create(context.link, compute_pod)
            if not lost_fields:
                await context.link.client.create(
                    resources.PODS, compute_pod, namespace=compute_pod["metadata"]["namespace"], metadata_only=True
                )
        except errors.AlreadyExists:
            await self._handle_existing(context, compute_pod)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            await self._handle_refusal(context, error)
        else:
            if lost_fields:
                await self._mirror.fail_pod(context, "ForwardingRefused", lost_fields_message(lost_fields))
            else:
                self._record_forwarded(context)
                await self._report_optional(context)

    async def _report_optional(self, context: PodContext) -> None:
        """Emit events about the optional objects that do not exist at the pod's start."""
        missing = [reference for reference in plan_of(context).optional if not self._copies.source_exists(reference)]
        for absence in absences.optional_absences(missing):
            await self._mirror.emit_event(context, absence.reason, absence.message)

    def _record_forwarded(self, context: PodContext) -> None:
        metadata, now = tenant_pod_of(context).metadata, self._clock()
        self.created_until[metadata.uid] = now + _CREATED_GRACE
        created = metadata.creation_timestamp
        self._meter.forwarded(now - times.parse_time(created).timestamp() if created else 0.0)

    async def _read_admitted(self, context: PodContext) -> Object:
        """Return the complete pod, which must be the one that was validated and admitted.

        The pod may have changed since. A tenant may also run a manipulated API server that answers differently on each
        request. Raises OutdatedPlanError.
        """
        plan, binding = plan_of(context), context.binding
        assert binding is not None
        raw = await self._mirror.read_pod(tenant_pod_of(context))
        if context.pod_document is not None and context.pod_document[0] is raw:
            return context.pod_document[1]
        pod = decode(raw)
        if pod_digest(raw) == plan.source:
            return pod
        if plan != make_plan(pod, tenant=self.tenant, pool=binding.pool, state=plan.state, source=plan.source):
            raise OutdatedPlanError
        return pod

    async def _translate_pod(self, context: PodContext, pod: Object, namespace: str) -> Object:
        """Return the compute pod with its state annotations. Raises OversizeError."""
        tenant_pod, admission, binding = tenant_pod_of(context), context.admission, context.binding
        assert binding is not None
        with_services = pod["spec"].get("enableServiceLinks") is not False
        compute_pod = forward_pod(
            pod,
            tenant=await self._tenant_context_in(
                context.link, tenant_pod.metadata.namespace, with_services=with_services
            ),
            pool=binding.pool,
            namespace=namespace,
            compute_node=admission.node if admission is not None else "",
            borrowed=admission.borrowed if admission is not None else None,
            namespaces=self._cache.namespace_labels,
            claims=context.claims.names,
        )
        requests = encode(plan_of(context).requests).decode()
        state_annotations = {REQUESTS: requests, AMOUNTS: resources_checksum(pod["spec"])}
        # Ephemeral containers cannot be set at creation; they are forwarded afterwards.
        if not pod["spec"].get("ephemeralContainers"):
            state_annotations[FORWARDED] = tenant_pod.fingerprint
        compute_pod["metadata"]["annotations"] |= state_annotations
        if admission is not None and admission.behind:
            compute_pod["metadata"]["annotations"][BEHIND] = admission.behind
        return compute_pod

    async def _handle_existing(self, context: PodContext, compute_pod: Object) -> None:
        metadata = compute_pod["metadata"]
        raw = await context.link.client.get(resources.PODS, metadata["name"], namespace=metadata["namespace"])
        found = decode_compute_pod(raw)
        uid = tenant_pod_of(context).metadata.uid
        if not owned_by(self.tenant.name, found.metadata):
            self.name_taken_until[uid] = self._clock() + _NAME_TAKEN_RETRY
            await self.report_name_taken(context)
        elif found.tenant_uid == uid:
            self.created_until[uid] = self._clock() + _CREATED_GRACE
        else:
            self._requeue_after(context.key, _STALE_RETRY)

    async def report_name_taken(self, context: PodContext) -> None:
        """Report that the name is taken in the compute cluster, and retry later."""
        uid = tenant_pod_of(context).metadata.uid
        self._requeue_after(context.key, max(_STALE_RETRY, self.name_taken_until.get(uid, 0.0) - self._clock()))
        message = "an object that is not this tenant's has the pod's name in the compute cluster"
        await self._mirror.report_waiting(context, "NameTaken", message)

    async def _handle_refusal(self, context: PodContext, error: errors.ApiError) -> None:
        """Handle the compute cluster's refusal of a pod; the pod fails only if a retry cannot succeed."""
        message = clean_message(
            context, error.server_message, namespace=compute_namespace(self.tenant.name, context.key[0])
        )
        is_retriable = any(words in error.server_message for words in _RETRIABLE) or not is_object_refused(error)
        if "NamespaceTerminating" in error.causes or is_retriable:
            if _MISSING_ACCOUNT in error.server_message:
                self._namespaces.mark_incomplete(context.link, self._cache.namespace_uid(context.key[0]))
            if lacks_rights(error):
                message = "the compute cluster does not allow the gateway to create pods at the moment"
            await self._mirror.report_waiting(context, "ForwardingDelayed", message)
            raise errors.TooManyRequests(message, status=429, reason="TooManyRequests") from error
        await self._mirror.fail_pod(context, "ForwardingRefused", f"the compute cluster refused the pod: {message}")

    async def forward_changes(self, context: PodContext) -> None:
        """Forward labels, annotations and mutable fields if they differ, and refresh tokens."""
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        if compute_pod.forwarded_fingerprint != tenant_pod.fingerprint:
            await self._changes.forward_changes(context, self.tenant)
        else:
            tenant_pod.raw = None
        if context.plan is not None and context.plan.tokens:
            await self._refresh_tokens(context)

    async def refresh_tokens(self, context: PodContext) -> None:
        """Refresh the tokens of a terminating pod, because its containers may need them until they end.

        If the tenant's API server refuses (the account was deleted, the namespace is terminating), the tokens stay
        unchanged.
        """
        tenant_pod = tenant_pod_of(context)
        due = self._tokens.refresh_due_in(context.link, tenant_pod.metadata)
        if due is None:
            return
        if due > 0:
            self._requeue_after(context.key, due)
            return
        try:
            context.plan = make_plan(decode(await self._mirror.read_pod(tenant_pod)), tenant=self.tenant, pool=None)
            await self._refresh_tokens(context)
        except errors.ApiError as error:
            if error.is_transient:
                raise
            self._requeue_after(context.key, _REFUSED_RETRY)

    async def _refresh_tokens(self, context: PodContext) -> None:
        plan = plan_of(context)
        due = await self._tokens.ensure_secret(
            context.link, tenant_pod_of(context).metadata, plan.service_account, plan.tokens
        )
        self._requeue_after(context.key, due)

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
        remaining = tenant_grace if deadline is None else math.ceil(deadline - self._clock())
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
        max_grace = self._grace_max((context.link.name, metadata.labels.get(POOL_LABEL, "")))
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
        await finalizers.remove_finalizers(context.link.client, resources.PODS, compute_pod.metadata, MIRROR_FINALIZER)
        self._released_until[uid] = self._clock() + _RELEASED_FOR

    def _was_released(self, uid: str) -> bool:
        """Return whether the finalizer was just removed; several events report the end of a pod."""
        now = self._clock()
        while self._released_until and next(iter(self._released_until.values())) <= now:
            del self._released_until[next(iter(self._released_until))]
        return uid in self._released_until

    async def delete_at_deadline(self, context: PodContext) -> None:
        """Delete the pod after its notice has expired, and record the reason."""
        assert context.admission is not None
        admission, compute_pod = context.admission, compute_pod_of(context)
        remaining = (admission.deadline or 0.0) - self._clock()
        if remaining > 0:
            self._requeue_after(context.key, remaining)
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

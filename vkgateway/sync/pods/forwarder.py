"""What is written into the compute cluster about a pod: its creation, changes, deletion and release."""

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
"""Seconds for which a pod that was just created below counts as there, though the watch has not shown it."""
_RELEASED_FOR: Final = 30.0
"""Seconds for which a pod whose finalizer was just taken off is left alone, though the watch still shows it."""
_MISSING_ACCOUNT: Final = "error looking up service account"
_RETRIABLE: Final = (
    "exceeded quota",
    "status unknown for quota",
    "no PriorityClass with name",
    _MISSING_ACCOUNT,
)
"""What a 403 says that is no verdict on the pod, beside what `refusals` knows: a quota, or something that we lack.
None of them names a cause that could be looked for instead."""


class OutdatedPlanError(Exception):
    """The pod asks for something else, or breaks other rules, than when it was looked at and admitted."""


class TenantContextLookup(Protocol):
    """Tells what a pod in a compute cluster must know of its tenant; see `NameService.tenant_context_in`,
    `ServiceReconciler.settle_namespace`.
    """

    async def __call__(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """With `with_services` the Services of the tenant's `namespace` stand below first."""


class PodForwarder:
    """Writes below for one tenant's pods.

    `seen_from(link, namespace)` tells what pods in a compute cluster must know of the tenant there, `grace_max(pool)`
    how many seconds pods that borrow in a pool are given to end at most.
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
        """Tenant pod UIDs whose compute pod was created, until the watch shows it, with the time of giving up."""
        self.name_taken_until: dict[str, float] = {}
        """Tenant pod UIDs whose name is taken below, with the time of the next try."""
        self._released_until: dict[str, float] = {}
        """Compute pod UIDs whose finalizer was taken off, oldest first, with the time of forgetting that."""

    def forget_pod(self, uid: str) -> None:
        """Drop what is remembered of a tenant pod that is gone; what was created for it is there all the same."""
        self.name_taken_until.pop(uid, None)

    async def create_pod(self, case: PodContext) -> None:
        """Make namespace, copies, token and pod, in this order; each may be there already. Raises OutdatedPlanError."""
        above, plan = tenant_pod_of(case), plan_of(case)
        whole = await self._read_admitted(case)
        namespace = above.metadata.namespace
        below_namespace = await self._namespaces.ensure_namespace(
            case.link, namespace, self._cache.namespace_uid(namespace)
        )
        self._copies.set_cluster(case.key, case.link)
        for reference in plan.references:
            await self._copies.ensure_copy(case.link, reference)
        if plan.tokens:
            await self._refresh_tokens(case)
        try:
            below = await self._translate_pod(case, whole, below_namespace)
        except OversizeError as error:
            await self._mirror.fail_pod(case, "ForwardingRefused", f"the pod cannot be forwarded: {error}")
            return
        try:
            lost = await fields_lost_on_create(case.link, below)
            if not lost:
                await case.link.client.create(
                    resources.PODS, below, namespace=below["metadata"]["namespace"], metadata_only=True
                )
        except errors.AlreadyExists:
            await self._handle_existing(case, below)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            await self._handle_refusal(case, error)
        else:
            if lost:
                await self._mirror.fail_pod(case, "ForwardingRefused", lost_fields_message(lost))
            else:
                self._record_forwarded(case)
                await self._report_optional(case)

    async def _report_optional(self, case: PodContext) -> None:
        """Emit events about the optional objects that do not exist at the pod's start."""
        missing = [reference for reference in plan_of(case).optional if not self._copies.source_exists(reference)]
        for absence in absences.optional_absences(missing):
            await self._mirror.emit_event(case, absence.reason, absence.message)

    def _record_forwarded(self, case: PodContext) -> None:
        metadata, now = tenant_pod_of(case).metadata, self._clock()
        self.created_until[metadata.uid] = now + _CREATED_GRACE
        born = metadata.creation_timestamp
        self._meter.forwarded(now - times.parse_time(born).timestamp() if born else 0.0)

    async def _read_admitted(self, case: PodContext) -> Object:
        """The whole pod, which is what was judged and admitted.

        It may have changed since. Nor need a server that is asked twice tell the same: a tenant can put one of its own
        in the place of its API server's. Raises OutdatedPlanError.
        """
        plan, binding = plan_of(case), case.binding
        assert binding is not None
        raw = await self._mirror.read_pod(tenant_pod_of(case))
        if case.pod_document is not None and case.pod_document[0] is raw:
            return case.pod_document[1]
        whole = decode(raw)
        if pod_digest(raw) == plan.source:
            return whole
        if plan != make_plan(whole, tenant=self.tenant, pool=binding.pool, state=plan.state, source=plan.source):
            raise OutdatedPlanError
        return whole

    async def _translate_pod(self, case: PodContext, whole: Object, below_namespace: str) -> Object:
        """The compute pod, with what is to be found again on it. Raises OversizeError."""
        above, said, binding = tenant_pod_of(case), case.admission, case.binding
        assert binding is not None
        with_services = whole["spec"].get("enableServiceLinks") is not False
        below = forward_pod(
            whole,
            tenant=await self._tenant_context_in(case.link, above.metadata.namespace, with_services=with_services),
            pool=binding.pool,
            namespace=below_namespace,
            compute_node=said.node if said is not None else "",
            borrowed=said.borrowed if said is not None else None,
            namespaces=self._cache.namespace_labels,
            claims=case.claims.names,
        )
        requests = encode(plan_of(case).requests).decode()
        marks = {REQUESTS: requests, AMOUNTS: resources_checksum(whole["spec"])}
        if not whole["spec"].get("ephemeralContainers"):  # none can be given at creation: they are still to go down
            marks[FORWARDED] = above.fingerprint
        below["metadata"]["annotations"] |= marks
        if said is not None and said.behind:
            below["metadata"]["annotations"][BEHIND] = said.behind
        return below

    async def _handle_existing(self, case: PodContext, below: Object) -> None:
        metadata = below["metadata"]
        raw = await case.link.client.get(resources.PODS, metadata["name"], namespace=metadata["namespace"])
        found = decode_compute_pod(raw)
        uid = tenant_pod_of(case).metadata.uid
        if not owned_by(self.tenant.name, found.metadata):
            self.name_taken_until[uid] = self._clock() + _NAME_TAKEN_RETRY
            await self.report_name_taken(case)
        elif found.tenant_uid == uid:
            self.created_until[uid] = self._clock() + _CREATED_GRACE
        else:
            self._requeue_after(case.key, _STALE_RETRY)

    async def report_name_taken(self, case: PodContext) -> None:
        """Tell that the name is taken below, and look again in a while."""
        uid = tenant_pod_of(case).metadata.uid
        self._requeue_after(case.key, max(_STALE_RETRY, self.name_taken_until.get(uid, 0.0) - self._clock()))
        message = "the pod's name is taken in the compute cluster by something that is not this tenant's"
        await self._mirror.report_waiting(case, "NameTaken", message)

    async def _handle_refusal(self, case: PodContext, error: errors.ApiError) -> None:
        """The compute cluster's own verdict; only what would be the same tomorrow is final."""
        said = clean_message(case, error.server_message, namespace=compute_namespace(self.tenant.name, case.key[0]))
        later = any(words in error.server_message for words in _RETRIABLE) or not is_object_refused(error)
        if "NamespaceTerminating" in error.causes or later:
            if _MISSING_ACCOUNT in error.server_message:
                self._namespaces.mark_incomplete(case.link, self._cache.namespace_uid(case.key[0]))
            if lacks_rights(error):
                said = "the compute cluster does not let the gateway make pods now"
            await self._mirror.report_waiting(case, "ForwardingDelayed", said)
            raise errors.TooManyRequests(said, status=429, reason="TooManyRequests") from error
        await self._mirror.fail_pod(case, "ForwardingRefused", f"the compute cluster refused the pod: {said}")

    async def forward_changes(self, case: PodContext) -> None:
        """Bring labels, annotations and mutable fields down where they differ, and keep tokens fresh."""
        above, below = tenant_pod_of(case), compute_pod_of(case)
        if below.forwarded_fingerprint != above.fingerprint:
            await self._changes.forward_changes(case, self.tenant)
        else:
            above.raw = None
        if case.plan is not None and case.plan.tokens:
            await self._refresh_tokens(case)

    async def refresh_tokens(self, case: PodContext) -> None:
        """Keep the tokens of a pod that is ending fresh: its containers may need them to its last moment.

        What its tenant's API server refuses by then (the account is gone, its namespace is going) stays as it is.
        """
        above = tenant_pod_of(case)
        due = self._tokens.refresh_due_in(case.link, above.metadata)
        if due is None:
            return
        if due > 0:
            self._requeue_after(case.key, due)
            return
        try:
            case.plan = make_plan(decode(await self._mirror.read_pod(above)), tenant=self.tenant, pool=None)
            await self._refresh_tokens(case)
        except errors.ApiError as error:
            if error.is_transient:
                raise
            self._requeue_after(case.key, _REFUSED_RETRY)

    async def _refresh_tokens(self, case: PodContext) -> None:
        plan = plan_of(case)
        due = await self._tokens.ensure_secret(
            case.link, tenant_pod_of(case).metadata, plan.service_account, plan.tokens
        )
        self._requeue_after(case.key, due)

    async def delete_pod(self, case: PodContext) -> None:
        """Delete the compute pod with its own grace, unless that is under way."""
        if compute_pod_of(case).metadata.deletion_timestamp is None:
            await self._delete_pod(case, grace=self._bounded_grace(case, None))

    async def delete_like_tenant(self, case: PodContext) -> None:
        """Delete below with what is left of the tenant's grace; never by force, since only a kubelet ends a pod.

        Deletion times are told by three clocks: graces are compared, and what is left is never more than was given.
        They are told in whole seconds, rounded down: so the second that has begun counts as left.
        """
        above, below = tenant_pod_of(case).metadata, compute_pod_of(case).metadata
        given = self._bounded_grace(case, above.deletion_grace_period_seconds)
        if below.deletion_timestamp is not None:
            known = below.deletion_grace_period_seconds
            if given is None or known is None or known <= max(given, 1):
                return
        deadline = _deletion_deadline(above)
        left = given if deadline is None else math.ceil(deadline - self._clock())
        await self._delete_pod(case, grace=None if given is None or left is None else max(1, min(left, given)))

    def _bounded_grace(self, case: PodContext, grace: int | None) -> int | None:
        """A grace in seconds (None: the pod's own), no longer than whoever waits for what it borrows has to wait.

        A pod that is ending is not told to go a second time: with years to end in, it would keep what is another's.
        """
        below = compute_pod_of(case)
        metadata = below.metadata
        if metadata.annotations.get(BORROWED_ANNOTATION) != "true":
            return grace
        most = self._grace_max((case.link.name, metadata.labels.get(POOL_LABEL, "")))
        bounded = _cap_grace(below.spec.termination_grace_period_seconds if grace is None else grace, most)
        return None if bounded == below.spec.termination_grace_period_seconds and grace is None else bounded

    async def _delete_pod(self, case: PodContext, *, grace: int | None, version: str | None = None) -> bool:
        """Delete the compute pod; False where another has its name, or where it is not as in `version` any more."""
        metadata = compute_pod_of(case).metadata
        try:
            await case.link.client.delete(
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

    async def delete_stale(self, case: PodContext) -> None:
        """Delete a pod whose end concerns nobody: that of an earlier namesake, or one that was taken back.

        What was taken back is deleted only while it has no node: one that got it at the last moment may run by now, and
        stands for its pod again.
        """
        above, below = tenant_pod_of(case), compute_pod_of(case)
        if below.tenant_uid != above.metadata.uid or below.metadata.deletion_timestamp is not None:
            await self.delete_pod(case)
        elif below.spec.node_name:
            await self._patch_metadata(case, {"uid": below.metadata.uid, "annotations": {RETAKEN: None}})
            return
        elif not await self._delete_pod(case, grace=None, version=below.metadata.resource_version):
            return
        await self.remove_finalizer(case)

    async def remove_finalizer(self, case: PodContext) -> None:
        """Take our finalizer off; whatever finalizers others have put there stay."""
        below = compute_pod_of(case)
        if not below.has_finalizer:
            return
        uid = below.metadata.uid
        if self._was_released(uid):
            return
        await finalizers.remove_finalizers(case.link.client, resources.PODS, below.metadata, MIRROR_FINALIZER)
        self._released_until[uid] = self._clock() + _RELEASED_FOR

    def _was_released(self, uid: str) -> bool:
        """Whether the finalizer was taken off a moment ago; the end of a pod comes in several events."""
        now = self._clock()
        while self._released_until and next(iter(self._released_until.values())) <= now:
            del self._released_until[next(iter(self._released_until))]
        return uid in self._released_until

    async def delete_at_deadline(self, case: PodContext) -> None:
        """Delete the pod once its notice has run out, and write down why."""
        assert case.admission is not None
        admission, below = case.admission, compute_pod_of(case)
        left = (admission.deadline or 0.0) - self._clock()
        if left > 0:
            self._requeue_after(case.key, left)
            return
        await self._annotate_ending(case, {EVICTED: admission.reason_text})
        if below.metadata.deletion_timestamp is None:
            await self._delete_pod(case, grace=_cap_grace(below.spec.termination_grace_period_seconds, admission.grace))

    async def keep_logs(self, case: PodContext) -> None:
        """Keep the last lines of the logs of a pod that somebody else deletes, while it still has them."""
        await self._annotate_ending(case, {})

    async def _annotate_ending(self, case: PodContext, annotations: Mapping[str, str]) -> None:
        """Annotate a pod that the tenant did not delete, with the last lines of its logs as well; one write at most."""
        below = compute_pod_of(case)
        wanted = dict(annotations)
        if LOG_TAILS not in below.metadata.annotations and (tails := await read_tails(case.link.client, below)):
            wanted[LOG_TAILS] = encode(tails).decode()
        if wanted.items() - below.metadata.annotations.items():
            await self._patch_metadata(case, {"uid": below.metadata.uid, "annotations": wanted})

    async def revert_pod(self, case: PodContext) -> None:
        """Remove a pod that no node took: it never ran, and is placed anew; nothing of it is told above.

        Should a node take it at this very moment, that is a conflict, and it stays: see `delete_stale`.
        """
        below = compute_pod_of(case).metadata
        metadata: Object = {"uid": below.uid, "resourceVersion": below.resource_version}
        marked = await self._patch_metadata(case, {**metadata, "annotations": {RETAKEN: "true"}})
        if marked is not None:
            await self._delete_pod(case, grace=None, version=marked.resource_version)

    async def _patch_metadata(self, case: PodContext, metadata: Object) -> Meta | None:
        """Patch the compute pod's metadata, and return what it is then; None where the pod is gone."""
        below = compute_pod_of(case).metadata
        try:
            answer = await case.link.client.patch(
                resources.PODS, below.name, {"metadata": metadata}, namespace=below.namespace, metadata_only=True
            )
        except errors.NotFound:
            return None
        return decode_object(answer).metadata


def _cap_grace(grace: int | None, most: float | None) -> int | None:
    """The pod's own grace, or the most that it is given, in seconds; None: its own."""
    return grace if most is None or grace is None else min(grace, int(most))


def _deletion_deadline(metadata: Meta) -> float | None:
    return times.parse_time(metadata.deletion_timestamp).timestamp() if metadata.deletion_timestamp else None

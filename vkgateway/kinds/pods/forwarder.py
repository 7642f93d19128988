"""Forwarding of pods to a compute cluster: creation, changes, deletion and removal of the finalizer."""

from __future__ import annotations

from typing import Final

from vkgateway.api import times
from vkgateway.api.names import compute_namespace
from vkgateway.api.objects import Object
from vkgateway.kinds.configs.reconciler import CopyReconciler
from vkgateway.kinds.metadata import resources_checksum
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.pods.change_forwarder import ChangeForwarder, ReadinessForwarder
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import (
    PodContext,
    compute_pod_of,
    decode,
    make_plan,
    plan_of,
    pod_digest,
    tenant_pod_of,
)
from vkgateway.kinds.pods.policy.feature_gates import lost_fields_message
from vkgateway.kinds.pods.reporter import clean_message
from vkgateway.kinds.pods.translation.to_compute import forward_pod
from vkgateway.kinds.refusals import is_object_refused, lacks_rights
from vkgateway.kinds.services.name_service import NameService
from vkgateway.kinds.size_budget import OversizeError
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.tokens.reconciler import ServiceAccountTokens
from vkgateway.kube import errors, resources
from vkgateway.kube.client import encode
from vkgateway.runtime.requests import POD
from vkgateway.runtime.views.annotations import AMOUNTS, BEHIND, FORWARDED, GANG, REQUESTS
from vkgateway.runtime.views.ownership import owned_by
from vkgateway.runtime.views.pods import decode_compute_pod

_NAME_TAKEN_RETRY: Final = 30.0
_STALE_RETRY: Final = 1.0
_REFUSED_RETRY: Final = 60.0
_CREATED_GRACE: Final = 30.0
"""Seconds for which a pod counts as existing after its creation, although the watch has not shown it."""
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


class PodForwarder:
    """Forwarder of one tenant's pods to compute clusters."""

    def __init__(
        self,
        scope: TenantScope,
        mirror: PodMirror,
        *,
        namespaces: NamespaceReconciler,
        copies: CopyReconciler,
        tokens: ServiceAccountTokens,
        name_service: NameService,
    ) -> None:
        self._scope = scope
        self._mirror = mirror
        self._namespaces = namespaces
        self._copies = copies
        self._tokens = tokens
        self._cache = scope.cache
        self._name_service = name_service
        self._clock = scope.clock
        self._changes = ChangeForwarder(scope, mirror, copies=copies)
        self.readiness = ReadinessForwarder(scope, mirror)
        self.name_taken_until: dict[str, float] = {}
        """UIDs of tenant pods whose name is taken in the compute cluster, with the time of the next attempt."""

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
        self._copies.references.set_cluster(context.key, context.link)
        for reference in plan.references:
            await self._copies.ensure_copy(context.link, reference)
        if plan.tokens:
            await self._refresh_tokens(context)
        try:
            compute_pod = await self._translate_pod(context, pod, compute_namespace_name)
        except OversizeError as error:
            await self._mirror.failures.fail_pod(context, "ForwardingRefused", f"the pod cannot be forwarded: {error}")
            return
        try:
            lost_fields = await context.link.pods.fields_lost_on_create(compute_pod)
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
                await self._mirror.failures.fail_pod(context, "ForwardingRefused", lost_fields_message(lost_fields))
            else:
                self._record_forwarded(context)
                missing = [reference for reference in plan.optional if not self._copies.source_exists(reference)]
                await self._mirror.reporter.report_optional(context, missing)

    def _record_forwarded(self, context: PodContext) -> None:
        metadata, now = tenant_pod_of(context).metadata, self._clock.time()
        self._scope.created_until[metadata.uid] = now + _CREATED_GRACE
        created = metadata.creation_timestamp
        self._scope.meter.count_forwarded(now - times.parse_time(created).timestamp() if created else 0.0)

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
        if plan != make_plan(pod, tenant=self._scope.tenant, pool=binding.pool, state=plan.state, source=plan.source):
            raise OutdatedPlanError
        return pod

    async def _translate_pod(self, context: PodContext, pod: Object, namespace: str) -> Object:
        """Return the compute pod with its state annotations. Raises OversizeError."""
        tenant_pod, admission, binding = tenant_pod_of(context), context.admission, context.binding
        assert binding is not None
        with_services = pod["spec"].get("enableServiceLinks") is not False
        compute_pod = forward_pod(
            pod,
            tenant=await self._name_service.tenant_context_in(
                context.link, tenant_pod.metadata.namespace, with_services=with_services
            ),
            pool=binding.pool,
            namespace=namespace,
            compute_node=admission.node if admission is not None else "",
            borrowed=admission.borrowed if admission is not None else None,
            marks=admission.marks if admission is not None else None,
            namespaces=self._cache.namespace_labels,
            claims=context.claims.names,
        )
        requests = encode(plan_of(context).requests).decode()
        state_annotations = {REQUESTS: requests, AMOUNTS: resources_checksum(pod["spec"])}
        # Ephemeral containers cannot be set at creation; they are forwarded afterwards.
        if not pod["spec"].get("ephemeralContainers"):
            state_annotations[FORWARDED] = tenant_pod.fingerprint
        compute_pod["metadata"]["annotations"] |= state_annotations
        if admission is not None and admission.gang:
            compute_pod["metadata"]["annotations"][GANG] = admission.gang
        if admission is not None and admission.behind:
            compute_pod["metadata"]["annotations"][BEHIND] = admission.behind
        return compute_pod

    async def _handle_existing(self, context: PodContext, compute_pod: Object) -> None:
        metadata = compute_pod["metadata"]
        raw = await context.link.client.get(resources.PODS, metadata["name"], namespace=metadata["namespace"])
        found = decode_compute_pod(raw)
        uid = tenant_pod_of(context).metadata.uid
        if not owned_by(self._scope.name, found.metadata):
            self.name_taken_until[uid] = self._clock.time() + _NAME_TAKEN_RETRY
            await self.report_name_taken(context)
        elif found.tenant_uid == uid:
            self._scope.created_until[uid] = self._clock.time() + _CREATED_GRACE
        else:
            self._scope.work_queue.enqueue(POD, context.key, _STALE_RETRY)

    async def report_name_taken(self, context: PodContext) -> None:
        """Report that the name is taken in the compute cluster, and retry later."""
        uid = tenant_pod_of(context).metadata.uid
        self._scope.work_queue.enqueue(
            POD, context.key, max(_STALE_RETRY, self.name_taken_until.get(uid, 0.0) - self._clock.time())
        )
        message = "an object that is not this tenant's has the pod's name in the compute cluster"
        await self._mirror.reporter.report_waiting(context, "NameTaken", message)

    async def _handle_refusal(self, context: PodContext, error: errors.ApiError) -> None:
        """Handle the compute cluster's refusal of a pod; the pod fails only if a retry cannot succeed."""
        message = clean_message(
            context, error.server_message, namespace=compute_namespace(self._scope.name, context.key[0])
        )
        is_retriable = any(words in error.server_message for words in _RETRIABLE) or not is_object_refused(error)
        if "NamespaceTerminating" in error.causes or is_retriable:
            if _MISSING_ACCOUNT in error.server_message:
                self._namespaces.mark_incomplete(context.link, self._cache.namespace_uid(context.key[0]))
            if lacks_rights(error):
                message = "the compute cluster does not allow the gateway to create pods at the moment"
            await self._mirror.reporter.report_waiting(context, "ForwardingDelayed", message)
            raise errors.TooManyRequests(message, status=429, reason="TooManyRequests") from error
        await self._mirror.failures.fail_pod(
            context, "ForwardingRefused", f"the compute cluster refused the pod: {message}"
        )

    async def forward_changes(self, context: PodContext) -> None:
        """Forward labels, annotations and mutable fields if they differ, and refresh tokens."""
        tenant_pod, compute_pod = tenant_pod_of(context), compute_pod_of(context)
        if compute_pod.forwarded_fingerprint != tenant_pod.fingerprint:
            await self._changes.forward_changes(context)
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
            self._scope.work_queue.enqueue(POD, context.key, due)
            return
        try:
            context.plan = make_plan(
                decode(await self._mirror.read_pod(tenant_pod)), tenant=self._scope.tenant, pool=None
            )
            await self._refresh_tokens(context)
        except errors.ApiError as error:
            if error.is_transient:
                raise
            self._scope.work_queue.enqueue(POD, context.key, _REFUSED_RETRY)

    async def _refresh_tokens(self, context: PodContext) -> None:
        plan = plan_of(context)
        due = await self._tokens.ensure_secret(
            context.link, tenant_pod_of(context).metadata, plan.service_account, plan.tokens
        )
        self._scope.work_queue.enqueue(POD, context.key, due)

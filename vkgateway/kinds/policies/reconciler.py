"""NetworkPolicies in compute clusters: the isolation of each compute namespace, and the tenant's own policies."""

from __future__ import annotations

import asyncio
from typing import Final

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, compute_namespace
from vkgateway.api.objects import NamespaceView, Object
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.policies.translation import (
    IsolationPolicies,
    NetworkPolicyView,
    PolicyContext,
    decode_policy,
    is_tenant_policy,
    isolation_policies,
    selects_namespaces,
)
from vkgateway.kinds.refusals import is_object_refused, is_starting, lacks_rights
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.services.platform_service import Resolvers
from vkgateway.kinds.sources import (
    COMPUTE_NAMESPACES,
    COMPUTE_NETWORK_LISTED,
    COMPUTE_PLATFORM_SERVICES,
    COMPUTE_POLICIES,
    RESYNC,
    TENANT_ACTIVE,
    TENANT_NAMESPACES,
    TENANT_SERVICES_LISTED,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.requests import BATCH_SECONDS, RequestKind
from vkgateway.runtime.views.ownership import Key, owned_by

_LIST_TIMEOUT: Final = 10.0
"""Maximum seconds that a compute namespace waits for the tenant's policies."""


POLICIES: Final = RequestKind[str]("policies", BATCH_SECONDS)


class NetworkPolicyReconciler:
    """Reconciler of one tenant's NetworkPolicies in all its compute clusters.

    Policies are watched from the first compute namespace on.
    """

    def __init__(self, scope: TenantScope, resolvers: Resolvers) -> None:
        self._scope = scope
        self._resolvers = resolvers
        self._needed = asyncio.Event()
        self._known = asyncio.Event()
        self.tenant_policies: Reflector[NetworkPolicyView] = Reflector(
            scope.client,
            resources.NETWORK_POLICIES,
            decode=decode_policy,
            on_change=self._tenant_policy_changed,
            on_complete=self._list_completed,
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(POLICIES, self.reconcile)
            .runs("policies", self.run)
            .watches(TENANT_ACTIVE, self._needed.set)
            .watches(TENANT_NAMESPACES, self._namespace_changed)
            .watches(COMPUTE_NAMESPACES, self._enqueue)
            .watches(COMPUTE_POLICIES, self._enqueue)
            .watches_each(
                (TENANT_SERVICES_LISTED, COMPUTE_NETWORK_LISTED, COMPUTE_PLATFORM_SERVICES, RESYNC), self._enqueue_all
            )
        )

    async def run(self) -> None:
        """Run the watch once it is needed, until cancelled."""
        await self._needed.wait()
        await self.tenant_policies.run()

    async def wait_for_policies(self, link: ComputeLink, namespace: str, uid: str) -> list[Object]:
        """Return the policies that isolate a new compute namespace before any pod runs in it.

        Raises:
            UnavailableError: the tenant's policies are not known yet.
        """
        self._needed.set()
        try:
            async with asyncio.timeout(_LIST_TIMEOUT):
                await self._known.wait()
        except TimeoutError as error:
            raise UnavailableError(
                "the tenant's NetworkPolicies are not known yet",
                hint="no action is needed; the gateway retries automatically",
            ) from error
        return self._build_fence(link, namespace, uid).documents

    def _enqueue(self, namespace: str) -> None:
        self._scope.work_queue.enqueue(POLICIES, namespace)

    def _enqueue_all(self) -> None:
        """Request a reconcile of the policies of every namespace: another server may answer for names, for one."""
        if not self.tenant_policies.is_complete:
            return
        names = {view.metadata.namespace for view in self.tenant_policies.store.values()}
        for link in self._scope.links.values():
            names |= set(link.policies.tenant_namespaces(self._scope.name))
        for name in names:
            self._enqueue(name)

    def _namespace_changed(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        """Enqueue the policies that select namespaces by labels."""
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            return
        for namespace in {
            view.metadata.namespace for view in self.tenant_policies.store.values() if selects_namespaces(view)
        }:
            self._enqueue(namespace)

    async def reconcile(self, namespace: str) -> None:
        """Write the policies of a namespace to every trusted compute cluster.


        A refused policy is reported and blocks no other policy; without it, the pods that it selects are isolated. If a
        change is refused, the previous version is deleted, too, because it may permit what the tenant now forbids.

        Raises:
            ConflictError: an object that is not this tenant's has the name of a policy.
            ApiError: a compute cluster cannot be asked now, or refuses a policy.
        """
        tenant_namespace = self._scope.cache.find_namespace(namespace)
        if (
            tenant_namespace is None
            or tenant_namespace.metadata.deletion_timestamp is not None
            or not self.tenant_policies.is_complete
        ):
            return
        uid = tenant_namespace.metadata.uid
        skipped: dict[Key, tuple[NetworkPolicyView, str]] = {}

        async def reconcile(link: ComputeLink) -> None:
            compute_view = link.namespaces.find_namespace(self._scope.name, namespace)
            if not (link.services_trusted and link.policies.is_complete) or compute_view is None:
                return
            if compute_view.metadata.deletion_timestamp is None:
                isolation = self._build_fence(link, namespace, uid)
                await self._write_policies(link, namespace, isolation.documents)
                skipped.update({policy.metadata.key: (policy, reason) for policy, reason in isolation.skipped_rules})

        await apply_to_each(list(self._scope.links.values()), reconcile)
        for policy, reason in skipped.values():
            await self._scope.events.emit_event(
                policy.metadata, reason="PartLeftOut", message=reason, about=resources.NETWORK_POLICIES
            )

    def _build_fence(self, link: ComputeLink, namespace: str, uid: str) -> IsolationPolicies:
        policy_context = PolicyContext(
            namespaces=self._scope.cache.namespace_labels(),
            pod_ranges=link.nodes.pool_nodes({}).pod_ranges,
            resolvers=self._resolvers.resolver_endpoints(link),
            name_servers=self._resolvers.listening_range,
        )
        policies = [
            view
            for view in self.tenant_policies.store.values()
            if view.metadata.namespace == namespace and view.metadata.deletion_timestamp is None
        ]
        return isolation_policies(self._scope.tenant, namespace, uid, policies, context=policy_context)

    async def _write_policies(self, link: ComputeLink, namespace: str, wanted: list[Object]) -> None:
        namespace_name = compute_namespace(self._scope.name, namespace)
        obsolete = {view.metadata.name: view for view in link.policies.in_namespace(namespace_name)}
        first_refusal: errors.ApiError | ConflictError | None = None
        for document in wanted:
            name = document["metadata"]["name"]
            known = obsolete.pop(name, None)
            try:
                await self._write_policy(link, document, known)
            except (errors.ApiError, ConflictError) as error:
                if not is_tenant_policy(document) or _is_retriable(error):
                    raise
                if known is not None and is_object_refused(error):
                    obsolete[name] = known
                await self._report_refused(document, error, changed=known is not None)
                first_refusal = first_refusal or error
        for view in obsolete.values():
            if owned_by(self._scope.name, view.metadata):
                await _delete_policy(link, view)
        if first_refusal is not None:
            raise first_refusal

    async def _report_refused(self, document: Object, error: errors.ApiError | ConflictError, *, changed: bool) -> None:
        annotations, compute_name = document["metadata"]["annotations"], document["metadata"]["namespace"]
        namespace = annotations[NAMESPACE_ANNOTATION]
        policy = self.tenant_policies.store.get((namespace, annotations[NAME_ANNOTATION]))
        if policy is None:
            return
        if isinstance(error, ConflictError):
            reason = "NameTaken"
            message = "an object that is not this tenant's has the policy's name in the compute cluster"
        elif lacks_rights(error):
            reason = "ForwardingRefused"
            action = (
                "change it at the moment: the previous version stays in force" if changed else "create it at the moment"
            )
            message = f"the compute cluster does not allow the gateway to {action}"
        else:
            reason = "ForwardingRefused"
            message = (
                f"the compute cluster refused it: "
                f"{Sanitizer(((compute_name, namespace),)).sanitize_text(error.server_message)}"
            )
            if changed and is_object_refused(error):
                message += "; the previous version is deleted, so the pods that it selects are isolated"
        await self._scope.events.emit_event(
            policy.metadata, reason=reason, message=message, about=resources.NETWORK_POLICIES
        )

    async def _write_policy(self, link: ComputeLink, wanted: Object, known: NetworkPolicyView | None) -> None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if known is None:
            try:
                await link.client.create(resources.NETWORK_POLICIES, wanted, namespace=namespace)
                return
            except errors.AlreadyExists:
                known = decode_policy(await link.client.get(resources.NETWORK_POLICIES, name, namespace=namespace))
        if not owned_by(self._scope.name, known.metadata):
            raise ConflictError(f"networkpolicies/{name}: the name is taken in the compute cluster")
        if _without_empty(known.spec) == _without_empty(wanted["spec"]):
            return
        metadata = wanted["metadata"] | {"uid": known.metadata.uid, "resourceVersion": known.metadata.resource_version}
        document = wanted | {"metadata": metadata}
        await link.client.replace(resources.NETWORK_POLICIES, name, document, namespace=namespace)

    def _list_completed(self) -> None:
        self._known.set()
        for namespace in self._scope.cache.namespace_labels():
            self._enqueue(namespace)

    def _tenant_policy_changed(self, old: NetworkPolicyView | None, new: NetworkPolicyView | None) -> None:
        view = new or old
        assert view is not None
        if old is None or new is None or old.spec != new.spec:
            self._enqueue(view.metadata.namespace)


def _is_retriable(error: errors.ApiError | ConflictError) -> bool:
    """Return whether the same request may soon succeed without a change by a user."""
    return isinstance(error, errors.ApiError) and (error.is_transient or is_starting(error))


def _without_empty(spec: Object) -> Object:
    """Return the policy spec without empty lists, which servers omit."""
    return {key: value for key, value in spec.items() if value != []}


async def _delete_policy(link: ComputeLink, view: NetworkPolicyView) -> None:
    metadata = view.metadata
    try:
        await link.client.delete(
            resources.NETWORK_POLICIES, metadata.name, namespace=metadata.namespace, uid=metadata.uid
        )
    except (errors.NotFound, errors.Conflict):
        return

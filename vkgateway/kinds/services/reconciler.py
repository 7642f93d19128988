"""Compute Services for the tenant's Services with a cluster IP, with the tenant's own pods as endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.names import compute_namespace
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.namespaces.reconciler import NamespaceReconciler
from vkgateway.kinds.refusals import is_object_refused, lacks_rights, refusal_message
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.services.service_cidr import TenantServiceCidr
from vkgateway.kinds.services.service_writer import ServiceWriter, delete_service, find_compute_service
from vkgateway.kinds.services.tenant_services import TenantServices
from vkgateway.kinds.services.translation import ServiceView, load_balancer_patch
from vkgateway.kinds.sources import (
    COMPUTE_NAMESPACES,
    COMPUTE_NETWORK_LISTED,
    COMPUTE_SERVICES,
    RESYNC,
    TENANT_SERVICES,
    TENANT_SERVICES_LISTED,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.requests import BATCH_SECONDS, RequestKind
from vkgateway.runtime.views.ownership import Key, owned_by, source_key

log = structlog.get_logger(__name__)

_LIST_TIMEOUT: Final = 5.0
"""Maximum seconds that a pod waits for the list of the tenant's Services."""


SERVICE: Final = RequestKind[Key]("service", BATCH_SECONDS)


@dataclass(slots=True)
class _ServiceLock:
    """Lock for the reconciliation of one Service; `users` counts holder and waiters."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class ServiceReconciler:
    """Reconciler of one tenant's Services in all its compute clusters.

    For Services with a selector, the compute cluster manages the endpoints, as the selector matches pods of one compute
    namespace.
    """

    def __init__(
        self,
        scope: TenantScope,
        tenant_services: TenantServices,
        *,
        namespaces: NamespaceReconciler,
        own_range: TenantServiceCidr,
    ) -> None:
        self._scope = scope
        self._tenant_services = tenant_services
        self.slices = tenant_services.slices
        self._namespaces = namespaces
        self._writer = ServiceWriter(scope, tenant_services, own_range=own_range)
        self._locks: dict[Key, _ServiceLock] = {}
        """Services that are being reconciled."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(SERVICE, self.reconcile_listed)
            .watches(TENANT_SERVICES, self._enqueue)
            .watches(COMPUTE_SERVICES, self._enqueue)
            .watches(COMPUTE_NAMESPACES, self._enqueue_namespace)
            .watches_each((TENANT_SERVICES_LISTED, COMPUTE_NETWORK_LISTED, RESYNC), self._enqueue_all)
        )

    def _enqueue(self, key: Key) -> None:
        self._scope.work_queue.enqueue(SERVICE, key)

    def _enqueue_all(self) -> None:
        """Request a reconcile of every Service in the tenant cluster and in the compute clusters."""
        if not self._tenant_services.is_complete:
            return
        self.slices.pods_listed()
        keys = set(self._tenant_services.own_services())
        for link in self._scope.links.values():
            for view in link.services.store.values():
                if owned_by(self._scope.name, view.metadata):
                    keys.add(source_key(view.metadata))
        for key in keys:
            self._scope.watches.notify(TENANT_SERVICES, key)

    def _enqueue_namespace(self, namespace: str) -> None:
        for key in self._tenant_services.services.store:
            if key[0] == namespace:
                self._scope.watches.notify(TENANT_SERVICES, key)

    async def settle_namespace(self, namespace: str) -> None:
        """Reconcile the changed Services of a namespace, as far as possible, before a pod starts there.

        The pod's kubelet passes their addresses to the pod only at its start.
        """
        self._tenant_services.start_watching()
        if not self._tenant_services.is_listed.is_set():
            try:
                async with asyncio.timeout(_LIST_TIMEOUT):
                    await self._tenant_services.is_listed.wait()
            except TimeoutError:
                log.warning("Services are not known yet; a pod starts without them", tenant=self._scope.name)
                self._tenant_services.is_listed.set()
        for key in [key for key in (*self._tenant_services.unreconciled, *self._locks) if key[0] == namespace]:
            try:
                await self.reconcile(key)
            except (errors.ApiError, ConflictError, UnavailableError) as error:
                log.info(
                    "a pod starts before a Service is forwarded", tenant=self._scope.name, service=key, error=str(error)
                )

    async def reconcile_listed(self, key: Key) -> None:
        """Reconcile a Service once all Services and slices are known."""
        if self._tenant_services.is_complete:
            await self.reconcile(key)

    async def reconcile(self, key: Key) -> None:
        """Reconcile one Service in every trusted compute cluster.

        Raises:
            ConflictError: an object that is not this tenant's has the Service's name.
        """
        service_lock = self._locks.setdefault(key, _ServiceLock())
        service_lock.users += 1
        try:
            async with service_lock.lock:
                self._tenant_services.unreconciled.discard(key)
                await self._reconcile_all(key)
        finally:
            service_lock.users -= 1
            if not service_lock.users:
                del self._locks[key]

    async def _reconcile_all(self, key: Key) -> None:
        links = self._scope.links
        service = self._tenant_services.forwarded_service(key)
        if service is not None and (unexposed := service.unforwarded_exposure(tenant=self._scope.tenant)):
            message = f"{' and '.join(unexposed)}: not exposed by the compute cluster; the cluster IP works"
            await self._writer.report_event(service.metadata, "NotOpened", message, kind="Normal")
        trusted = [link for link in links.values() if link.services_trusted]
        addresses = (
            {link.name: self.slices.addresses_in(link) for link in trusted} if self.slices.has_slices(key) else {}
        )
        if service is not None:
            await self._publish_address(key, service, links.values())
        await apply_to_each(trusted, lambda link: self._reconcile_in(link, key, service, addresses.get(link.name, ())))
        if service is not None and addresses and len(trusted) == len(links):
            for message in self.slices.refused_addresses(key, own=frozenset().union(*addresses.values())):
                await self._writer.report_event(service.metadata, "EndpointRefused", message)

    async def _publish_address(self, key: Key, service: ServiceView, links: Iterable[ComputeLink]) -> None:
        """Write the address of a LoadBalancer to its status, according to the tenant's policy."""
        compute_services = [
            compute_service
            for link in links
            if (compute_service := find_compute_service(link, self._scope.name, key)) is not None
        ]
        patch = load_balancer_patch(
            service.spec,
            service.status,
            tenant=self._scope.tenant,
            compute_statuses=[compute_service.status for compute_service in compute_services],
        )
        if patch is None:
            return
        try:
            await self._scope.client.patch_status(resources.SERVICES, service.metadata, patch["status"])
        except (errors.NotFound, errors.Conflict):
            return

    async def _reconcile_in(
        self, link: ComputeLink, key: Key, service: ServiceView | None, addresses: Collection[str]
    ) -> None:
        compute_service = find_compute_service(link, self._scope.name, key)
        if service is None:
            if compute_service is not None:
                await delete_service(link, compute_service.metadata)
            return
        await self._namespaces.ensure_namespace(link, key[0], self._scope.cache.namespace_uid(key[0]))
        try:
            compute_service = await self._writer.write_service(link, service, compute_service)
        except errors.ApiError as error:
            if is_object_refused(error) or lacks_rights(error):
                cleaner = Sanitizer(((compute_namespace(self._scope.name, key[0]), key[0]),))
                await self._writer.report_event(service.metadata, "ForwardingRefused", refusal_message(error, cleaner))
            raise
        await self.slices.reconcile(link, compute_service.metadata, key, own=addresses)

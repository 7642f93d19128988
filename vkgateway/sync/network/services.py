"""Compute Services for the tenant's Services with a cluster IP, with the tenant's own pods as endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import CLUSTER_IP_ANNOTATION, NAMESPACE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.events import EventRecorder, Severity
from vkgateway.sync.namespaces import NamespaceReconciler
from vkgateway.sync.network.service_cidr import TenantServiceCidr, handle_refused_address
from vkgateway.sync.network.tenant_slices import TenantSlices
from vkgateway.sync.refusals import is_object_refused, lacks_rights, refusal_message
from vkgateway.sync.views.ownership import Key, owned_by, source_key
from vkgateway.translate.context import TenantContext
from vkgateway.translate.exposure import load_balancer_patch
from vkgateway.translate.sanitizer import Sanitizer
from vkgateway.translate.services import (
    API_SERVICE,
    ServiceView,
    decode_service,
    forward_service,
    is_forwarded,
    is_platform_service,
    is_service_current,
)

log = structlog.get_logger(__name__)

_KNOWN_WITHIN: Final = 5.0
"""Maximum seconds that a pod waits for the list of the tenant's Services."""


@dataclass(slots=True)
class _ServiceLock:
    """Lock for the reconciliation of one Service; `users` counts holder and waiters."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class ServiceReconciler:
    """Reconciler of one tenant's Services in all its compute clusters.

    Services are watched from the tenant's first compute namespace on (`start_watching`). For Services with a selector,
    the compute cluster manages the endpoints, as the selector matches pods of one compute namespace. `wake(key)`
    enqueues a Service; `wake_addresses()` enqueues the check of Services whose endpoint addresses were added or
    removed.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        events: EventRecorder,
        namespaces: NamespaceReconciler,
        own_range: TenantServiceCidr,
        namespace_uid: Callable[[str], str],
        wake: Callable[[Key], None],
        wake_addresses: Callable[[], None],
        on_complete: Callable[[], None],
    ) -> None:
        self._tenant = tenant
        self._client = client
        self._events = events
        self._namespaces = namespaces
        self._range = own_range
        self._namespace_uid = namespace_uid
        self._wake = wake
        self._needed = asyncio.Event()
        self._known = asyncio.Event()
        self._unreconciled: set[Key] = set()
        """Services that were added or changed since their last reconciliation."""
        self._locks: dict[Key, _ServiceLock] = {}
        """Services that are being reconciled."""
        self.tenant_services: Reflector[ServiceView] = Reflector(
            client,
            resources.SERVICES,
            decode=decode_service,
            on_change=self._service_changed,
            on_complete=lambda: self._list_completed(on_complete),
        )
        self.slices = TenantSlices(
            tenant, client, wake=self._enqueue_service, wake_addresses=wake_addresses, on_complete=on_complete
        )

    @property
    def tenant(self) -> TenantContext:
        """Tenant with its policy; may be replaced."""
        return self._tenant

    @tenant.setter
    def tenant(self, tenant: TenantContext) -> None:
        self._tenant = self.slices.tenant = self._range.tenant = tenant

    @property
    def is_complete(self) -> bool:
        """Whether all of the tenant's Services are known."""
        return self.tenant_services.is_complete and self.slices.tenant_slices.is_complete

    def start_watching(self) -> None:
        """Start watching, because the tenant has compute pods or may soon have some."""
        self._needed.set()

    async def run(self) -> None:
        """Run the watches once they are needed, until cancelled."""
        await self._needed.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.tenant_services.run(), name=f"tenant/{self.tenant.name}/watch-services")
            group.create_task(self.slices.tenant_slices.run(), name=f"tenant/{self.tenant.name}/watch-slices")

    def own_services(self) -> dict[Key, ServiceView]:
        """Return the tenant's Services except those of its API server and of the platform's name server."""
        return {key: view for key, view in self.tenant_services.store.items() if not is_platform_service(view)}

    def enqueue_all(self, links: Iterable[ComputeLink]) -> None:
        """Enqueue every Service of the tenant and compute clusters."""
        if not self.is_complete:
            return
        self.slices.pods_listed()
        keys = set(self.own_services())
        for link in links:
            for view in link.services.store.values():
                if owned_by(self.tenant.name, view.metadata):
                    keys.add(source_key(view.metadata))
        for key in keys:
            self._wake(key)

    def enqueue_namespace(self, namespace: str) -> None:
        """Enqueue the Services of a namespace."""
        for key in self.tenant_services.store:
            if key[0] == namespace:
                self._wake(key)

    def pod_changed(self, key: Key) -> None:
        """Handle a compute pod that was added, changed or deleted; addresses in the tenant's slices may be affected."""
        self.slices.pod_changed(key)

    def find_compute_service(self, link: ComputeLink, key: Key) -> ServiceView | None:
        """Return the compute Service of a tenant's Service."""
        compute_service = link.services.store.get((compute_namespace(self.tenant.name, key[0]), key[1]))
        return (
            compute_service
            if compute_service is not None and owned_by(self.tenant.name, compute_service.metadata)
            else None
        )

    async def settle_namespace(self, namespace: str, links: Mapping[str, ComputeLink]) -> None:
        """Reconcile the changed Services of a namespace, as far as possible, before a pod starts there.

        The pod's kubelet passes their addresses to the pod only at its start.
        """
        self.start_watching()
        if not self._known.is_set():
            try:
                async with asyncio.timeout(_KNOWN_WITHIN):
                    await self._known.wait()
            except TimeoutError:
                log.warning("Services are not known yet; a pod starts without them", tenant=self.tenant.name)
                self._known.set()
        for key in [key for key in (*self._unreconciled, *self._locks) if key[0] == namespace]:
            try:
                await self.reconcile(key, links)
            except (errors.ApiError, ConflictError, UnavailableError) as error:
                log.info(
                    "a pod starts before a Service is forwarded", tenant=self.tenant.name, service=key, error=str(error)
                )

    async def reconcile(self, key: Key, links: Mapping[str, ComputeLink]) -> None:
        """Reconcile one Service in every trusted compute cluster.

        Raises:
            ConflictError: an object that is not this tenant's has the Service's name.
        """
        service_lock = self._locks.setdefault(key, _ServiceLock())
        service_lock.users += 1
        try:
            async with service_lock.lock:
                self._unreconciled.discard(key)
                await self._reconcile_all(key, links)
        finally:
            service_lock.users -= 1
            if not service_lock.users:
                del self._locks[key]

    async def _reconcile_all(self, key: Key, links: Mapping[str, ComputeLink]) -> None:
        service = self._forwarded_service(key)
        if service is not None and (unexposed := service.unforwarded_exposure(tenant=self.tenant)):
            message = f"{' and '.join(unexposed)}: not exposed by the compute cluster; the cluster IP works"
            await self._report_event(service.metadata, "NotOpened", message, kind="Normal")
        trusted = [link for link in links.values() if link.services_trusted]
        addresses = (
            {link.name: self.slices.addresses_in(link) for link in trusted} if self.slices.has_slices(key) else {}
        )
        if service is not None:
            await self._publish_address(key, service, links.values())
        await apply_to_each(trusted, lambda link: self._reconcile_in(link, key, service, addresses.get(link.name, ())))
        if service is not None and addresses and len(trusted) == len(links):
            for message in self.slices.refused_addresses(key, own=frozenset().union(*addresses.values())):
                await self._report_event(service.metadata, "EndpointRefused", message)

    async def _publish_address(self, key: Key, service: ServiceView, links: Iterable[ComputeLink]) -> None:
        """Write the address of a LoadBalancer to its status, according to the tenant's policy."""
        compute_services = [
            compute_service for link in links if (compute_service := self.find_compute_service(link, key)) is not None
        ]
        patch = load_balancer_patch(
            service.spec,
            service.status,
            tenant=self.tenant,
            compute_statuses=[compute_service.status for compute_service in compute_services],
        )
        if patch is None:
            return
        namespace, name = key
        body = patch | {"metadata": {"uid": service.metadata.uid}}
        try:
            await self._client.patch(resources.SERVICES, name, body, namespace=namespace, subresource="status")
        except (errors.NotFound, errors.Conflict):
            return

    def _forwarded_service(self, key: Key) -> ServiceView | None:
        """Return the Service if it needs a compute Service; headless and ExternalName Services exist only in DNS."""
        view = self.tenant_services.store.get(key)
        if (
            view is None
            or is_platform_service(view)
            or not view.cluster_ip
            or view.metadata.deletion_timestamp is not None
        ):
            return None
        return view

    async def _reconcile_in(
        self, link: ComputeLink, key: Key, service: ServiceView | None, addresses: Collection[str]
    ) -> None:
        compute_service = self.find_compute_service(link, key)
        if service is None:
            if compute_service is not None:
                await _delete_service(link, compute_service.metadata)
            return
        await self._namespaces.ensure_namespace(link, key[0], self._namespace_uid(key[0]))
        try:
            compute_service = await self._write_service(link, service, compute_service)
        except errors.ApiError as error:
            if is_object_refused(error) or lacks_rights(error):
                cleaner = Sanitizer(((compute_namespace(self.tenant.name, key[0]), key[0]),))
                await self._report_event(service.metadata, "ForwardingRefused", refusal_message(error, cleaner))
            raise
        await self.slices.reconcile(link, compute_service.metadata, key, own=addresses)

    async def _write_service(
        self, link: ComputeLink, service: ServiceView, compute_service: ServiceView | None
    ) -> ServiceView:
        same_address = self._range.contains_address(service.cluster_ip) and await self._range.ensure_range(link)
        if compute_service is not None and same_address and _has_stale_address(service, compute_service):
            await _delete_service(link, compute_service.metadata)
            compute_service = None
        wanted = forward_service(service, tenant=self.tenant)
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if compute_service is None:
            try:
                return await self._create_service(link, service, wanted, same_address=same_address)
            except errors.AlreadyExists:
                compute_service = decode_service(await link.client.get(resources.SERVICES, name, namespace=namespace))
            if not owned_by(self.tenant.name, compute_service.metadata):
                message = "an object that is not this tenant's has the Service's name in the compute cluster"
                await self._report_event(service.metadata, "NameTaken", message)
                raise ConflictError(f"services/{name}: the name is taken in the compute cluster")
        if _is_current(service, compute_service, tenant=self.tenant):
            return compute_service
        # The cluster IP stays: servers retain the current one if none is given.
        wanted["metadata"] |= {
            "uid": compute_service.metadata.uid,
            "resourceVersion": compute_service.metadata.resource_version,
        }
        if is_forwarded(service, tenant=self.tenant):
            # Load balancer controllers store their finalizers and annotations on it.
            wanted["metadata"]["finalizers"] = list(compute_service.metadata.finalizers)
            wanted["metadata"]["annotations"] = compute_service.metadata.annotations | wanted["metadata"]["annotations"]
        return decode_service(await link.client.replace(resources.SERVICES, name, wanted, namespace=namespace))

    async def _create_service(
        self, link: ComputeLink, service: ServiceView, wanted: Object, *, same_address: bool
    ) -> ServiceView:
        namespace = wanted["metadata"]["namespace"]
        if same_address:
            addressed = wanted | {"spec": {**wanted["spec"], "clusterIP": service.cluster_ip}}
            try:
                return decode_service(await link.client.create(resources.SERVICES, addressed, namespace=namespace))
            except errors.Invalid as error:
                # The Service itself may have this address without the watch showing it, as addresses are checked before
                # names.
                handle_refused_address(link, error, self._range, service.cluster_ip)
                if self._will_release(link, service.cluster_ip):
                    raise UnavailableError(
                        "another Service of the tenant has the address and will release it",
                        hint="the gateway retries automatically",
                    ) from error
        created = decode_service(await link.client.create(resources.SERVICES, wanted, namespace=namespace))
        if same_address:
            message = (
                f"{service.cluster_ip} is in use in the compute cluster; the Service's name resolves to another address"
            )
            await self._report_event(service.metadata, "AddressTaken", message)
        return created

    def _will_release(self, link: ComputeLink, address: str) -> bool:
        """Return whether a compute Service has an address that its tenant Service no longer has."""
        for view in link.services.store.values():
            if view.cluster_ip == address and owned_by(self.tenant.name, view.metadata):
                service = self._forwarded_service(source_key(view.metadata))
                if service is None:
                    return True
                return self._range.contains_address(service.cluster_ip) and _has_stale_address(service, view)
        return False

    async def _report_event(self, metadata: Meta, reason: str, message: str, *, kind: Severity = "Warning") -> None:
        await self._events.emit_event(metadata, reason=reason, message=message, kind=kind, about="Service")

    # Watch callbacks

    def _list_completed(self, notify: Callable[[], None]) -> None:
        self._known.set()
        notify()

    def _service_changed(self, old: ServiceView | None, new: ServiceView | None) -> None:
        view = new or old
        assert view is not None
        key = view.metadata.key
        if new is not None and new.cluster_ip and not is_platform_service(new):
            self._unreconciled.add(key)
        else:
            self._unreconciled.discard(key)
        self._enqueue_service(key)

    def _enqueue_service(self, key: Key) -> None:
        if key != API_SERVICE:
            self._wake(key)


def _is_current(service: ServiceView, compute_service: ServiceView, *, tenant: TenantContext) -> bool:
    annotations = compute_service.metadata.annotations
    return (
        annotations.get(UID_ANNOTATION) == service.metadata.uid
        and annotations.get(NAMESPACE_ANNOTATION) == service.metadata.namespace
        and annotations.get(CLUSTER_IP_ANNOTATION) == service.cluster_ip
        and is_service_current(service, compute_service, tenant=tenant)
    )


def _has_stale_address(service: ServiceView, compute_service: ServiceView) -> bool:
    """Return whether the tenant Service's address has changed; the address of a compute Service is immutable."""
    known = compute_service.metadata.annotations.get(CLUSTER_IP_ANNOTATION)
    return service.cluster_ip not in (known, compute_service.cluster_ip)


async def _delete_service(link: ComputeLink, metadata: Meta) -> None:
    try:
        await link.client.delete(resources.SERVICES, metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    except (errors.NotFound, errors.Conflict):
        return

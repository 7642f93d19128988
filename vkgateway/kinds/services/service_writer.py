"""Writing of one tenant's compute Services."""

from __future__ import annotations

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.names import CLUSTER_IP_ANNOTATION, NAMESPACE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.api.objects import Meta, Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.services.service_cidr import TenantServiceCidr, handle_refused_address
from vkgateway.kinds.services.tenant_services import TenantServices
from vkgateway.kinds.services.translation import (
    ServiceView,
    decode_service,
    forward_service,
    is_forwarded,
    is_service_current,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.events import Severity
from vkgateway.runtime.views.ownership import Key, owned_by, source_key


class ServiceWriter:
    """Writer of compute Services, with the tenant's cluster IPs where its range is available."""

    def __init__(self, scope: TenantScope, tenant_services: TenantServices, *, own_range: TenantServiceCidr) -> None:
        self._scope = scope
        self._tenant_services = tenant_services
        self._range = own_range

    async def write_service(
        self, link: ComputeLink, service: ServiceView, compute_service: ServiceView | None
    ) -> ServiceView:
        """Create or update the compute Service of a tenant Service. Raises ApiError, ConflictError."""
        same_address = self._range.contains_address(service.cluster_ip) and await self._range.ensure_range(link)
        if compute_service is not None and same_address and _has_stale_address(service, compute_service):
            await delete_service(link, compute_service.metadata)
            compute_service = None
        wanted = forward_service(service, tenant=self._scope.tenant)
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if compute_service is None:
            try:
                return await self._create_service(link, service, wanted, same_address=same_address)
            except errors.AlreadyExists:
                compute_service = decode_service(await link.client.get(resources.SERVICES, name, namespace=namespace))
            if not owned_by(self._scope.name, compute_service.metadata):
                message = "an object that is not this tenant's has the Service's name in the compute cluster"
                await self.report_event(service.metadata, "NameTaken", message)
                raise ConflictError(f"services/{name}: the name is taken in the compute cluster")
        if _is_current(service, compute_service, tenant=self._scope.tenant):
            return compute_service
        # The cluster IP stays: servers retain the current one if none is given.
        wanted["metadata"] |= {
            "uid": compute_service.metadata.uid,
            "resourceVersion": compute_service.metadata.resource_version,
        }
        if is_forwarded(service, tenant=self._scope.tenant):
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
            await self.report_event(service.metadata, "AddressTaken", message)
        return created

    def _will_release(self, link: ComputeLink, address: str) -> bool:
        """Return whether a compute Service has an address that its tenant Service no longer has."""
        for view in link.services.store.values():
            if view.cluster_ip == address and owned_by(self._scope.name, view.metadata):
                service = self._tenant_services.forwarded_service(source_key(view.metadata))
                if service is None:
                    return True
                return self._range.contains_address(service.cluster_ip) and _has_stale_address(service, view)
        return False

    async def report_event(self, metadata: Meta, reason: str, message: str, *, kind: Severity = "Warning") -> None:
        """Emit an event about a tenant Service."""
        await self._scope.events.emit_event(
            metadata, reason=reason, message=message, kind=kind, about=resources.SERVICES
        )


def find_compute_service(link: ComputeLink, tenant: str, key: Key) -> ServiceView | None:
    """Return the compute Service of a tenant's Service."""
    compute_service = link.services.store.get((compute_namespace(tenant, key[0]), key[1]))
    return compute_service if compute_service is not None and owned_by(tenant, compute_service.metadata) else None


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


async def delete_service(link: ComputeLink, metadata: Meta) -> None:
    """Delete a compute Service, if it still exists."""
    try:
        await link.client.delete(resources.SERVICES, metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    except (errors.NotFound, errors.Conflict):
        return

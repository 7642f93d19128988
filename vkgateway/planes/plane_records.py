"""Records of control planes. Before each start, a record gets what the spec of its Tenant changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import structlog

from vkgateway.api.types import Tenant
from vkgateway.kube import kubeconfig
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.driver_set import DriverSet
from vkgateway.planes.plane import ControlPlaneSpec, tenant_plane_spec
from vkgateway.planes.plane_files import admin_kubeconfig
from vkgateway.planes.publication import Publication, client_ranges
from vkgateway.planes.record_store import ControlPlaneRecord, RecordStore
from vkgateway.planes.service_ranges import ServiceRanges
from vkgateway.planes.templates import Template

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformEndpoints:
    """What the control planes of all tenants reach: etcd, and the gateway's webhook.

    `webhooks_at` is HOST:PORT for API servers too old to gate pods by policy.
    """

    etcd: tuple[str, ...]
    webhooks_at: str = ""

    def plane_spec(
        self,
        tenant: Tenant,
        template: Template,
        *,
        endpoint: ServerEndpoint,
        service_cidr: str = "",
        publication: Publication | None = None,
    ) -> ControlPlaneSpec:
        """Return the spec of a tenant's control plane; its Service range is the template's unless it is given."""
        return tenant_plane_spec(
            tenant.metadata.name,
            address=endpoint.address,
            port=endpoint.port,
            etcd_endpoints=self.etcd,
            subject_alt_names=tenant.spec.api_server.subject_alt_names,
            service_cidr=service_cidr or template.service_cidr,
            kubernetes_version=tenant.spec.kubernetes_version,
            webhooks_at=self.webhooks_at,
            pod_security=tenant.spec.policy.pod_security,
            tuning=template.tuning,
            pod=template.pod,
            publication=publication,
            client_ranges=client_ranges(tenant.spec.api_server.exposure),
        )


class PlannedPlane(NamedTuple):
    """A control plane to start: its record, its spec, and the names of other drivers that may still run it."""

    record: ControlPlaneRecord
    plane: ControlPlaneSpec
    former_drivers: frozenset[str]


class PlaneRecords:
    """Creates and updates the records of control planes, one at a time.

    New tenants get their Service range from `ranges`; without it, from their template. `taken_ranges` returns the
    ranges that no tenant may get.
    """

    def __init__(
        self,
        store: RecordStore,
        *,
        drivers: DriverSet,
        endpoints: PlatformEndpoints,
        ranges: ServiceRanges | None = None,
        taken_ranges: Callable[[], Collection[str]] = tuple,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._drivers = drivers
        self._endpoints = endpoints
        self._ranges = ranges
        self._taken_ranges = taken_ranges
        self._clock = clock
        self._lock = asyncio.Lock()

    async def ensure(self, tenant: Tenant, template: Template) -> PlannedPlane:
        """Load or create the record; renew the admin certificate; apply a changed port, exposure or driver.

        If another driver may still run the control plane, the caller saves the record after the start: until then, the
        saved one must name all of them.
        """
        name = tenant.metadata.name
        wanted = self._drivers.name_for(tenant.spec.control_plane.driver)
        async with self._lock:
            kept = await self._store.load(name)
            former = self._former_drivers(kept, wanted)
            if kept and former:
                kept = await self._store.save(name, replace(kept, moving_to=wanted))
            endpoint, publication = await self._reserve_endpoint(tenant, kept, driver=wanted)
            service_range = kept.service_range if kept else await self._choose_range(name)
            service_cidr = (kept.service_cidr if kept else "") or service_range or template.service_cidr
            plane = self._endpoints.plane_spec(
                tenant, template, endpoint=endpoint, service_cidr=service_cidr, publication=publication
            )
            credentials = kept.credentials if kept else await asyncio.to_thread(Credentials.create, name)
            credentials = credentials.renew_admin(now=self._clock.now())
            record = ControlPlaneRecord(
                credentials=credentials,
                address=endpoint.address,
                port=endpoint.port,
                kubeconfig=kubeconfig.dump(admin_kubeconfig(plane, credentials=credentials)),
                objects=kept.objects if kept else "",
                service_range=service_range,
                service_cidr=service_cidr,
                replicas=template.pod.replicas,
                exposure=publication.type,
                published_url=publication.url,
                driver=wanted,
            )
            if kept == record or former:
                return PlannedPlane(record, plane, former)
            saved = await self._store.save(name, record)
        # Another replica may have saved its record first.
        plane = replace(plane, port=saved.port, service_cidr=saved.service_cidr or service_cidr)
        return PlannedPlane(saved, plane, former)

    async def _reserve_endpoint(
        self, tenant: Tenant, kept: ControlPlaneRecord | None, *, driver: str
    ) -> tuple[ServerEndpoint, Publication]:
        """Return where the API server will serve, and where clients outside the management cluster connect."""
        name = tenant.metadata.name
        same = kept if kept is not None and self._drivers.name_for(kept.driver) == driver else None
        chosen = self._drivers.named(driver)
        endpoint = await chosen.endpoints.ensure(
            name,
            requested_port=tenant.spec.api_server.port,
            recorded=ServerEndpoint(same.address, same.port) if same else None,
            assigned_ports=self._store.assigned_ports,
        )
        publication = await chosen.endpoints.publish(
            name,
            tenant.spec.api_server.exposure,
            previous=same.exposure if same else "ClusterIP",
            endpoint=endpoint,
        )
        return endpoint, publication

    def _former_drivers(self, kept: ControlPlaneRecord | None, wanted: str) -> frozenset[str]:
        """Return the drivers apart from `wanted` that may run the control plane."""
        if kept is None:
            return frozenset()
        known = {self._drivers.name_for(kept.driver), self._drivers.name_for(kept.moving_to or kept.driver)}
        return frozenset(known - {wanted})

    async def _choose_range(self, tenant: str) -> str:
        """Return a new tenant's Service range, "" if it uses its template's. API servers do not allow to change it
        later.
        """
        if self._ranges is None:
            return ""
        found = self._ranges.choose_range(
            tenant, assigned=await self._store.assigned_ranges(), taken=self._taken_ranges()
        )
        if not found:
            _log.warning("no Service range is free; the tenant uses its template's", tenant=tenant)
        return found

"""Control planes from the settings: the provisioner with its store, datastore and driver."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.names import host_in_url
from vkgateway.api.types import Tenant
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.access import ControlPlane
from vkgateway.planes.drivers.base import Driver, DriverContext, DriverListener, ServerEndpoint
from vkgateway.planes.drivers.driver_set import DriverSet, driver_factory
from vkgateway.planes.plane_records import PlatformEndpoints
from vkgateway.planes.provisioner import Provisioner, Step
from vkgateway.planes.publication import Publication
from vkgateway.planes.record_store import SecretStore
from vkgateway.planes.service_ranges import ServiceRanges
from vkgateway.planes.templates import SHIPPED_FOLDER, Templates
from vkgateway.serve.dependencies import Dependencies
from vkgateway.settings.config import Config, Services
from vkgateway.tenants.interfaces import ApiServerAccess, OnStep
from vkgateway.tenants.metrics import TRAFFIC
from vkgateway.tenants.name_servers import ForwardingNameServers

_STEP_MESSAGES: Final[dict[Step, str]] = {
    Step.TEMPLATE: "reading the template",
    Step.CREDENTIALS: "creating certificates",
    Step.DATASTORE: "preparing the tenant's key space in the datastore",
    Step.OBJECTS: "creating the template's objects",
    Step.SERVING: "waiting for the API server",
    Step.ERASING: "deleting the tenant's data",
    Step.FORGETTING: "deleting the tenant's credentials",
}


class ProvisionedControlPlanes:
    """Implementation of `interfaces.ControlPlanes` with the provisioner."""

    def __init__(
        self,
        provisioner: Provisioner,
        *,
        drivers: DriverSet,
        templates: Templates,
        connections: int,
        gate: WriteGate | None = None,
        name_servers: ForwardingNameServers | None = None,
    ) -> None:
        self.name_servers = name_servers
        self._drivers = drivers
        self._provisioner = provisioner
        self._templates = templates
        self._connections = connections
        self._gate = gate

    def template_names(self) -> Collection[str]:
        """See `interfaces.ControlPlanes`."""
        return self._templates.list_names()

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:
        """See `interfaces.ControlPlanes`."""
        plane = await self._provisioner.provision(tenant, on_step=self._with_message(on_step, tenant.metadata.name))
        return self._api_server_access(plane)

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        """See `interfaces.ControlPlanes`."""
        plane = await self._provisioner.load_existing(tenant)
        return self._api_server_access(plane) if plane is not None else None

    async def check_publication(self, tenant: Tenant, access: ApiServerAccess) -> Publication:
        """See `interfaces.ControlPlanes`."""
        return await self._provisioner.check_publication(tenant, endpoint=ServerEndpoint(access.host, access.port))

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        """See `interfaces.ControlPlanes`."""
        await self._provisioner.restore_kept_objects(
            tenant, client=access.client, endpoint=ServerEndpoint(access.host, access.port)
        )

    async def api_server_endpoints(
        self, tenant: str, cluster: ClusterIdentity, *, listening: Endpoint
    ) -> Collection[Endpoint]:
        """See `platform_service.ApiServers`."""
        found = await self._drivers.of(tenant).endpoints.reachable_from(
            tenant, cluster, endpoint=ServerEndpoint(*listening)
        )
        return [Endpoint(*endpoint) for endpoint in found]

    async def run(self, listener: DriverListener) -> None:
        """Report changes of control planes until cancelled, or return if the driver has none to report."""
        await self._drivers.run(listener)

    def _api_server_access(self, plane: ControlPlane) -> ApiServerAccess:
        client = plane.create_client(max_connections=self._connections, traffic=TRAFFIC["tenant"])
        return ApiServerAccess(
            client=client.guard_writes(self._gate),
            url=plane.url,
            host=plane.address,
            port=plane.port,
            publication=plane.publication,
            ca=plane.ca,
            service_range=plane.service_range,
            front_proxy_ca=plane.front_proxy_ca,
            kubelet_clients=plane.kubelet_clients,
        )

    async def stop(self, name: str) -> None:
        """See `interfaces.ControlPlanes`."""
        await self._drivers.stop(name)

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        """See `interfaces.ControlPlanes`."""
        await self._provisioner.deprovision(name, on_step=self._with_message(on_step, name))

    def _with_message(self, on_step: OnStep, tenant: str) -> Callable[[Step], Awaitable[None]]:
        def report(step: Step) -> Awaitable[None]:
            messages = _STEP_MESSAGES | _driver_messages(self._drivers.of(tenant))
            return on_step(step.value, messages[step])

        return report

    async def close(self) -> None:
        """Release the driver's connections."""
        await self._drivers.close()


def build_control_planes(
    settings: Config, shared: Dependencies, *, taken_ranges: Callable[[], Collection[str]]
) -> ProvisionedControlPlanes:
    """Build the provisioner with the drivers that the settings select.

    No tenant gets a Service range that overlaps one of `taken_ranges`.

    Raises InputError if a setting is missing, or if a file or driver that it names cannot be used.
    """
    templates = Templates(_expand_path(settings.control_planes.templates_dir) or SHIPPED_FOLDER)
    forwarder = settings.names.forwarder
    address = shared.address
    drivers = _build_drivers(settings, shared)
    provisioner = Provisioner(
        store=SecretStore(shared.management),
        datastore=shared.datastore,
        drivers=drivers,
        templates=templates,
        endpoints=PlatformEndpoints(
            etcd=settings.datastore.endpoints,
            webhooks_at=_webhook_address(address.advertised, address.advertised_port),
        ),
        address=(address.advertised, address.advertised_port),
        webhooks_ca=shared.authorities.kubelet.cert_pem,
        ranges=_service_ranges(settings.services),
        taken_ranges=taken_ranges,
        connect=lambda plane: plane.create_client().guard_writes(shared.gate),
    )
    servers = drivers.name_servers
    return ProvisionedControlPlanes(
        provisioner,
        drivers=drivers,
        templates=templates,
        connections=settings.sync.tenant_connections,
        gate=shared.gate,
        name_servers=ForwardingNameServers(servers, forwarder=forwarder) if servers is not None else None,
    )


def _build_drivers(settings: Config, shared: Dependencies) -> DriverSet:
    section = settings.control_planes
    context = DriverContext(
        data_dir=Path(settings.data_dir),
        address=shared.address.advertised,
        machine_address=shared.address.machine_address,
        kubelet_port=settings.kubelet.port,
        advertised_port=shared.address.advertised_port,
        authorities=shared.authorities,
        management=shared.management,
        gate=shared.gate,
        forwarder=settings.names.forwarder,
        dns_sources=settings.names.sources,
        settings=msgspec.to_builtins(section),
    )
    parameters = {**section.other_drivers, section.driver: section.parameters}
    drivers = {
        name: driver_factory(name)(replace(context, settings={**context.settings, "parameters": own}))
        for name, own in parameters.items()
    }
    return DriverSet(drivers, default=section.driver)


def _driver_messages(driver: Driver) -> dict[Step, str]:
    found = driver.step_messages
    return {Step.PROGRAMS: found.preparing, Step.PROCESSES: found.starting, Step.STOPPING: found.stopping}


def _service_ranges(settings: Services) -> ServiceRanges | None:
    return ServiceRanges.parse(settings.range, prefix=settings.tenant_prefix) if settings.range else None


def _webhook_address(address: str, port: int) -> str:
    """Return the HOST:PORT of the kubelet endpoint, which also serves webhooks; empty if its port is not fixed."""
    return f"{host_in_url(address)}:{port}" if port else ""


def _expand_path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None

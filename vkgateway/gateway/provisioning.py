"""Control planes as the settings say: the provisioner with its store, datastore, driver and programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from vkgateway.controlplane.access import ControlPlane
from vkgateway.controlplane.drivers.process import ProcessDriver
from vkgateway.controlplane.name_servers import NameServerProcesses
from vkgateway.controlplane.pki import Authority
from vkgateway.controlplane.plane_files import Authorities
from vkgateway.controlplane.provisioner import Provisioner, Step
from vkgateway.controlplane.record_store import SecretStore
from vkgateway.controlplane.service_ranges import ServiceRanges
from vkgateway.controlplane.templates import SHIPPED_FOLDER, Templates
from vkgateway.gateway.config import Config, ControlPlanes, Services
from vkgateway.gateway.datastore import LazyDatastore
from vkgateway.gateway.interfaces import ApiServerAccess, OnStep
from vkgateway.gateway.name_servers import ProcessNameServers
from vkgateway.kube.client import Client
from vkgateway.model.api import DEFAULT_KUBERNETES_VERSION, Tenant
from vkgateway.programs.binaries.resolver import Resolver
from vkgateway.programs.supervisor.client import SupervisorClient
from vkgateway.programs.supervisor.spec import SupervisorPaths

if TYPE_CHECKING:
    pass

log = structlog.get_logger(__name__)

STEP_MESSAGES: Mapping[Step, str] = {
    Step.TEMPLATE: "its template is being read",
    Step.CREDENTIALS: "its certificates are being made",
    Step.PROGRAMS: "the programs of its Kubernetes version are being fetched or built",
    Step.DATASTORE: "its part of the datastore is being prepared",
    Step.PROCESSES: "its control plane is being started",
    Step.OBJECTS: "the objects it is born with are being made",
    Step.SERVING: "its API server is starting",
    Step.STOPPING: "its control plane is being stopped",
    Step.ERASING: "its data is being erased",
    Step.FORGETTING: "its credentials are being removed",
}


class ProvisionedControlPlanes:
    """Control planes by way of the provisioner; see `planes.ControlPlanes`."""

    def __init__(
        self,
        provisioner: Provisioner,
        *,
        templates: Templates,
        connections: int,
        names: ProcessNameServers | None = None,
    ) -> None:
        self.name_servers = names
        self._provisioner = provisioner
        self._templates = templates
        self._connections = connections

    def template_names(self) -> Collection[str]:
        """See `planes.ControlPlanes`."""
        return self._templates.list_names()

    def exclude_ranges(self, taken: Callable[[], Collection[str]]) -> None:
        """Give no tenant a range of addresses that overlaps one of those that `taken` tells."""
        self._provisioner.taken_ranges = taken

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:
        """See `planes.ControlPlanes`."""
        plane = await self._provisioner.provision(tenant, on_step=lambda step: on_step(step.value, STEP_MESSAGES[step]))
        return self._api_server_access(plane)

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        """See `planes.ControlPlanes`."""
        plane = await self._provisioner.load_existing(tenant)
        return self._api_server_access(plane) if plane is not None else None

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        """See `planes.ControlPlanes`."""
        await self._provisioner.restore_kept_objects(tenant, client=access.client, port=access.port)

    def _api_server_access(self, plane: ControlPlane) -> ApiServerAccess:
        return ApiServerAccess(
            client=plane.create_client(max_connections=self._connections),
            url=plane.url,
            host=plane.address,
            port=plane.port,
            ca=plane.ca,
            service_range=plane.service_range,
            front_proxy_ca=plane.front_proxy_ca,
            kubelet_clients=plane.kubelet_clients,
        )

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        """See `planes.ControlPlanes`."""
        await self._provisioner.deprovision(name, on_step=lambda step: on_step(step.value, STEP_MESSAGES[step]))


def build_control_planes(
    settings: Config,
    *,
    management: Client,
    datastore: LazyDatastore,
    datastore_authority: Authority,
    kubelet_authority: Authority,
    address: str,
) -> ProvisionedControlPlanes:
    """Set everything up that control planes need.

    Raises InputError where a setting is missing or a file that it names cannot be used.
    """
    planes = settings.control_planes
    data_dir = Path(settings.data_dir)
    templates = Templates(_expand_path(planes.templates_dir) or SHIPPED_FOLDER)
    socket = _expand_path(planes.supervisor_socket) or SupervisorPaths(data_dir).socket_path
    supervisor, versions = SupervisorClient(socket), ProgramVersions(planes)
    driver = ProcessDriver(
        data_dir=data_dir,
        supervisor=supervisor,
        programs=versions.programs_for,
        authorities=Authorities(etcd=datastore_authority, kubelet=kubelet_authority),
    )
    provisioner = Provisioner(
        store=SecretStore(management),
        datastore=datastore,
        driver=driver,
        templates=templates,
        address=address,
        etcd_endpoints=settings.datastore.endpoints,
        webhooks_at=_webhook_address(address, settings.kubelet.port),
        endpoint=(address, settings.kubelet.port),
        webhooks_ca=kubelet_authority.cert_pem,
        ranges=_service_ranges(settings.services),
    )
    names = None
    if settings.names.forwarder:
        processes = NameServerProcesses(
            data_dir=data_dir,
            supervisor=supervisor,
            programs=versions.programs_for(DEFAULT_KUBERNETES_VERSION),
            address=address,
            forwarder=settings.names.forwarder,
            sources=settings.names.sources,
        )
        names = ProcessNameServers(
            processes, address=address, forwarder=settings.names.forwarder, other_ports=[settings.kubelet.port]
        )
    return ProvisionedControlPlanes(
        provisioner,
        templates=templates,
        connections=settings.sync.tenant_connections,
        names=names,
    )


class CachedPrograms:
    """Programs of one version. What was found once is not looked for again while it is there: that takes time."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._found: dict[str, Path] = {}

    async def resolve(self, *names: str) -> dict[str, Path]:
        """Find or build programs."""
        if not all(name in self._found and os.access(self._found[name], os.X_OK) for name in names):
            self._found |= await self._resolver.resolve(*names)
        return {name: self._found[name] for name in names}


class ProgramVersions:
    """Programs by Kubernetes version, as the settings say where they come from."""

    def __init__(self, settings: ControlPlanes) -> None:
        self._settings = settings
        self._programs: dict[str, CachedPrograms] = {}

    def programs_for(self, version: str) -> CachedPrograms:
        """Return the programs of a version. Raises InputError for one that cannot be."""
        if version not in self._programs:
            settings = self._settings
            resolver = Resolver(
                cache_dir=_expand_path(settings.cache_dir),
                program_dirs=[Path(folder).expanduser() for folder in settings.program_dirs],
                report=lambda text: log.info("programs", version=version, doing=text),
                kubernetes_version=version,
            )
            self._programs[version] = CachedPrograms(resolver)
        return self._programs[version]


def _service_ranges(settings: Services) -> ServiceRanges | None:
    return ServiceRanges.parse(settings.range, prefix=settings.tenant_prefix) if settings.range else None


def _webhook_address(address: str, port: int) -> str:
    """Where API servers find the kubelet endpoint, which answers webhooks too; nowhere where its port is not fixed."""
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{port}" if port else ""


def _expand_path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None

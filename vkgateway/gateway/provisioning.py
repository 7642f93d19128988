"""Control planes as the settings say: the provisioner with its store, datastore, driver and programs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from vkgateway.controlplane.drivers.process import ProcessDriver
from vkgateway.controlplane.layout import Authorities
from vkgateway.controlplane.names import NameProcesses
from vkgateway.controlplane.pki import Authority
from vkgateway.controlplane.provision import Provisioner, Step
from vkgateway.controlplane.serviceranges import ServiceRanges
from vkgateway.controlplane.serving import ControlPlane
from vkgateway.controlplane.store import SecretStore
from vkgateway.controlplane.templates import SHIPPED, Templates
from vkgateway.gateway.config import Config, ControlPlanes, Services
from vkgateway.gateway.datastore import LazyDatastore
from vkgateway.gateway.names import ProcessNameServers
from vkgateway.gateway.planes import Access, OnStep
from vkgateway.kube.client import Client
from vkgateway.model.api import DEFAULT_KUBERNETES_VERSION, Tenant
from vkgateway.programs.binaries.resolver import Resolver
from vkgateway.programs.supervisor.client import SupervisorClient
from vkgateway.programs.supervisor.spec import SupervisorPaths

if TYPE_CHECKING:
    pass

log = structlog.get_logger(__name__)

SENTENCES: Mapping[Step, str] = {
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


class ProvisionedPlanes:
    """Control planes by way of the provisioner; see `planes.ControlPlanes`."""

    def __init__(
        self,
        provisioner: Provisioner,
        *,
        templates: Templates,
        connections: int,
        names: ProcessNameServers | None = None,
    ) -> None:
        self.names = names
        self._provisioner = provisioner
        self._templates = templates
        self._connections = connections

    def templates(self) -> Collection[str]:
        """See `planes.ControlPlanes`."""
        return self._templates.names()

    def avoid(self, taken: Callable[[], Collection[str]]) -> None:
        """Give no tenant a range of addresses that overlaps one of those that `taken` tells."""
        self._provisioner.taken = taken

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> Access:
        """See `planes.ControlPlanes`."""
        plane = await self._provisioner.provision(tenant, on_step=lambda step: on_step(step.value, SENTENCES[step]))
        return self._access(plane)

    async def recall(self, tenant: Tenant) -> Access | None:
        """See `planes.ControlPlanes`."""
        plane = await self._provisioner.recall(tenant)
        return self._access(plane) if plane is not None else None

    async def keep(self, tenant: Tenant, access: Access) -> None:
        """See `planes.ControlPlanes`."""
        await self._provisioner.keep(tenant, client=access.client, port=access.port)

    def _access(self, plane: ControlPlane) -> Access:
        return Access(
            client=plane.client(max_connections=self._connections),
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
        await self._provisioner.deprovision(name, on_step=lambda step: on_step(step.value, SENTENCES[step]))


def provisioned(
    settings: Config,
    *,
    management: Client,
    datastore: LazyDatastore,
    datastore_authority: Authority,
    kubelet_authority: Authority,
    address: str,
) -> ProvisionedPlanes:
    """Set everything up that control planes need.

    Raises InputError where a setting is missing or a file that it names cannot be used.
    """
    planes = settings.control_planes
    data_dir = Path(settings.data_dir)
    templates = Templates(_path(planes.templates_dir) or SHIPPED)
    socket = _path(planes.supervisor_socket) or SupervisorPaths(data_dir).socket
    supervisor, versions = SupervisorClient(socket), Versions(planes)
    driver = ProcessDriver(
        data_dir=data_dir,
        supervisor=supervisor,
        programs=versions.programs,
        authorities=Authorities(etcd=datastore_authority, kubelet=kubelet_authority),
    )
    provisioner = Provisioner(
        store=SecretStore(management),
        datastore=datastore,
        driver=driver,
        templates=templates,
        address=address,
        etcd_endpoints=settings.datastore.endpoints,
        webhooks_at=_webhooks_at(address, settings.kubelet.port),
        endpoint=(address, settings.kubelet.port),
        webhooks_ca=kubelet_authority.cert_pem,
        ranges=_ranges(settings.services),
    )
    names = None
    if settings.names.forwarder:
        processes = NameProcesses(
            data_dir=data_dir,
            supervisor=supervisor,
            programs=versions.programs(DEFAULT_KUBERNETES_VERSION),
            address=address,
            forwarder=settings.names.forwarder,
            sources=settings.names.sources,
        )
        names = ProcessNameServers(
            processes, address=address, forwarder=settings.names.forwarder, other_ports=[settings.kubelet.port]
        )
    return ProvisionedPlanes(
        provisioner,
        templates=templates,
        connections=settings.sync.tenant_connections,
        names=names,
    )


class Programs:
    """Programs of one version. What was found once is not looked for again while it is there: that takes time."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._found: dict[str, Path] = {}

    async def resolve(self, *names: str) -> dict[str, Path]:
        """Find or build programs."""
        if not all(name in self._found and os.access(self._found[name], os.X_OK) for name in names):
            self._found |= await self._resolver.resolve(*names)
        return {name: self._found[name] for name in names}


class Versions:
    """Programs by Kubernetes version, as the settings say where they come from."""

    def __init__(self, settings: ControlPlanes) -> None:
        self._settings = settings
        self._programs: dict[str, Programs] = {}

    def programs(self, version: str) -> Programs:
        """Return the programs of a version. Raises InputError for one that cannot be."""
        if version not in self._programs:
            settings = self._settings
            resolver = Resolver(
                cache_dir=_path(settings.cache_dir),
                program_dirs=[Path(folder).expanduser() for folder in settings.program_dirs],
                report=lambda text: log.info("programs", version=version, doing=text),
                kubernetes_version=version,
            )
            self._programs[version] = Programs(resolver)
        return self._programs[version]


def _ranges(settings: Services) -> ServiceRanges | None:
    return ServiceRanges.parse(settings.range, prefix=settings.tenant_prefix) if settings.range else None


def _webhooks_at(address: str, port: int) -> str:
    """Where API servers find the kubelet endpoint, which answers webhooks too; nowhere where its port is not fixed."""
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{port}" if port else ""


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None

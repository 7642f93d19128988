"""A driver without ports and files of this machine: control planes as pods, reads over the network.

It proves that the protocol fits such a driver. All state is in `FakeCluster`, which outlives the driver.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import ConflictError, InputError, UnavailableError
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.planes.components import PROGRAMS, component_arguments, component_environment
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.base import (
    AssignedPorts,
    DriverContext,
    DriverListener,
    NameServers,
    ServerEndpoint,
    ServerEndpoints,
    StepMessages,
)
from vkgateway.planes.name_server_config import render_corefile, render_hosts_file
from vkgateway.planes.plane import COMPONENTS, ControlPlaneSpec
from vkgateway.planes.plane_files import COREDNS, Authorities, PlaneFiles, render_plane_files
from vkgateway.planes.publication import Publication

MOUNT = Path("/etc/kubernetes")
PORT = 6443


@dataclass(frozen=True)
class FakePod:
    """A container: its image, arguments and environment."""

    image: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class FakeCluster:
    """The cluster that runs control planes: Secrets, pods and Services by namespace and name."""

    secrets: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    pods: dict[tuple[str, str], FakePod] = field(default_factory=dict)
    services: dict[tuple[str, str], str] = field(default_factory=dict)
    waiting: dict[tuple[str, str], str] = field(default_factory=dict)
    pending_addresses: int = 0
    """How many reads of a new Service's address return none."""

    async def read_secret(self, namespace: str, name: str) -> dict[str, bytes]:
        await asyncio.sleep(0)
        return self.secrets.get((namespace, name), {})

    async def read_service(self, namespace: str, name: str) -> str:
        await asyncio.sleep(0)
        return self.services.get((namespace, name), "")

    async def ensure_service(self, namespace: str, name: str) -> str:
        if self.pending_addresses:
            self.pending_addresses -= 1
            return ""
        address = str(ipaddress.ip_address("10.96.0.10") + len(self.services))
        return self.services.setdefault((namespace, name), address)

    async def delete_namespace(self, namespace: str) -> None:
        for objects in (self.secrets, self.pods, self.services):
            for key in [key for key in objects if key[0] == namespace]:
                del objects[key]


class PodNameServers:
    """A name server per tenant and compute cluster, each a pod behind its own Service."""

    listening_range: NameServerRange | None = None

    def __init__(self, cluster: FakeCluster, *, forwarder: str) -> None:
        self._cluster = cluster
        self._forwarder = forwarder

    async def ensure_server(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[ServerEndpoint]:
        name = f"names-{cluster.name}"
        files = PlaneFiles(MOUNT, await self._cluster.read_secret(tenant, "files"))
        if not files.has_kubeconfig(COREDNS):
            raise UnavailableError(f"the name server of tenant {tenant!r} has no certificate yet")
        config = render_corefile(
            kubeconfig=files.kubeconfig_path(COREDNS),
            hosts=MOUNT / "hosts",
            address="0.0.0.0",
            port=53,
            forwarder=self._forwarder,
        )
        hosts = render_hosts_file(addresses)
        self._cluster.secrets[tenant, name] = {"Corefile": config.encode(), "hosts": hosts.encode()}
        self._cluster.pods[tenant, name] = FakePod("coredns", (f"-conf={MOUNT / 'Corefile'}",))
        return (ServerEndpoint(await self._cluster.ensure_service(tenant, name), 53),)

    async def remove_stale(self, clusters: Collection[str]) -> None:
        for tenant, name in list(self._cluster.pods):
            if name.startswith("names-") and name.removeprefix("names-") not in clusters:
                for objects in (self._cluster.pods, self._cluster.secrets, self._cluster.services):
                    objects.pop((tenant, name), None)


class PodEndpoints:
    """Endpoints of API servers in pods: the address of a Service each."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def ensure(
        self, tenant: str, *, requested_port: int, recorded: ServerEndpoint | None, assigned_ports: AssignedPorts
    ) -> ServerEndpoint:
        if requested_port not in (0, PORT):
            raise ConflictError(f"API servers in pods serve at port {PORT}, not {requested_port}")
        address = await self._cluster.ensure_service(tenant, "apiserver")
        if not address:
            raise UnavailableError(f"the Service of tenant {tenant!r} has no address yet")
        return ServerEndpoint(address, PORT)

    async def publish(
        self, tenant: str, exposure: ApiServerExposure, *, previous: ExposureType, endpoint: ServerEndpoint
    ) -> Publication:
        """Clients inside the cluster connect to the Service."""
        return Publication()

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:
        address = await self._cluster.read_service(tenant, "apiserver")
        return ServerEndpoint(address, recorded_port) if address else None

    async def reachable_from(
        self, tenant: str, cluster: ClusterIdentity, *, endpoint: ServerEndpoint
    ) -> Collection[ServerEndpoint]:
        return (endpoint,)

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:
        return (endpoint,)


class PodDriver:
    """Control planes as pods: files in a Secret, an address per tenant from its Service."""

    def __init__(
        self, cluster: FakeCluster, *, registry: str, authorities: Authorities, name_servers: NameServers | None
    ) -> None:
        self._cluster = cluster
        self._registry = registry
        self._authorities = authorities
        self._name_servers = name_servers
        self.endpoints: ServerEndpoints = PodEndpoints(cluster)
        self.is_closed = False

    @property
    def name_servers(self) -> NameServers | None:
        return self._name_servers

    step_messages = StepMessages("preparing", "starting", "stopping")

    async def prepare(self, version: str) -> None:
        """The nodes pull images when pods start."""

    async def run(self, listener: DriverListener) -> None:
        """Nothing changes by itself."""

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        tenant = plane.cluster
        plane = replace(plane, bind_address="0.0.0.0", bind_port=PORT)
        files = render_plane_files(
            plane,
            credentials=credentials,
            authorities=self._authorities,
            current=PlaneFiles(MOUNT, await self._cluster.read_secret(tenant, "files")),
            now=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        )
        self._cluster.secrets[tenant, "files"] = dict(files.contents)
        for name in COMPONENTS:
            self._cluster.pods[tenant, name] = FakePod(
                image=f"{self._registry}/{PROGRAMS[name]}:v{version}",
                arguments=tuple(component_arguments(name, plane=plane, files=files)),
                environment=component_environment(name, plane=plane, files=files),
            )
        return files.kubelet_clients()

    async def start_clients(self, plane: ControlPlaneSpec, *, version: str) -> None:
        """They start with the API server."""

    async def kubelet_clients(self, tenant: str) -> frozenset[str]:
        return PlaneFiles(MOUNT, await self._cluster.read_secret(tenant, "files")).kubelet_clients()

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        return self._cluster.waiting.get((plane.cluster, "apiserver"), "")

    async def stop(self, tenant: str) -> None:
        for key in [key for key in self._cluster.pods if key[0] == tenant]:
            del self._cluster.pods[key]

    async def remove(self, tenant: str) -> None:
        await self._cluster.delete_namespace(tenant)

    async def close(self) -> None:
        self.is_closed = True


def create_driver(cluster: FakeCluster, context: DriverContext) -> PodDriver:
    """Create the driver; `parameters.registry` is where its images are."""
    parameters = context.settings.get("parameters", {})
    if not isinstance(parameters, Mapping) or "registry" not in parameters:
        raise InputError("controlPlanes.parameters: driver 'pods' needs the parameter 'registry'")
    return PodDriver(
        cluster,
        registry=parameters["registry"],
        authorities=context.authorities,
        name_servers=PodNameServers(cluster, forwarder=context.forwarder) if context.forwarder else None,
    )

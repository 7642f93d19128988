"""Control planes as pods of the management cluster, one namespace per tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import structlog

from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.drivers.base import (
    AssignedPorts,
    DriverContext,
    DriverListener,
    NameServers,
    ServerEndpoint,
)
from vkgateway.controlplane.drivers.kubernetes import objects
from vkgateway.controlplane.drivers.kubernetes.addresses import ServerAddresses
from vkgateway.controlplane.drivers.kubernetes.cluster import (
    read_endpoint,
    read_failure,
    read_namespace,
    read_secret,
    service_endpoint,
)
from vkgateway.controlplane.drivers.kubernetes.name_servers import PodNameServers
from vkgateway.controlplane.drivers.kubernetes.names import API_SERVER, FILES, MOUNT, PORT
from vkgateway.controlplane.drivers.kubernetes.parameters import Parameters, parse_parameters
from vkgateway.controlplane.drivers.kubernetes.pull_secrets import copy_pull_secrets
from vkgateway.controlplane.plane import ControlPlaneSpec
from vkgateway.controlplane.plane_files import Authorities, PlaneFiles, render_plane_files
from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import NAMESPACES
from vkgateway.model.clusters import ClusterIdentity
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import CONTROL_PLANE_LABEL

_log = structlog.get_logger(__name__)

_ANONYMOUS_PATHS_SINCE: Final = 32
"""First minor release that admits anonymous requests to single paths by default (KEP-4633, beta in 1.32)."""
_REMOVAL_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.2


def create_driver(context: DriverContext) -> KubernetesDriver:
    """Create the driver, with name servers if the settings name a forwarder.

    Raises:
        InputError: a parameter is unknown or invalid.
    """
    parameters = parse_parameters(context.settings.get("parameters"))
    changes = Changes()
    addresses = ServerAddresses(context.management, on_change=changes.addresses_changed)
    servers = None
    if context.forwarder:
        servers = PodNameServers(
            context.management,
            addresses,
            parameters=parameters,
            forwarder=context.forwarder,
            sources=context.dns_sources,
        )
    return KubernetesDriver(
        context.management,
        parameters=parameters,
        authorities=context.authorities,
        addresses=addresses,
        changes=changes,
        gateway=ServerEndpoint(context.address, context.kubelet_port),
        name_servers=servers,
    )


class Changes:
    """Passes changes on to the listener, which exists only while the driver runs."""

    listener: DriverListener | None = None

    def addresses_changed(self, tenant: str) -> None:
        """See `DriverListener`."""
        if self.listener is not None:
            self.listener.addresses_changed(tenant)


class KubernetesDriver:
    """Runs each tenant's control plane as a Deployment in its namespace.

    All state is in the management cluster. Server-side apply with one field manager makes each call repeatable. API
    servers call the kubelet endpoint at `gateway`.
    """

    def __init__(
        self,
        client: Client,
        *,
        parameters: Parameters,
        authorities: Authorities,
        addresses: ServerAddresses,
        changes: Changes,
        gateway: ServerEndpoint,
        name_servers: NameServers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._parameters = parameters
        self._authorities = authorities
        self._addresses = addresses
        self._changes = changes
        self._gateway = gateway
        self._name_servers = name_servers
        self._clock = clock

    @property
    def name_servers(self) -> NameServers | None:
        """See `Driver`."""
        return self._name_servers

    async def prepare(self, version: str) -> None:
        """Do nothing: the nodes pull images when pods start."""

    async def ensure_endpoint(
        self,
        tenant: str,
        *,
        requested_port: int,
        recorded: ServerEndpoint | None,
        assigned_ports: AssignedPorts,  # noqa: ARG002 - each tenant has an address, so ports cannot conflict
    ) -> ServerEndpoint:
        """See `Driver`: the address of the tenant's Service, and the requested port or 6443."""
        port = requested_port or (recorded.port if recorded is not None else PORT)
        namespace = await self._ensure_namespace(tenant)
        service = objects.api_server_service(tenant, namespace=namespace, port=port)
        (stored,) = await apply_objects(self._client, [service])
        endpoint = service_endpoint(stored)
        if endpoint is None:
            raise UnavailableError(f"Service {namespace}/{API_SERVER} has no address yet")
        return endpoint

    async def find_endpoint(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:  # noqa: ARG002 - the Service has the port
        """See `Driver`."""
        return await read_endpoint(self._client, API_SERVER, namespace=self._namespace(tenant))

    async def api_server_endpoints(
        self,
        tenant: str,
        cluster: ClusterIdentity,
        *,
        endpoint: ServerEndpoint,  # noqa: ARG002 - the address of the Service, which an EndpointSlice must not contain
    ) -> Collection[ServerEndpoint]:
        """See `Driver`: the addresses of the ready pods."""
        return await self._addresses.endpoints_for(cluster, namespace=self._namespace(tenant), service=API_SERVER)

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        """Apply the files and the Deployment. A change of what a component reads only at start replaces the pod."""
        plane = replace(
            plane,
            bind_address="0.0.0.0",  # noqa: S104 - the address of the pod, which is not known in advance
            bind_port=PORT,
            local_url=f"https://127.0.0.1:{PORT}",
            etcd_endpoints=self._parameters.etcd_endpoints or plane.etcd_endpoints,
            has_anonymous_health=plane.minor_version >= _ANONYMOUS_PATHS_SINCE,
            has_client_health=True,
        )
        files = await asyncio.to_thread(
            render_plane_files,
            plane,
            credentials=credentials,
            authorities=self._authorities,
            current=await self._read_files(plane.cluster),
            now=self._clock.now(),
        )
        namespace = self._namespace(plane.cluster)
        documents = objects.control_plane_objects(
            plane, files=files, version=version, parameters=self._parameters, namespace=namespace, gateway=self._gateway
        )
        await copy_pull_secrets(self._client, self._parameters.image_pull_secrets, tenant=plane.cluster, to=namespace)
        await apply_objects(self._client, documents)
        return files.kubelet_clients()

    async def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Read the fingerprints from the certificates in the Secret."""
        files = await self._read_files(tenant)
        return files.kubelet_clients()

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        """Report why the pods are rejected, not scheduled, without an image or crashing."""
        namespace = self._namespace(plane.cluster)
        reason = await read_failure(self._client, namespace=namespace)
        return f"{namespace}: {reason}" if reason else ""

    async def remove(self, tenant: str) -> None:
        """Delete the tenant's namespace, and wait until it does not exist: then none of its pods writes to etcd.

        Raises:
            UnavailableError: the namespace still exists after a minute.
        """
        name = self._namespace(tenant)
        started = self._clock.monotonic()
        while (found := await read_namespace(self._client, name)) is not None:
            if found.labels.get(CONTROL_PLANE_LABEL) != tenant:
                _log.warning("namespace belongs to no control plane and is not deleted", namespace=name)
                return
            if not found.deletion_timestamp:
                await self._delete_namespace(name, uid=found.uid)
            if self._clock.monotonic() - started >= _REMOVAL_SECONDS:
                raise UnavailableError(f"namespace {name} is still being deleted after {_REMOVAL_SECONDS:.0f} s")
            await self._clock.sleep(_POLL_SECONDS)

    async def run(self, listener: DriverListener) -> None:
        """Watch the pods of all control planes."""
        self._changes.listener = listener
        await self._addresses.run()

    async def close(self) -> None:
        """Do nothing: the gateway closes the client."""

    def _namespace(self, tenant: str) -> str:
        return f"{self._parameters.namespace_prefix}{tenant}"

    async def _ensure_namespace(self, tenant: str) -> str:
        """Create the tenant's namespace, or check that the existing one is the tenant's, and return its name."""
        name = self._namespace(tenant)
        found = await read_namespace(self._client, name)
        if found is not None and found.deletion_timestamp:
            raise UnavailableError(f"namespace {name} is being deleted")
        if found is not None and found.labels.get(CONTROL_PLANE_LABEL) != tenant:
            raise ConflictError(
                f"namespace {name} exists and is not the one of tenant {tenant!r}",
                hint="Delete the namespace, or change controlPlanes.parameters.namespacePrefix.",
            )
        await apply_objects(self._client, [objects.namespace(tenant, name=name)])
        return name

    async def _delete_namespace(self, name: str, *, uid: str) -> None:
        try:
            await self._client.delete(NAMESPACES, name, uid=uid)
        except (errors.NotFound, errors.Conflict):
            return  # it was deleted, perhaps created again: the next read shows it

    async def _read_files(self, tenant: str) -> PlaneFiles:
        return PlaneFiles(MOUNT, await read_secret(self._client, FILES, namespace=self._namespace(tenant)))

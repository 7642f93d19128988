"""Control planes as pods of the management cluster, one namespace per tenant."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

import structlog

from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.drivers.base import (
    DriverContext,
    DriverListener,
    NameServers,
    ServerEndpoint,
    ServerEndpoints,
    StepMessages,
)
from vkgateway.planes.drivers.kubernetes import objects
from vkgateway.planes.drivers.kubernetes.addresses import ServerAddresses
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.planes.drivers.kubernetes.changes import Changes
from vkgateway.planes.drivers.kubernetes.cluster import read_failure, read_secret
from vkgateway.planes.drivers.kubernetes.endpoints import PodEndpoints
from vkgateway.planes.drivers.kubernetes.mounted_files import MountedFiles
from vkgateway.planes.drivers.kubernetes.name_servers import PodNameServers
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, FILES, MOUNT, PORT, pod_selector
from vkgateway.planes.drivers.kubernetes.namespaces import ControlPlaneNamespaces
from vkgateway.planes.drivers.kubernetes.parameters import Parameters, parse_parameters
from vkgateway.planes.drivers.kubernetes.pull_secrets import pull_secret_copies
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.plane_files import Authorities, PlaneFiles, render_plane_files

_log = structlog.get_logger(__name__)

_ANONYMOUS_PATHS_SINCE: Final = 32
"""First minor release that admits anonymous requests to single paths by default (KEP-4633, beta in 1.32)."""


def create_driver(context: DriverContext) -> KubernetesDriver:
    """Create the driver, with name servers if the settings name a forwarder.

    Raises:
        InputError: a parameter is unknown or invalid.
    """
    parameters = parse_parameters(context.settings.get("parameters"))
    changes = Changes()
    addresses = ServerAddresses(context.management, on_change=changes.addresses_changed)
    applied = AppliedObjects(context.management, on_change=changes.object_changed)
    servers = None
    if context.forwarder:
        servers = PodNameServers(
            context.management,
            addresses,
            applied,
            parameters=parameters,
            forwarder=context.forwarder,
            sources=context.dns_sources,
        )
    return KubernetesDriver(
        context.management,
        parameters=parameters,
        authorities=context.authorities,
        addresses=addresses,
        applied=applied,
        changes=changes,
        gateway=ServerEndpoint(context.address, context.kubelet_port),
        name_servers=servers,
    )


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
        applied: AppliedObjects,
        changes: Changes,
        gateway: ServerEndpoint,
        name_servers: NameServers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._parameters = parameters
        self._authorities = authorities
        self._addresses = addresses
        self._objects = applied
        self._mounted = MountedFiles(client)
        self._namespaces = ControlPlaneNamespaces(client, applied, prefix=parameters.namespace_prefix, clock=clock)
        self._changes = changes
        self._gateway = gateway
        self.endpoints: ServerEndpoints = PodEndpoints(
            client, addresses=addresses, applied=applied, namespaces=self._namespaces, changes=changes
        )
        self._name_servers = name_servers
        self._clock = clock

    @property
    def name_servers(self) -> NameServers | None:
        """See `Driver`."""
        return self._name_servers

    step_messages = StepMessages(
        preparing="leaving the images of the components to the nodes",
        starting="creating the objects of the control plane",
        stopping="deleting the namespace of the control plane",
    )

    async def prepare(self, version: str) -> None:
        """Do nothing: the nodes pull images when pods start."""

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
        namespace = self._namespaces.name_for(plane.cluster)
        documents = objects.control_plane_objects(
            plane, files=files, version=version, parameters=self._parameters, namespace=namespace, gateway=self._gateway
        )
        names = self._parameters.image_pull_secrets
        copies = await pull_secret_copies(self._client, names, tenant=plane.cluster, to=namespace)
        await self._objects.apply([*copies, *documents])
        # A new address of the API server is published at once, so its certificate must be there soon.
        selector = pod_selector(plane.cluster, CONTROL_PLANE)
        await self._mounted.deliver(files.contents, namespace=namespace, component=CONTROL_PLANE, labels=selector)
        return files.kubelet_clients()

    async def start_clients(self, plane: ControlPlaneSpec, *, version: str) -> None:
        """Do nothing: they are containers of the API server's pod."""

    async def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Read the fingerprints from the certificates in the Secret."""
        files = await self._read_files(tenant)
        return files.kubelet_clients()

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        """Report why the pods are rejected, not scheduled, without an image or crashing."""
        namespace = self._namespaces.name_for(plane.cluster)
        reason = await read_failure(self._client, namespace=namespace)
        return f"{namespace}: {reason}" if reason else ""

    async def stop(self, tenant: str) -> None:
        """See `ControlPlaneNamespaces.stop`: the namespace and its Services stay."""
        self._mounted.forget(namespace=self._namespaces.name_for(tenant), component=CONTROL_PLANE)
        await self._namespaces.stop(tenant)

    async def remove(self, tenant: str) -> None:
        """See `ControlPlaneNamespaces.remove`: pods that do not exist cannot write to etcd."""
        self._mounted.forget(namespace=self._namespaces.name_for(tenant), component=CONTROL_PLANE)
        await self._namespaces.remove(tenant)

    async def run(self, listener: DriverListener) -> None:
        """Watch the pods of all control planes, and all objects that the driver applies."""
        self._changes.listener = listener
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._addresses.run(), name="control-planes/addresses")
                group.create_task(self._objects.run(), name="control-planes/objects")
        finally:
            self._changes.stop()

    async def close(self) -> None:
        """Do nothing: the gateway closes the client."""

    async def _read_files(self, tenant: str) -> PlaneFiles:
        return PlaneFiles(MOUNT, await read_secret(self._client, FILES, namespace=self._namespaces.name_for(tenant)))

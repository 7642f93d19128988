"""Control planes as pods of the management cluster, one namespace per tenant."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import structlog

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.kube import errors
from vkgateway.kube.apply import Document
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import SECRETS
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
from vkgateway.planes.drivers.kubernetes import objects
from vkgateway.planes.drivers.kubernetes.addresses import ServerAddresses
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.planes.drivers.kubernetes.cluster import read_endpoint, read_failure, read_secret
from vkgateway.planes.drivers.kubernetes.mounted_files import MountedFiles
from vkgateway.planes.drivers.kubernetes.name_servers import PodNameServers
from vkgateway.planes.drivers.kubernetes.names import (
    API_SERVER,
    CONTROL_PLANE,
    FILES,
    MOUNT,
    PORT,
    component_labels,
    pod_selector,
)
from vkgateway.planes.drivers.kubernetes.namespaces import ControlPlaneNamespaces
from vkgateway.planes.drivers.kubernetes.parameters import Parameters, parse_parameters
from vkgateway.planes.drivers.kubernetes.publisher import Publisher
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.plane_files import Authorities, PlaneFiles, render_plane_files
from vkgateway.planes.publication import Publication

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


class _Credentials(msgspec.Struct):
    type: str = "Opaque"
    data: dict[str, str] = {}


_decode_credentials: Final = msgspec.json.Decoder(_Credentials).decode


async def pull_secret_copies(client: Client, names: Sequence[str], *, tenant: str, to: str) -> list[Document]:
    """Return copies of Secrets with registry credentials for the namespace of a tenant's control plane.

    Raises:
        UnavailableError: a Secret does not exist.
    """
    labels = component_labels(tenant, CONTROL_PLANE)
    return [await _copy(client, name, labels=labels, namespace=to) for name in names]


async def _copy(client: Client, name: str, *, labels: dict[str, str], namespace: str) -> Document:
    try:
        found = _decode_credentials(await client.get(SECRETS, name, namespace=SYSTEM_NAMESPACE))
    except errors.NotFound as error:
        raise UnavailableError(
            f"Secret {SYSTEM_NAMESPACE}/{name} of controlPlanes.parameters.imagePullSecrets does not exist",
            hint=f"Create it: kubectl create secret docker-registry {name} -n {SYSTEM_NAMESPACE} ...",
        ) from error
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "type": found.type,
        "data": found.data,
    }


class PodEndpoints:
    """Each API server has the address of a Service, which stays the same; implements `ServerEndpoints`."""

    def __init__(
        self,
        client: Client,
        *,
        addresses: ServerAddresses,
        applied: AppliedObjects,
        namespaces: ControlPlaneNamespaces,
        changes: Changes,
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._objects = applied
        self._namespaces = namespaces
        self._changes = changes
        self._publisher = Publisher(client, applied)
        self._published: dict[str, Publication] = {}

    async def ensure(
        self,
        tenant: str,
        *,
        requested_port: int,
        recorded: ServerEndpoint | None,
        assigned_ports: AssignedPorts,  # noqa: ARG002 - each tenant has an address, so ports cannot conflict
    ) -> ServerEndpoint:
        """See `ServerEndpoints`: the address of the tenant's Service, and the requested port or 6443."""
        port = requested_port or (recorded.port if recorded is not None else PORT)
        namespace = await self._namespaces.ensure(tenant)
        service = objects.api_server_service(tenant, namespace=namespace, port=port)
        endpoint = await self.find(tenant, recorded_port=port)
        if endpoint is None and recorded is not None and recorded.address:
            await self._restore_address(service, recorded.address)
        await self._objects.apply([service])
        if endpoint is None or endpoint.port != port:
            endpoint = await self.find(tenant, recorded_port=port)
        if endpoint is None:
            raise UnavailableError(f"Service {namespace}/{API_SERVER} has no address yet")
        return endpoint

    async def publish(
        self, tenant: str, exposure: ApiServerExposure, *, previous: ExposureType, endpoint: ServerEndpoint
    ) -> Publication:
        """See `ServerEndpoints` and `Publisher`."""
        found = await self._publisher.publish(
            tenant, exposure, previous=previous, namespace=self._namespaces.name_for(tenant), port=endpoint.port
        )
        if self._published.get(tenant) != found:  # other clusters reach the servers elsewhere
            self._published[tenant] = found
            self._changes.addresses_changed(tenant)
        return found

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:  # noqa: ARG002 - the Service has the port
        return await read_endpoint(self._client, API_SERVER, namespace=self._namespaces.name_for(tenant))

    async def reachable_from(
        self,
        tenant: str,
        cluster: ClusterIdentity,
        *,
        endpoint: ServerEndpoint,  # noqa: ARG002 - the address of the Service, which an EndpointSlice must not contain
    ) -> Collection[ServerEndpoint]:
        """See `ServerEndpoints`: the addresses of the ready pods, or for other clusters those of the exposure."""
        namespace = self._namespaces.name_for(tenant)
        if await self._addresses.is_management(cluster):
            return await self._addresses.endpoints_for(cluster, namespace=namespace, service=API_SERVER)
        return await self._publisher.outside_endpoints(tenant, cluster, namespace=namespace)

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:
        """See `ServerEndpoints`: the ready pods, or the Service while none is known."""
        ready = self._addresses.ready_endpoints(namespace=self._namespaces.name_for(tenant), service=API_SERVER)
        return ready or (endpoint,)

    async def _restore_address(self, service: objects.Document, address: str) -> None:
        """Create a Service that was deleted at its former address, which certificates and kubeconfigs contain."""
        addressed = service | {"spec": {**service["spec"], "clusterIP": address}}
        try:
            await self._objects.apply([addressed])
        except errors.Invalid as error:
            namespace = service["metadata"]["namespace"]
            _log.warning("the API server gets another address", namespace=namespace, former=address, why=error.message)


class Changes:
    """Passes changes on to the listener; none while there is no listener."""

    def __init__(self) -> None:
        self.listener: DriverListener | None = None
        self._repairs = RepairThrottle()

    def addresses_changed(self, tenant: str) -> None:
        if self.listener is not None:
            self.listener.addresses_changed(tenant)

    def object_changed(self, tenant: str, component: str, subject: str) -> None:
        """Report that another client changed or deleted an object `subject` of a control plane or of a name server."""
        if self.listener is None:
            return
        repair = self._repair_control_plane if component == CONTROL_PLANE else self.addresses_changed
        self._repairs.request(subject, lambda: repair(tenant))

    def stop(self) -> None:
        """Pass nothing on from now on."""
        self.listener = None
        self._repairs.close()

    def _repair_control_plane(self, tenant: str) -> None:
        if self.listener is not None:
            self.listener.control_plane_changed(tenant)


_QUIET_SECONDS = 120.0
"""Time without a change after which the next repair is not delayed."""


class RepairThrottle:
    """Calls `repair` for each subject that needs it: at once, and after repeated changes with increasing delays."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(base=2.0, cap=60.0)
        self._repairs: dict[str, tuple[int, float]] = {}
        """Number of repairs in a row, and the time of the last one in seconds of the event loop's clock."""
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    def request(self, subject: str, repair: Callable[[], None]) -> None:
        """Call `repair` now or later; requests for a subject that waits for its repair are covered by that."""
        if subject in self._waiting:
            return
        loop = asyncio.get_running_loop()
        count, last = self._repairs.get(subject, (0, 0.0))
        if not count or loop.time() - last >= _QUIET_SECONDS:
            self._run(subject, repair, count=1)
            return
        due = max(loop.time(), last + self._backoff.delay_after(count))
        self._waiting[subject] = loop.call_at(due, lambda: self._run(subject, repair, count=count + 1))

    def close(self) -> None:
        """Drop the repairs that wait."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _run(self, subject: str, repair: Callable[[], None], *, count: int) -> None:
        self._waiting.pop(subject, None)
        now = asyncio.get_running_loop().time()
        self._repairs = {key: one for key, one in self._repairs.items() if now - one[1] < _QUIET_SECONDS}
        self._repairs[subject] = count, now
        repair()

"""The interface between the gateway and a driver of control planes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.types import ApiServerExposure, ExposureType
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.kube.client import Client
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.plane_files import Authorities
from vkgateway.planes.publication import Publication

AssignedPorts = Callable[[], Awaitable[Mapping[int, str]]]
"""Read the recorded ports of all API servers, each with its tenant."""


class ServerEndpoint(NamedTuple):
    """IP address and port at which the gateway and the compute pods reach a server."""

    address: str
    port: int


class NameServers(Protocol):
    """Name servers of tenants, one per tenant and compute cluster. Every call may be repeated."""

    @property
    def listening_range(self) -> NameServerRange | None:
        """Address and ports that the name servers of all tenants share; None if they share no address.

        Egress rules of tenants exclude this range. A driver that returns None must itself keep the pods of one tenant
        away from the name servers of the others.
        """

    async def ensure_server(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[ServerEndpoint]:
        """Start or update the name server of a tenant for one compute cluster; return where its pods reach it.

        `addresses` maps names of Services to their addresses in that cluster. The endpoints are addresses of servers,
        not of Services: kube-proxy does not translate an address twice.

        Raises:
            NotPublishedError: that cluster cannot reach the name server.
            UnavailableError: the name server does not answer yet.
        """

    async def remove_stale(self, clusters: Collection[str]) -> None:
        """Remove the name servers of all compute clusters that are not in `clusters`."""


class DriverListener(Protocol):
    """What a driver reports while it runs, and asks. Each call returns at once."""

    def addresses_changed(self, tenant: str) -> None:
        """Report that servers of a tenant may have other addresses, or that a name server must be ensured again."""

    def control_plane_changed(self, tenant: str) -> None:
        """Report that another client changed or deleted a part of a control plane, which must be started again."""

    def owns_address(self, tenant: str, address: str) -> bool:
        """Return whether a running pod of a tenant has an IP address."""

    def is_of_other_tenant(self, tenant: str, address: str) -> bool:
        """Return whether a running pod of another tenant has an IP address."""


class StepMessages(NamedTuple):
    """What a driver does in its steps, as users read it in the status of a Tenant."""

    preparing: str
    starting: str
    stopping: str


class ServerEndpoints(Protocol):
    """Where the gateway, compute pods and users reach the API servers of tenants. Every call may be repeated."""

    async def ensure(
        self, tenant: str, *, requested_port: int, recorded: ServerEndpoint | None, assigned_ports: AssignedPorts
    ) -> ServerEndpoint:
        """Return where the tenant's API server will serve, and reserve that if it is new.

        `requested_port` is the port in the Tenant's spec, 0 for any. `recorded` is the result of the last call, None
        for a new tenant. Its address is empty if an older gateway recorded it. Certificates and kubeconfigs contain
        the address, so a driver should keep it. The caller holds a lock and calls again later, so a driver raises
        instead of waiting.

        Raises:
            ConflictError: the requested port is in use.
            UnavailableError: no address or port is available yet.
        """

    async def publish(
        self, tenant: str, exposure: ApiServerExposure, *, previous: ExposureType, endpoint: ServerEndpoint
    ) -> Publication:
        """Expose the API server that serves at `endpoint`; return where clients connect, or why they cannot yet.

        `previous` is the type of the last call. The gateway calls it again until the API server is published, and every
        minute after that.

        Raises:
            InputError: the driver has no such exposure.
        """

    async def find(self, tenant: str, *, recorded_port: int) -> ServerEndpoint | None:
        """Return where the tenant's API server serves, without a change; None if nothing is reserved."""

    async def reachable_from(
        self, tenant: str, cluster: ClusterIdentity, *, endpoint: ServerEndpoint
    ) -> Collection[ServerEndpoint]:
        """Return where pods of a compute cluster reach the tenant's API server; none while no replica is ready.

        `endpoint` is where the gateway reaches it. The result has addresses of servers, not of Services.

        Raises:
            NotPublishedError: that cluster cannot reach the API server.
            UnavailableError: the addresses are not known yet.
        """

    async def running(self, tenant: str, *, endpoint: ServerEndpoint) -> Collection[ServerEndpoint]:
        """Return where each replica of the tenant's API server answers, which clients reach at `endpoint`."""


class Driver(Protocol):
    """Runs the control planes of tenants. Every call may be repeated and changes nothing the second time.

    The provisioner calls `prepare`, `ServerEndpoints.ensure`, `start` and `start_clients` for a tenant in turn, and
    `remove` at its end. Calls for different tenants run concurrently. After a restart of the gateway,
    `ServerEndpoints.find` and `kubelet_clients` report what runs. So a driver keeps no state that it cannot read back.
    """

    @property
    def endpoints(self) -> ServerEndpoints:
        """Where the API servers of this driver are reached."""

    @property
    def name_servers(self) -> NameServers | None:
        """Name servers of tenants; None if the settings name no forwarder, or the driver runs none."""

    @property
    def step_messages(self) -> StepMessages:
        """Sentences for `prepare`, `start` and `remove`."""

    async def prepare(self, version: str) -> None:
        """Fetch what a Kubernetes version needs; the first call may take minutes."""

    async def start(self, plane: ControlPlaneSpec, *, credentials: Credentials, version: str) -> frozenset[str]:
        """Start or update the API server as `plane` describes, and return before it serves.

        Return the fingerprints (SHA-256, hexadecimal) of the client certificates that the API server presents to
        kubelets. During a renewal these are the old and the new one.

        Raises:
            ConflictError: another program uses the API server's port.
            InputError: the driver cannot run this version.
        """

    async def start_clients(self, plane: ControlPlaneSpec, *, version: str) -> None:
        """Start or update controller-manager and scheduler, unless `start` did; the API server is ready.

        A client that starts earlier competes with the API server for cores, and backs off until the API server answers.
        """

    async def kubelet_clients(self, tenant: str) -> frozenset[str]:
        """Return the fingerprints of the last `start`; an empty set if the tenant was never started."""

    async def failure_reason(self, plane: ControlPlaneSpec) -> str:
        """Return one sentence on why a component does not run; empty if all run or are starting."""

    async def stop(self, tenant: str) -> None:
        """Stop the tenant's components and name servers until the next `start`, and return when all have ended.

        The addresses and ports of `endpoints` stay reserved, so that kubeconfigs are valid after the next `start`.

        Raises:
            UnavailableError: some components still run.
        """

    async def remove(self, tenant: str) -> None:
        """Stop the tenant's components and name servers, and delete everything that the driver made for them."""

    async def run(self, listener: DriverListener) -> None:
        """Report changes until cancelled; return at once if none can happen without the gateway."""

    async def close(self) -> None:
        """Release connections when the gateway stops; control planes keep running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverContext:
    """What the gateway offers every driver. A driver ignores what it does not need."""

    data_dir: Path
    """Directory for files that can be rebuilt."""
    address: str
    """IP address at which API servers and pods reach the gateway, such as that of a Service."""
    kubelet_port: int
    """Port on which the kubelet endpoint listens; 0 if it changes at each start."""
    advertised_port: int = 0
    """Port at `address` on which API servers reach the kubelet endpoint; 0 if it changes at each start."""
    authorities: Authorities
    management: Client
    """Client of the management cluster; the gateway closes it."""
    machine_address: str = ""
    """IP address of this machine at which programs can listen; empty: `address`."""
    gate: WriteGate | None = None
    """Permits changes of control planes; `management` checks it itself. None: always."""
    forwarder: str = ""
    """ADDRESS:PORT of the resolver that name servers forward to; empty if tenants have no name servers."""
    dns_sources: tuple[str, ...] = ()
    """Address ranges that name servers answer; empty for all."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """The section `controlPlanes` of the settings, by key. `parameters` in it belongs to the driver alone."""


DriverFactory = Callable[[DriverContext], Driver]
"""Create a driver. Raises InputError if a setting is wrong."""

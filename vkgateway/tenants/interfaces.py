"""Interfaces through which the tenant controller uses control planes and tenant runtimes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.types import Tenant, TenantPoolStatus
from vkgateway.clusters.status import Verdict
from vkgateway.kinds.services.platform_service import Endpoint
from vkgateway.kube.client import Client
from vkgateway.planes.drivers.base import DriverListener
from vkgateway.planes.publication import Publication

OnStep = Callable[[str, str], Awaitable[None]]
"""Called at each step with a CamelCase reason and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerAccess:
    """Access to a tenant's API server, with a client that has admin rights."""

    client: Client
    url: str
    host: str
    port: int
    ca: bytes = b""
    service_range: str = ""
    """CIDR of the tenant's ClusterIPs, if no other tenant uses it."""
    front_proxy_ca: bytes = b""
    """CA (PEM) of the certificate with which the API server authenticates to aggregated APIs."""
    publication: Publication = field(default_factory=Publication)
    """Where clients outside the management cluster connect."""
    kubelet_clients: frozenset[str] = frozenset()
    """Fingerprints of the client certificates that may call the kubelet endpoint; empty: any with the tenant's name."""

    @property
    def shown_url(self) -> str:
        """URL for users."""
        return self.publication.url or self.url

    def is_same_server(self, other: ApiServerAccess) -> bool:
        """Return whether both have the same servers and CA, so that the clients are interchangeable."""
        is_single = self.client.single_server
        return (self.url, self.ca, is_single) == (other.url, other.ca, other.client.single_server)


class ControlPlanes(Protocol):
    """Provisioning of tenants' control planes; all calls are idempotent."""

    def template_names(self) -> Collection[str]:
        """Return the names of the available templates."""

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        """Return access to the control plane as last provisioned, without a probe; None if it was never finished."""

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:
        """Create or update the control plane to match the tenant's spec, and wait until it serves."""

    async def api_server_endpoints(
        self, tenant: str, cluster: ClusterIdentity, *, listening: Endpoint
    ) -> Collection[Endpoint]:
        """Return where pods of a compute cluster reach the API server; see `platform_service.ApiServers`."""

    async def run(self, listener: DriverListener) -> None:
        """Report changes of control planes by other clients until cancelled; return at once if none can happen."""

    async def check_publication(self, tenant: Tenant, access: ApiServerAccess) -> Publication:
        """Return where clients outside the management cluster connect now."""

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        """Revert changes that the tenant's admins made to the template's kept objects."""

    async def stop(self, name: str) -> None:
        """Stop the control plane, and keep its data, credentials and addresses; `ensure` starts it again."""

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        """Delete the control plane and its data."""


@dataclass(frozen=True, slots=True)
class VirtualNodesState:
    """State of a tenant's virtual nodes."""

    verdict: Verdict
    pools: tuple[TenantPoolStatus, ...] = ()


class TenantRunner(Protocol):
    """Runtimes of tenants: virtual nodes, reconcilers, and access to the kubelet endpoint."""

    async def ensure_running(self, tenant: Tenant, access: ApiServerAccess) -> VirtualNodesState:
        """Start or update the tenant's runtime to match its spec."""

    async def stop(self, name: str) -> None:
        """Stop a tenant's runtime without deleting anything."""

"""What the tenants' controller needs of control planes and of the work for one tenant, as interfaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from vkgateway.gateway.status import Verdict
from vkgateway.kube.client import Client
from vkgateway.model.api import Tenant, TenantPoolStatus

OnStep = Callable[[str, str], Awaitable[None]]
"""Hears of each step: a reason in CamelCase and a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerAccess:
    """A tenant's API server as the gateway reaches it: the client has an admin's rights."""

    client: Client
    url: str
    host: str
    port: int
    ca: bytes = b""
    service_range: str = ""
    """The range of its Services' addresses, if no other tenant has it."""
    front_proxy_ca: bytes = b""
    """The authority (PEM) of the certificate by which it proves itself to aggregated APIs."""
    kubelet_clients: frozenset[str] = frozenset()
    """Fingerprints of the certificates by which it may call the kubelet endpoint; without any, by every one of its
    name.
    """

    def is_same_server(self, other: ApiServerAccess) -> bool:
        """Whether both lead to the same server under the same authority, so that either client will do."""
        return (self.url, self.ca) == (other.url, other.ca)


class ControlPlanes(Protocol):
    """Makes and removes tenants' control planes; every call may be repeated."""

    def template_names(self) -> Collection[str]:
        """Names of the templates there are."""

    async def load_existing(self, tenant: Tenant) -> ApiServerAccess | None:
        """Say how the control plane was last made, without a look at it; None where it was never finished."""

    async def ensure(self, tenant: Tenant, *, on_step: OnStep) -> ApiServerAccess:
        """Make the control plane as the tenant's spec says, and wait until it serves."""

    async def restore_kept_objects(self, tenant: Tenant, access: ApiServerAccess) -> None:
        """Undo what the tenant's admins did to objects that are kept as its template says."""

    async def remove(self, name: str, *, on_step: OnStep) -> None:
        """Remove all that the control plane had; nothing happens where nothing is left."""


@dataclass(frozen=True, slots=True)
class VirtualNodesState:
    """How a tenant's virtual nodes are."""

    verdict: Verdict
    pools: tuple[TenantPoolStatus, ...] = ()


class TenantRunner(Protocol):
    """The work for tenants: virtual nodes, reconcilers, the right to call the kubelet endpoint."""

    async def ensure_running(self, tenant: Tenant, access: ApiServerAccess) -> VirtualNodesState:
        """Have the work done as the tenant's spec says now; started or changed where it must be."""

    async def stop(self, name: str) -> None:
        """End the work for a tenant; nothing is removed by that."""

"""Registry of running tenants, from which the kubelet endpoint finds pods, nodes and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vkgateway.api.errors import NotFoundError
from vkgateway.kube.client import Client
from vkgateway.nodes.target import PlacedPod, PodTarget
from vkgateway.tenants.controller import TenantController

if TYPE_CHECKING:
    from vkgateway.tenants.runtime import TenantRuntime
    from vkgateway.tenants.standby_tenants import StandbyTenant


class RunningTenants:
    """Runtimes by tenant, and views of tenants while this replica stands by.

    Lookups of a tenant with neither raise NotFoundError. A new leader uses a view until the runtime has listed the
    pods.
    """

    def __init__(self) -> None:
        self._runtimes: dict[str, TenantRuntime] = {}
        self.standbys: dict[str, StandbyTenant] = {}
        """Views by tenant; `StandbyTenants` maintains them."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._runtimes)

    def add(self, runtime: TenantRuntime) -> None:
        """Register a started runtime."""
        self._runtimes[runtime.name] = runtime

    def get(self, tenant: str) -> TenantRuntime | None:
        """Return the runtime of a tenant; None if it does not run."""
        return self._runtimes.get(tenant)

    def is_served(self, tenant: str) -> bool:
        """Return whether the runtime of a tenant answers requests: it has listed the pods."""
        runtime = self._runtimes.get(tenant)
        return runtime is not None and runtime.pods.is_complete

    def pop(self, tenant: str) -> TenantRuntime | None:
        """Remove and return the runtime of a tenant; None if it does not run."""
        return self._runtimes.pop(tenant, None)

    async def list_pods(self, tenant: str, node: str, phase: str) -> list[bytes]:
        """Return a tenant's pods on its virtual nodes; see `target.PodLister`."""
        return await self._require_tenant(tenant).pods.list_pods(node, phase)

    def find_pod(self, tenant: str, namespace: str, pod: str) -> PodTarget:
        """Return the target for requests to a tenant pod."""
        return self._require_tenant(tenant).pods.find_pod(namespace, pod)

    def placed_on_node(self, tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        """Return where a virtual node's pods run; see `target.PlacementLister`."""
        return self._require_tenant(tenant).pods.placed_on_node(node)

    def node_labels(self, tenant: str) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of a tenant's virtual nodes; see `target.VirtualNodeLister`."""
        return self._require_tenant(tenant).node_labels()

    def client_of(self, tenant: str) -> Client:
        """Return the client of a tenant's API server."""
        return self._require_tenant(tenant).client

    def _require_tenant(self, tenant: str) -> TenantRuntime | StandbyTenant:
        view = None if self.is_served(tenant) else self.standbys.get(tenant)
        found = view or self._runtimes.get(tenant)
        if found is None:
            raise NotFoundError(f"tenant {tenant} is not running now")
        return found


class ControlPlaneChanges:
    """Implementation of `drivers.base.DriverListener`."""

    def __init__(self, running: RunningTenants, controller: TenantController) -> None:
        self._running = running
        self._controller = controller

    def addresses_changed(self, tenant: str) -> None:
        """See `DriverListener`; a tenant that does not run yet reads the addresses when it starts."""
        if (runtime := self._running.get(tenant)) is not None:
            runtime.servers_changed()

    def control_plane_changed(self, tenant: str) -> None:
        """See `DriverListener`."""
        self._controller.repair_control_plane(tenant)

    def owns_address(self, tenant: str, address: str) -> bool:
        """See `DriverListener`; the pods of a tenant that does not run yet are not known."""
        runtime = self._running.get(tenant)
        return runtime is not None and runtime.pods.owns_address(address)

    def is_of_other_tenant(self, tenant: str, address: str) -> bool:
        """See `DriverListener`; the pods of a tenant that does not run yet are not known."""
        return any(self.owns_address(other, address) for other in self._running if other != tenant)

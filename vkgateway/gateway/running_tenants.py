"""Registry of running tenants, from which the kubelet endpoint finds pods, nodes and clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from vkgateway.kube.client import Client
from vkgateway.kubelet.target import PlacedPod, PodTarget
from vkgateway.model.errors import NotFoundError

if TYPE_CHECKING:
    from vkgateway.gateway.tenant_runtime import TenantRuntime


class RunningTenants:
    """Runtimes by tenant. Lookups of a tenant without a runtime raise NotFoundError."""

    def __init__(self) -> None:
        self._runtimes: dict[str, TenantRuntime] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._runtimes)

    def add(self, runtime: TenantRuntime) -> None:
        """Register a started runtime."""
        self._runtimes[runtime.name] = runtime

    def get(self, tenant: str) -> TenantRuntime | None:
        """Return the runtime of a tenant; None if it does not run."""
        return self._runtimes.get(tenant)

    def pop(self, tenant: str) -> TenantRuntime | None:
        """Remove and return the runtime of a tenant; None if it does not run."""
        return self._runtimes.pop(tenant, None)

    async def list_pods(self, tenant: str, node: str, phase: str) -> list[bytes]:
        """Return a tenant's pods on its virtual nodes; see `kubelet.target.Pods`."""
        return await self._require_runtime(tenant).pods.list_pods(node, phase)

    def find_pod(self, tenant: str, namespace: str, pod: str) -> PodTarget:
        """Return the target for requests to a tenant pod."""
        return self._require_runtime(tenant).pods.find_pod(namespace, pod)

    def placed_on_node(self, tenant: str, node: str) -> tuple[str, list[PlacedPod]]:
        """Return where a virtual node's pods run; see `kubelet.target.Placements`."""
        return self._require_runtime(tenant).pods.placed_on_node(node)

    def node_labels(self, tenant: str) -> Mapping[str, Mapping[str, str]]:
        """Return the labels of a tenant's virtual nodes; see `kubelet.target.VirtualNodes`."""
        return self._require_runtime(tenant).node_labels()

    def client_of(self, tenant: str) -> Client:
        """Return the client of a tenant's API server."""
        return self._require_runtime(tenant).client

    def _require_runtime(self, tenant: str) -> TenantRuntime:
        runtime = self._runtimes.get(tenant)
        if runtime is None:
            raise NotFoundError(f"tenant {tenant} is not running now")
        return runtime

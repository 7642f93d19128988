"""Sizes of the machines behind one tenant's virtual nodes, and the admission policy that gates pods by size."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from vkgateway.api.objects import Object
from vkgateway.api.requests import MilliResources, pod_requests
from vkgateway.clusters.cluster_watches import NODES
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.node_sizes import PoolNodeSizes, SizeVerdict, judge_size, size_gate_policy
from vkgateway.kinds.sources import Source
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.resources import Resource
from vkgateway.scheduler.governed import reachable_nodes
from vkgateway.scheduler.service.virtual_nodes import shown_nodes

log = structlog.get_logger(__name__)

_GROUP: Final = "apis/admissionregistration.k8s.io"
_POLICIES: Final = tuple(
    Resource(f"{_GROUP}/{version}", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False)
    for version in ("v1", "v1beta1")
)
_DEVICE_POLICY: Final = "vkgateway-admission"
"""Policy that gates pods with devices and gangs. A tenant without it wants no gates, or has no such policies."""
_RETRY_SECONDS: Final = 30.0
"""Seconds after which a failed write of the policy is retried."""
_GATHER: Final = 0.2
"""Seconds within which changes of nodes are gathered."""


NODE_SIZES: Final = Source[()]("node sizes")
"""The sizes of the compute nodes behind the virtual nodes changed."""


class SizePolicy:
    """The admission policy by size of one tenant. Notifies `NODE_SIZES` when the sizes of nodes change."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._client = scope.client
        self._bindings = scope.bindings
        self._virtual_nodes = scope.virtual_nodes
        self._links: list[ComputeLink] = []
        self._wakeup = asyncio.Event()
        self._machines_by_node: dict[str, PoolNodeSizes] = {}
        self._version = ""
        """API version of admission policies; empty if unknown, or if the tenant has none."""
        self._written: list[Object] | None = None

    def judge_pod(self, pod: Object) -> SizeVerdict | None:
        """Return where a pod may run by its size; None while the machines of a node that it can reach are unknown."""
        reach = reachable_nodes(pod, shown_nodes(self._bindings, self._virtual_nodes))
        if not self._machines_by_node.keys() >= set(reach):
            return None
        return judge_size(pod_requests(pod), [self._machines_by_node[name] for name in reach])

    def pools_changed(self) -> None:
        """Watch the nodes of the compute clusters that the tenant uses now."""
        links = list({id(binding.link): binding.link for binding in self._bindings.values()}.values())
        for link in self._links:
            if link not in links:
                link.watches.remove(NODES, self._wakeup.set)
        for link in links:
            if link not in self._links:
                link.watches.add(NODES, self._wakeup.set)
        self._links = links
        self._wakeup.set()

    async def run(self) -> None:
        """Keep the policy by size current until cancelled."""
        try:
            while True:
                await self._wakeup.wait()
                await asyncio.sleep(_GATHER)
                self._wakeup.clear()
                await self._refresh_policy()
        finally:
            for link in self._links:
                link.watches.remove(NODES, self._wakeup.set)

    async def _refresh_policy(self) -> None:
        now = {name: pool for name in self._bindings if (pool := self._machines_behind(name)) is not None}
        if now != self._machines_by_node:
            self._machines_by_node = now
            self._scope.watches.notify(NODE_SIZES)
        try:
            await self._write_policy()
        except errors.ApiError as error:
            log.warning("policy by size not written", tenant=self._tenant, error=str(error))
            asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._wakeup.set)

    async def _write_policy(self) -> None:
        self._version = self._version or await self._api_version()
        if not self._version:
            return
        wanted = size_gate_policy(self._divisible_pools(), api_version=self._version)
        if wanted != self._written:
            await apply_objects(self._client, wanted)
            self._written = wanted

    def _divisible_pools(self) -> list[tuple[MilliResources, ...]]:
        """Return the machine sizes of each pool with several machines: only there, the sum exceeds one machine."""
        return [
            self._machines_by_node[name].usable_sizes
            for name in sorted(self._machines_by_node)
            if self._machines_by_node[name].has_several
        ]

    async def _api_version(self) -> str:
        """Return the version in which the tenant has admission policies; empty if it does not have the gateway's."""
        for resource in _POLICIES:
            try:
                await self._client.get(resource, _DEVICE_POLICY)
            except errors.NotFound:
                continue
            return resource.api_version
        return ""

    def _machines_behind(self, node: str) -> PoolNodeSizes | None:
        binding = self._bindings[node]
        if not binding.link.nodes.is_complete:
            return None
        found = binding.link.nodes.nodes_behind(binding.pool)
        return PoolNodeSizes(
            virtual_node=node,
            usable_sizes=found.usable_sizes,
            all_sizes=found.largest_sizes,
            has_several=found.has_several_usable,
        )

"""The sizes of the machines behind one tenant's virtual nodes: its admission policy by size, and who waits by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource
from vkgateway.model.objects import Object
from vkgateway.model.requests import Milli, pod_requests
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.pods.case import Binding
from vkgateway.translate.governed import VirtualNode, reachable
from vkgateway.translate.machines import Judgement, PoolMachines, gate_policy, judge

log = structlog.get_logger(__name__)

_GROUP: Final = "apis/admissionregistration.k8s.io"
_POLICIES: Final = tuple(
    Resource(f"{_GROUP}/{version}", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False)
    for version in ("v1", "v1beta1")
)
_BORN_WITH: Final = "vkgateway-admission"
"""The policy that gates pods of devices and gangs. Without it the tenant wants no gates, or has no such policies."""
_AGAIN: Final = 30.0
"""Seconds after which the policy is written again where that failed."""
_GATHER: Final = 0.2
"""Seconds within which changes of nodes are gathered."""


class Machines:
    """One tenant's. `changed` is called when the machines are others than before."""

    def __init__(
        self,
        tenant: str,
        client: Client,
        *,
        bindings: Mapping[str, Binding],
        nodes: Mapping[str, VirtualNode],
        changed: Callable[[], None],
    ) -> None:
        self._tenant = tenant
        self._client = client
        self._bindings = bindings
        self._nodes = nodes
        self._changed = changed
        self._links: list[ComputeLink] = []
        self._news = asyncio.Event()
        self._known: dict[str, PoolMachines] = {}
        self._version = ""
        """The API version of admission policies; empty: not known, or the tenant has none."""
        self._written: list[Object] | None = None

    def judge(self, pod: Object) -> Judgement | None:
        """Judge where a pod may go by its size; None while the machines of a node that it can reach are unknown."""
        labels = {name: binding.pool.virtual_labels() for name, binding in self._bindings.items()}
        shown = {name: self._nodes.get(name, ({}, ())) for name in labels}
        reach = reachable(pod, {name: ({**shown[name][0], **labels[name]}, shown[name][1]) for name in labels})
        if not self._known.keys() >= set(reach):
            return None
        return judge(pod_requests(pod), [self._known[name] for name in reach])

    def rebound(self) -> None:
        """Follow the nodes of the compute clusters that the tenant uses now."""
        links = list({id(binding.link): binding.link for binding in self._bindings.values()}.values())
        for link in self._links:
            if link not in links:
                link.on_nodes_changed.remove(self._news.set)
        for link in links:
            if link not in self._links:
                link.on_nodes_changed.append(self._news.set)
        self._links = links
        self._news.set()

    async def run(self) -> None:
        """Keep the policy by size up to date until cancelled."""
        try:
            while True:
                await self._news.wait()
                await asyncio.sleep(_GATHER)
                self._news.clear()
                await self._refresh()
        finally:
            for link in self._links:
                link.on_nodes_changed.remove(self._news.set)

    async def _refresh(self) -> None:
        now = {name: pool for name in self._bindings if (pool := self._machines(name)) is not None}
        if now != self._known:
            self._known = now
            self._changed()
        try:
            await self._write()
        except errors.ApiError as error:
            log.warning("the policy by size is not written", tenant=self._tenant, error=str(error))
            asyncio.get_running_loop().call_later(_AGAIN, self._news.set)

    async def _write(self) -> None:
        self._version = self._version or await self._api_version()
        if not self._version:
            return
        wanted = gate_policy(self._several(), api_version=self._version)
        if wanted != self._written:
            await apply_objects(self._client, wanted)
            self._written = wanted

    def _several(self) -> list[tuple[Milli, ...]]:
        """Return the machines of each pool that has more than one: only there a sum is more than a machine."""
        return [self._known[name].usable for name in sorted(self._known) if self._known[name].several]

    async def _api_version(self) -> str:
        """Return the version in which the tenant has admission policies; empty: it has not ours."""
        for resource in _POLICIES:
            try:
                await self._client.get(resource, _BORN_WITH)
            except errors.NotFound:
                continue
            return resource.api_version
        return ""

    def _machines(self, node: str) -> PoolMachines | None:
        binding = self._bindings[node]
        if not binding.link.nodes.complete:
            return None
        found = binding.link.nodes.behind(binding.pool)
        several = sum(each.usable for each in found.nodes) > 1
        return PoolMachines(node=node, usable=found.usable_machines, all=found.machines, several=several)

"""Parts of the bundle of a tenant's cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from vkgateway.api.objects import Object
from vkgateway.cli import tenant_pods
from vkgateway.cli.pending_gangs import PendingGang
from vkgateway.cli.plugin.bundle import objects
from vkgateway.cli.plugin.bundle.parts import Content, Gathering, Part, as_json, newest_events
from vkgateway.cli.plugin.tenant_quota import node_usages
from vkgateway.cli.plugin.tenant_reads import PodList, list_nodes
from vkgateway.kube.resources import EVENTS, NODES
from vkgateway.scheduler.governed import is_governed

_COMPONENT = "vkgateway"


def tenant_parts(gathering: Gathering, pods: PodList | None) -> Sequence[Part]:
    """Return the parts. `pods` are those that the user may list, or None."""
    reads = _TenantReads(gathering, pods)
    where = "all namespaces" if pods is None or pods.namespace is None else f"namespace {pods.namespace}"
    return (
        gathering.caller_part(),
        gathering.status_part(),
        gathering.objects_part("nodes.json", "virtual nodes", NODES, objects.redact_node),
        Part(file="quota.json", content="capacity and usage by virtual node", read=reads.read_quota),
        Part(file="gangs.json", content=f"pending gangs in {where}", read=reads.read_gangs),
        Part(file="pods.json", content=f"governed pods in {where}", read=reads.read_pods),
        Part(file="events.json", content=f"events in {where}: newest last", read=reads.read_events),
        gathering.webhooks_part(),
    )


class _TenantReads:
    def __init__(self, gathering: Gathering, pods: PodList | None) -> None:
        self._gathering = gathering
        self._pods = pods
        self._namespace = pods.namespace if pods is not None else gathering.connection.namespace

    async def read_quota(self) -> Content:
        nodes, _ = await list_nodes(self._gathering.connection)
        return as_json(msgspec.to_builtins(node_usages(nodes, await self._list_pods())))

    async def read_pods(self) -> Content:
        governed = [pod for pod in await self._list_pods() if is_governed(pod)]
        return as_json([objects.redact_pod(pod, self._gathering.filter) for pod in governed])

    async def read_gangs(self) -> Content:
        client = self._gathering.connection.client
        found = await tenant_pods.read_pending_gangs(client, self._namespace)
        return as_json([msgspec.to_builtins(self._filtered(gang)) for gang in found])

    async def read_events(self) -> Content:
        governed = {pod["metadata"]["name"] for pod in (self._pods.pods if self._pods else ()) if is_governed(pod)}
        found = await self._gathering.list_redacted(
            EVENTS,
            objects.redact_event,
            namespace=self._namespace,
            chosen=lambda event: _is_relevant(event, governed),
        )
        return as_json(newest_events(found))

    async def _list_pods(self) -> list[Object]:
        """Return the pods that were listed, or raise why they cannot be."""
        if self._pods is not None:
            return self._pods.pods
        return await tenant_pods.list_pods(self._gathering.connection.client, self._namespace)

    def _filtered(self, gang: PendingGang) -> PendingGang:
        return msgspec.structs.replace(gang, message=self._gathering.filter(gang.code, gang.message))


def _is_relevant(event: Mapping[str, Any], governed: set[str]) -> bool:
    """Return whether an event is about a governed pod or a node, or one of vkgateway's own."""
    about = event.get("involvedObject") or {}
    source = (event.get("source") or {}).get("component") or event.get("reportingComponent")
    return source == _COMPONENT or about.get("kind") == "Node" or about.get("name") in governed

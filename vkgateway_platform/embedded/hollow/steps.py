"""Steps of `up` for the hollow nodes: applied, removed beyond the requested size of a pool, and simulated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from vkgateway.api.names import FIELD_MANAGER
from vkgateway.api.objects import NodeView, is_condition_true
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded.hollow import kwok
from vkgateway_platform.embedded.hollow.kubelet import process as hollow_kubelet
from vkgateway_platform.embedded.hollow.nodes import MANAGED_ANNOTATION, POOL_LABEL, hollow_nodes
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.processes import wait_until_serving
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.steps import Step

_CONCURRENT_NODES = 8


class HollowNodeSteps:
    """Steps of `up` for the hollow nodes, KWOK and the hollow kubelet."""

    def __init__(self, paths: PlatformPaths, *, record: PlatformRecord, supervisor: SupervisorClient) -> None:
        self._paths = paths
        self._counts = record.hollow_nodes
        self._version = record.kubernetes_version
        self._port = record.ports["hollow-kubelet"]
        self._supervisor = supervisor

    def build_steps(self, *, kwok_program: Path, api: Client) -> list[Step]:
        """Return the steps; they depend on a step named `apiserver`."""
        start = partial(self._start_nodes, kwok_program, api)
        return [Step(name="hollow", title="hollow nodes", needs=("apiserver",), run=start)]

    async def _start_nodes(self, kwok_program: Path, api: Client) -> str:
        nodes = list(hollow_nodes(self._counts, version=self._version))
        await self._apply_all(nodes, kwok_program, api)
        surplus = await remove_surplus(api, self._counts)
        await wait_until_serving(lambda: nodes_ready(api, len(nodes)), process=kwok.NAME, client=self._supervisor)
        await wait_until_serving(
            lambda: hollow_kubelet.is_listening(self._port), process=hollow_kubelet.NAME, client=self._supervisor
        )
        removed = f", {', '.join(surplus)} removed" if surplus else ""
        return f"{len(nodes)} in {', '.join(self._counts)}{removed}"

    async def _apply_all(self, nodes: list[dict[str, Any]], kwok_program: Path, api: Client) -> None:
        """Apply the nodes while their simulators start."""
        bounded = asyncio.Semaphore(_CONCURRENT_NODES)

        async def apply(node: dict[str, Any]) -> None:
            async with bounded:
                await apply_node(api, node)

        kwok_spec = kwok.prepare_process(self._paths, port=self._port, program=kwok_program)
        kubelet_spec = hollow_kubelet.process_spec(self._paths, port=self._port)
        async with asyncio.TaskGroup() as group:
            for node in nodes:
                group.create_task(apply(node))
            for spec in (kwok_spec, kubelet_spec):
                group.create_task(self._supervisor.ensure_process(spec))


async def apply_node(api: Client, node: dict[str, Any]) -> None:
    """Apply a node, and its capacity in the status subresource."""
    name = node["metadata"]["name"]
    bare = {key: value for key, value in node.items() if key != "status"}
    await api.patch(NODES, name, bare, kind="apply", field_manager=FIELD_MANAGER)
    head = {key: node[key] for key in ("apiVersion", "kind")} | {"metadata": {"name": name}}
    status = {**head, "status": node["status"]}
    await api.patch(NODES, name, status, kind="apply", subresource="status", field_manager=FIELD_MANAGER)


async def nodes_ready(client: Client, count: int) -> bool:
    """Return whether `count` hollow nodes are Ready; false if the API server does not answer."""
    try:
        page = await client.list_all(NODES)
    except errors.ApiError:
        return False
    views = [msgspec.json.decode(item, type=NodeView) for item in page.items]
    return sum(1 for view in views if _is_ready(view)) >= count


def _is_ready(view: NodeView) -> bool:
    key, value = MANAGED_ANNOTATION
    is_hollow = view.metadata.annotations.get(key) == value
    return is_hollow and is_condition_true(view.status.conditions, "Ready")


async def remove_surplus(client: Client, counts: Mapping[str, int]) -> list[str]:
    """Delete each pool's nodes beyond its count, and return their names; nodes of others have other names."""
    page = await client.list_all(NODES)
    views = [msgspec.json.decode(item, type=NodeView) for item in page.items]
    surplus = [view.metadata for view in views if _is_surplus(view, counts)]
    for metadata in surplus:
        with contextlib.suppress(errors.NotFound):
            await client.delete(NODES, metadata.name, uid=metadata.uid)
    return sorted(metadata.name for metadata in surplus)


def _is_surplus(view: NodeView, counts: Mapping[str, int]) -> bool:
    key, value = MANAGED_ANNOTATION
    metadata = view.metadata
    pool = metadata.labels.get(POOL_LABEL, "")
    index = metadata.name.removeprefix(f"{pool}-")
    is_ours = metadata.annotations.get(key) == value and pool in counts and index.isdigit()
    return is_ours and metadata.name == f"{pool}-{int(index)}" and int(index) >= counts[pool]

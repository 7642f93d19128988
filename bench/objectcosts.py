"""Cost of further pods and nodes on an idle platform."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final, Literal

from bench import load
from bench.flows import constant_place
from bench.idlemeter import COMPUTE, ETCD, GATEWAY, IdleFigures, measure_platform
from bench.load import Place
from bench.platform import POOL, Platform
from bench.pods import PodKind, spread_pods
from bench.timeline import Key, Timeline, now
from bench.watching import watch_pods
from vkgateway.api.errors import UnavailableError
from vkgateway.clusters.link import decode_node
from vkgateway.kube import errors
from vkgateway.kube.resources import NODES
from vkgateway_platform.embedded.hollow.nodes import hollow_nodes

PODS: Final = 2000
NODE_COUNT: Final = 500
_SETTLE: Final = 30.0
_USABLE_WITHIN: Final = 180.0
_KIB: Final = 1024.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectCost:
    """Idle figures before and after the creation of `count` objects."""

    what: Literal["pod", "node"]
    count: int
    before: IdleFigures
    after: IdleFigures

    def describe(self) -> str:
        """Return the cost of one object, in words."""
        sizes = ", ".join(
            f"{name} {self._kib(group):.1f} KiB"
            for name, group in (("gateway", GATEWAY), ("compute API server", COMPUTE))
        )
        shares = ", ".join(f"{name} {self._share(name):+.1f} %" for name in (GATEWAY, COMPUTE, ETCD))
        space = _KIB * (self.after.datastore - self.before.datastore) / self.count
        return (
            f"{self.count} more {self.what}s with the first number of tenants, for each {self.what}: {sizes} of PSS, "
            f"{space:.1f} KiB in etcd. Idle CPU of all, in percent of a core: {shares}."
        )

    def _kib(self, group: str) -> float:
        return _KIB * (self.after.pss[group] - self.before.pss[group]) / self.count

    def _share(self, group: str) -> float:
        return self.after.cpu[group] - self.before.cpu[group]


async def measure_pods(platform: Platform, places: list[Place], *, before: IdleFigures, seconds: float) -> ObjectCost:
    """Create running pods in these places, measure, and delete them."""
    kind = PodKind(run="more")
    timeline = Timeline()
    wanted = spread_pods(PODS, len(places), prefix=kind.run)
    keys: list[Key] = [(places[index].name, name) for index, name in wanted]
    watches = [(place.client, constant_place(place.name)) for place in places]
    async with watch_pods(watches, run=kind.run, timeline=timeline):
        await load.create_all(places, wanted, kind, timeline=timeline)
        await timeline.wait_for("ready", keys)
        after = await _measure_settled(platform, seconds=seconds)
        await load.delete_all(places, keys)
        await timeline.wait_for("gone", keys)
    return ObjectCost(what="pod", count=PODS, before=before, after=after)


async def measure_nodes(platform: Platform, *, before: IdleFigures, seconds: float) -> ObjectCost:
    """Create hollow nodes in the tenants' pool, measure, and delete them."""
    async with _more_nodes(platform):
        after = await _measure_settled(platform, seconds=seconds)
    return ObjectCost(what="node", count=NODE_COUNT, before=before, after=after)


async def _measure_settled(platform: Platform, *, seconds: float) -> IdleFigures:
    await asyncio.sleep(_SETTLE)
    return await measure_platform(platform, seconds=seconds)


async def _wait_usable(platform: Platform, name: str) -> None:
    """Wait until a node is ready and has no taints: until then, its changes cost more than its existence."""
    deadline = now() + _USABLE_WITHIN
    while True:
        node = decode_node(await platform.compute.get(NODES, name))
        if node.is_usable and not node.spec.taints:
            return
        if now() > deadline:
            raise UnavailableError(f"node {name} is not usable after {_USABLE_WITHIN:.0f} s")
        await asyncio.sleep(0.5)


@contextlib.asynccontextmanager
async def _more_nodes(platform: Platform) -> AsyncIterator[None]:
    nodes = list(hollow_nodes({POOL: NODE_COUNT}, version=platform.record.kubernetes_version))
    for node in nodes:
        node["metadata"]["name"] = f"more-{node['metadata']['name']}"

    async def create(node: dict[str, object]) -> None:
        await platform.compute.create(NODES, node)

    async def delete(node: dict[str, dict[str, str]]) -> None:
        with contextlib.suppress(errors.NotFound):
            await platform.compute.delete(NODES, node["metadata"]["name"])

    try:
        await load.for_each(nodes, create)
        for node in nodes:
            await _wait_usable(platform, node["metadata"]["name"])
        yield
    finally:
        await load.for_each(nodes, delete)

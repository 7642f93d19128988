"""Nodes of a compute cluster, and which of them make a pool; heartbeats are no news."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.objects import NodeStatusView, NodeView
from vkgateway.sync.compute.nodeviews import decode_node
from vkgateway.translate.context import PoolContext
from vkgateway.translate.poolnodes import PoolNodes, in_pool


class ComputeNodes(Reflector[NodeView]):
    """All nodes, ready or not; `on_news()` hears of changes that a virtual node shows, and when all are known."""

    def __init__(self, client: Client, *, on_news: Callable[[], None]) -> None:
        super().__init__(client, resources.NODES, decode=decode_node, on_change=self.changed, on_complete=on_news)
        self._on_news = on_news
        self._pools: dict[tuple[frozenset[tuple[str, str]], str], PoolNodes] = {}

    def pool(self, selector: Mapping[str, str], *, without_label: str = "") -> PoolNodes:
        """Return the nodes that a selector chooses and that do not carry a label, as last seen.

        The result is the same object until a node changes.
        """
        chosen = frozenset(selector.items()), without_label
        found = self._pools.get(chosen)
        if found is None:
            found = PoolNodes(node for node in self.items.values() if in_pool(node, selector, without_label))
            self._pools[chosen] = found
        return found

    def behind(self, pool: PoolContext) -> PoolNodes:
        """Return the compute nodes behind a virtual node, as last seen."""
        return self.pool(pool.node_selector, without_label=pool.without_label)

    def changed(self, old: NodeView | None, new: NodeView | None) -> None:
        """A node appeared, changed or went."""
        if old is not None and new is not None and same_for_us(old, new):
            return
        self._pools.clear()
        self._on_news()


def same_for_us(old: NodeView, new: NodeView) -> bool:
    """Whether two states of a node differ in nothing that a virtual node shows; heartbeats and images are no news."""
    return (
        old.usable == new.usable
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and _unconditional(old.status) == _unconditional(new.status)
    )


def _unconditional(status: NodeStatusView) -> NodeStatusView:
    return msgspec.structs.replace(status, conditions=(), images=())

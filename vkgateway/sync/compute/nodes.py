"""Nodes of a compute cluster, and which of them make a pool; heartbeats are no news."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.objects import NodeStatusView, NodeView
from vkgateway.sync.compute.node_views import decode_node
from vkgateway.translate.context import PoolContext
from vkgateway.translate.pool_nodes import PoolNodes, is_in_pool


class ComputeNodes(Reflector[NodeView]):
    """All nodes, ready or not; `on_news()` hears of changes that a virtual node shows, and when all are known."""

    def __init__(self, client: Client, *, on_news: Callable[[], None]) -> None:
        super().__init__(client, resources.NODES, decode=decode_node, on_change=self.handle_change, on_complete=on_news)
        self._on_update = on_news
        self._pools: dict[tuple[frozenset[tuple[str, str]], str], PoolNodes] = {}

    def pool_nodes(self, selector: Mapping[str, str], *, without_label: str = "") -> PoolNodes:
        """Return the nodes that a selector chooses and that do not carry a label, as last seen.

        The result is the same object until a node changes.
        """
        chosen = frozenset(selector.items()), without_label
        found = self._pools.get(chosen)
        if found is None:
            found = PoolNodes(node for node in self.store.values() if is_in_pool(node, selector, without_label))
            self._pools[chosen] = found
        return found

    def nodes_behind(self, pool: PoolContext) -> PoolNodes:
        """Return the compute nodes behind a virtual node, as last seen."""
        return self.pool_nodes(pool.node_selector, without_label=pool.without_label)

    def handle_change(self, old: NodeView | None, new: NodeView | None) -> None:
        """A node appeared, changed or went."""
        if old is not None and new is not None and is_unchanged(old, new):
            return
        self._pools.clear()
        self._on_update()


def is_unchanged(old: NodeView, new: NodeView) -> bool:
    """Whether two states of a node differ in nothing that a virtual node shows; heartbeats and images are no news."""
    return (
        old.is_usable == new.is_usable
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and _without_conditions(old.status) == _without_conditions(new.status)
    )


def _without_conditions(status: NodeStatusView) -> NodeStatusView:
    return msgspec.structs.replace(status, conditions=(), images=())

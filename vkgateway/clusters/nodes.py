"""Nodes of a compute cluster, and the nodes of each pool; heartbeats are not reported as changes.

Equal image entries are shared between nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from vkgateway.api.objects import NodeImage, NodeStatusView, NodeView
from vkgateway.clusters.cluster_watches import NODES, ClusterWatches
from vkgateway.clusters.pool_nodes import PoolNodes, is_in_pool
from vkgateway.kinds.context import PoolContext
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector

MAX_IMAGES: Final = 50
"""Images retained per node; kubelets report up to 50 by default."""
_MAX_NAMES: Final = 8

_decode = msgspec.json.Decoder(NodeView).decode
_shared: WeakValueDictionary[tuple[str, ...], NodeImage] = WeakValueDictionary()
"""Shared image entries by names. Entries are dropped when no node has them."""


class ComputeNodes(Reflector[NodeView]):
    """All nodes, ready or not. Observers are notified of changes that a virtual node shows, and when all are known."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.NODES,
            decode=decode_node,
            on_change=self.handle_change,
            on_complete=partial(watches.notify, NODES),
        )
        self._watches = watches
        self._pools: dict[tuple[frozenset[tuple[str, str]], str], PoolNodes] = {}

    def pool_nodes(self, selector: Mapping[str, str], *, without_label: str = "") -> PoolNodes:
        """Return the nodes that match a selector and do not carry the label `without_label`.

        The result is the same object until a node changes.
        """
        key = frozenset(selector.items()), without_label
        found = self._pools.get(key)
        if found is None:
            found = PoolNodes(node for node in self.store.values() if is_in_pool(node, selector, without_label))
            self._pools[key] = found
        return found

    def nodes_behind(self, pool: PoolContext) -> PoolNodes:
        """Return the compute nodes behind a virtual node."""
        return self.pool_nodes(pool.node_selector, without_label=pool.without_label)

    def handle_change(self, old: NodeView | None, new: NodeView | None) -> None:
        """Handle a node that was added, changed or deleted."""
        if old is not None and new is not None and is_unchanged(old, new):
            return
        self._pools.clear()
        self._watches.notify(NODES)


def is_unchanged(old: NodeView, new: NodeView) -> bool:
    """Return whether two states of a node look the same on a virtual node; heartbeats and images do not count."""
    return (
        old.is_usable == new.is_usable
        and old.spec == new.spec
        and old.metadata.labels == new.metadata.labels
        and _without_conditions(old.status) == _without_conditions(new.status)
    )


def _without_conditions(status: NodeStatusView) -> NodeStatusView:
    return msgspec.structs.replace(status, conditions=(), images=())


def decode_node(data: bytes) -> NodeView:
    """Decode a node from its JSON."""
    view = _decode(data)
    if view.status.images:
        kept = view.status.images[:MAX_IMAGES]
        view.status.images = tuple(_intern_image(image, image.names) for image in kept if image.names)
    return view


def _intern_image(image: NodeImage, names: tuple[str, ...]) -> NodeImage:
    kept = names[:_MAX_NAMES]
    return _shared.setdefault(kept, image if len(kept) == len(names) else NodeImage(names=kept))

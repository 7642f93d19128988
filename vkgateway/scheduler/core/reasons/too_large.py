"""Reason why a gang does not fit even into empty nodes (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.scheduler.core.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Node, Shape


def explain_too_large(pending_gang: PendingGang, pools: Iterable[PoolState]) -> str:
    """Return why its largest pods fit no node, as the end of a sentence; empty: each pod fits by itself."""
    nodes = [node for pool_state in pools for node in pool_state.pool.nodes]
    level = pending_gang.gang.required_level
    if level and not any(level in node.labels for node in nodes):
        return f"; no node has the label {level}"
    for shape in dict.fromkeys(pod.shape for pod in pending_gang.min_members):
        matching = [node for node in nodes if matches_terms(shape.terms, node.labels)]
        if nodes and not matching:
            return "; no node has the labels that its node affinity requires"
        matching = [node for node in matching if not has_untolerated_taint(shape.tolerations, node.taints)]
        if nodes and not matching:
            return "; it does not tolerate the taints of the nodes"
        largest = {
            name: max((_largest_request_on(node, shape, name) for node in matching), default=0)
            for name, _ in shape.requests
        }
        too_small: MilliResources = {name: largest[name] for name, amount in shape.requests if amount > largest[name]}
        if too_small:
            return f"; a pod can have {render_milli(too_small)} at most"
    return ""


def _largest_request_on(node: Node, shape: Shape, name: str) -> int:
    """Return the most of a resource that a single-container pod can get on the node: of one zone, where zones apply."""
    offered = node.allocatable.get(name, 0)
    if node.topology is None or len(shape.parts) > 1:
        return offered
    zones = [zone.allocatable[name] for zone in node.topology.zones if name in zone.allocatable]
    return min(offered, max(zones, default=offered))

"""Why a gang fits nowhere even into empty nodes: what of it is too large, with the most that there is (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.arbiter.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.arbiter.pool_state import PoolState
from vkgateway.arbiter.queueing.pending_gangs import PendingGang
from vkgateway.arbiter.snapshot import Node, Shape
from vkgateway.model.requests import MilliResources, render_milli


def explain_too_large(ask: PendingGang, pools: Iterable[PoolState]) -> str:
    """What keeps its largest pods from every node, as the end of a sentence; empty: each by itself would fit."""
    nodes = [node for standing in pools for node in standing.pool.nodes]
    level = ask.gang.required_level
    if level and not any(level in node.labels for node in nodes):
        return f"; no node has the label {level}"
    for shape in dict.fromkeys(pod.shape for pod in ask.min_members):
        there = [node for node in nodes if matches_terms(shape.terms, node.labels)]
        if nodes and not there:
            return "; no node has the labels that its node affinity asks for"
        there = [node for node in there if not has_untolerated_taint(shape.tolerations, node.taints)]
        if nodes and not there:
            return "; it does not tolerate the taints of the nodes"
        most = {
            name: max((_largest_request_on(node, shape, name) for node in there), default=0)
            for name, _ in shape.requests
        }
        short: MilliResources = {name: most[name] for name, amount in shape.requests if amount > most[name]}
        if short:
            return f"; a pod can have {render_milli(short)} at most"
    return ""


def _largest_request_on(node: Node, shape: Shape, name: str) -> int:
    """The most of a resource that a pod in one container can have on the node: of one zone, where zones count."""
    offered = node.allocatable.get(name, 0)
    if node.topology is None or len(shape.parts) > 1:
        return offered
    zones = [zone.allocatable[name] for zone in node.topology.zones if name in zone.allocatable]
    return min(offered, max(zones, default=offered))

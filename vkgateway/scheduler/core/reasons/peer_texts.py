"""What hard constraints about other pods keep from nodes with free capacity, and the way out, for messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from vkgateway.scheduler.core.capacity.placement import count_placeable
from vkgateway.scheduler.core.peer_rules import VIRTUAL_NODE, PeerRules
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.snapshot import Shape, have_peer_rules


def explain_peer_rules(pools: Iterable[PoolState], pending_gang: PendingGang, fit: int) -> str:
    """Return the constraints that exclude all nodes, or without which more than `fit` of the pods would fit now, as the
    end of a sentence; empty: capacity alone limits them.
    """
    if not have_peer_rules(pending_gang.min_members):
        return ""
    shapes = dict.fromkeys(pod.shape for pod in pending_gang.min_members)
    pods = [replace(pod, shape=replace(pod.shape, peers=None)) for pod in pending_gang.min_members]
    level = pending_gang.gang.required_level
    for pool_state in pools:
        if any(_excludes_all_nodes(pool_state, shape) for shape in shapes):
            return _rules_text(pending_gang)
        among = allowed_nodes(pool_state, pending_gang)
        if count_placeable(pool_state.node_resources, pods, required_level=level, among=among) > fit:
            return _rules_text(pending_gang)
    return ""


def _excludes_all_nodes(pool_state: PoolState, shape: Shape) -> bool:
    permitted = pool_state.node_resources.permitted_nodes(shape)
    return permitted is not None and not permitted.any()


def explain_peer_rules_in_empty(pending_gang: PendingGang) -> str:
    """Return the constraints that hold in an empty pool, too, as the end of a sentence; empty: there are none."""
    rules = (pod.shape.peers and pod.shape.peers.without_company() for pod in pending_gang.min_members)
    return _texts(each for each in rules if each)


def _rules_text(pending_gang: PendingGang) -> str:
    rules = [pod.shape.peers for pod in pending_gang.min_members if pod.shape.peers is not None]
    return _texts(rules) or "; pod anti-affinity of running pods keeps it away from their nodes"


def _texts(rules: Iterable[PeerRules]) -> str:
    return "".join(f"; {text}" for text in dict.fromkeys(text for each in rules for text in _texts_of(each)))


def _texts_of(rules: PeerRules) -> Iterator[str]:
    for rule in rules.spread:
        yield (
            f"topologySpreadConstraints (maxSkew {rule.max_skew} over {rule.topology_key or 'virtual nodes'}) exclude"
            " other free nodes: free the domain with the fewest pods, raise maxSkew, or set ScheduleAnyway"
        )
    if rules.affinity:
        yield (
            f"required podAffinity over {', '.join(rules.affinity_keys)} needs free capacity beside a matching pod:"
            " make it preferred, or place the matching pod elsewhere"
        )
    for term in rules.anti_affinity:
        if term.topology_key == VIRTUAL_NODE:
            yield (
                "required podAntiAffinity lets one matching pod run on each virtual node, which is one host for the"
                " tenant's scheduler: use topologySpreadConstraints to separate pods on compute nodes"
            )
        else:
            yield f"required podAntiAffinity over {term.topology_key} excludes nodes: make it preferred"

"""The filters InterPodAffinity and PodTopologySpread of kube-scheduler over lists of pods: oracle for `PeerRules`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from vkgateway.scheduler.core.capacity.node_matching import has_untolerated_taint, matches_terms
from vkgateway.scheduler.core.peer_rules import VIRTUAL_NODE, PeerRules, SpreadRule
from vkgateway.scheduler.core.snapshot import Node, Shape


class Peer(NamedTuple):
    """A pod on a node, with what it demands of other pods."""

    node: str
    rules: PeerRules


def permits(shape: Shape, node: Node, nodes: Sequence[Node], pods: Sequence[Peer]) -> bool:
    """Return whether a node passes the filters for a pod with this shape beside these pods."""
    rules = shape.peers or PeerRules()
    labels = {each.name: {**each.labels, VIRTUAL_NODE: "the pool"} for each in nodes}
    here = labels[node.name]
    for term in rules.anti_affinity:
        if any(
            term.peers in pod.rules.selected_by and _shares(here, labels[pod.node], term.topology_key) for pod in pods
        ):
            return False
    for pod in pods:
        for term in pod.rules.anti_affinity:
            if term.peers in rules.selected_by and _shares(here, labels[pod.node], term.topology_key):
                return False
    if rules.affinity and not _affinity_holds(
        rules, here, [labels[pod.node] for pod in _selected(rules.affinity, pods)]
    ):
        return False
    return all(_spread_holds(rule, shape, node, nodes, pods) for rule in rules.spread)


def _shares(one: Mapping[str, str], other: Mapping[str, str], key: str) -> bool:
    return key in one and one[key] == other.get(key)


def _selected(selector: str, pods: Sequence[Peer]) -> list[Peer]:
    return [pod for pod in pods if selector in pod.rules.selected_by]


def _affinity_holds(rules: PeerRules, here: Mapping[str, str], peers: Sequence[Mapping[str, str]]) -> bool:
    if not all(key in here for key in rules.affinity_keys):
        return False
    counted = [peer for peer in peers if any(key in peer for key in rules.affinity_keys)]
    if not counted and rules.affinity in rules.selected_by:
        return True
    return all(any(_shares(here, peer, key) for peer in peers) for key in rules.affinity_keys)


def _spread_holds(rule: SpreadRule, shape: Shape, node: Node, nodes: Sequence[Node], pods: Sequence[Peer]) -> bool:
    assert shape.peers is not None
    keys = {each.topology_key for each in shape.peers.spread}
    if not keys <= node.labels.keys():
        return False
    number: Counter[str] = Counter()
    for each in nodes:
        if not keys <= each.labels.keys() or not matches_terms(shape.terms, each.labels):
            continue
        if rule.honors_taints and (not each.usable or has_untolerated_taint(shape.tolerations, each.taints)):
            continue
        number[each.labels[rule.topology_key]] += sum(pod.node == each.name for pod in _selected(rule.peers, pods))
    fewest = min(number.values(), default=1 << 31)
    if len(number) < rule.min_domains:
        fewest = 0
    own = rule.peers in shape.peers.selected_by
    return number[node.labels[rule.topology_key]] + own - fewest <= rule.max_skew

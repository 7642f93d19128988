"""Nodes that the hard constraints of a pod about other pods permit, given the pods on all nodes.

The rules are those of the plug-ins InterPodAffinity and PodTopologySpread of kube-scheduler. This module knows nodes by
position only: it depends on nothing else of the arbiter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from vkgateway.scheduler.core.peer_rules import PeerRules, PeerTerm, SpreadRule

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

K = TypeVar("K")

_NO_DOMAIN = 1 << 31
"""Fewest pods of a domain where no domain counts: it limits nothing."""


class CountedNodes(NamedTuple):
    """Masks of the nodes that count for a topology spread of one pod."""

    selected: BoolArray
    """Nodes that the pod's node selector and required node affinity match."""
    open: BoolArray
    """Those of them whose taints it tolerates."""


class PlacedPeers:
    """Pods on nodes, as far as rules about peers concern them. Without such pods it holds nothing."""

    def __init__(self, size: int, domains: Callable[[str], IntArray], others: Mapping[str, Mapping[int, int]]) -> None:
        """Create the pods on `size` nodes.

        `domains` returns the number of each node's domain of a topology key; negative: the node lacks the label.
        `others` counts, by selector and position, pods without rules of their own.
        """
        self._size = size
        self._domains = domains
        self._selected: dict[str, IntArray] = {}
        """Number of selected pods on each node, by selector."""
        self._averse: dict[PeerTerm, IntArray] = {}
        """Number of pods with a term of anti-affinity on each node."""
        for selector, counts in others.items():
            _column_of(self._selected, selector, self._size)[list(counts)] += list(counts.values())

    def copy(self) -> PlacedPeers:
        """Return an independent copy."""
        other = PlacedPeers(self._size, self._domains, {})
        other._selected = {selector: column.copy() for selector, column in self._selected.items()}
        other._averse = {term: column.copy() for term, column in self._averse.items()}
        return other

    def change_pods(
        self, rules: PeerRules, positions: Sequence[int] | IntArray, counts: Sequence[int] | IntArray
    ) -> None:
        """Add pods with these rules to nodes; negative counts remove them. Each position occurs once."""
        for selector in rules.selected_by:
            _column_of(self._selected, selector, self._size)[positions] += counts
        for term in rules.anti_affinity:
            _column_of(self._averse, term, self._size)[positions] += counts

    def permitted_nodes(self, rules: PeerRules, counted: Callable[[], CountedNodes]) -> BoolArray:
        """Return the mask of the nodes on which one more pod with these rules keeps them and those of placed pods."""
        permitted = np.ones(self._size, dtype=bool)
        for term in rules.anti_affinity:
            if (column := self._selected.get(term.peers)) is not None:
                permitted &= ~self._has_pods(column, term.topology_key)
        for term, column in self._averse.items():
            if term.peers in rules.selected_by:
                permitted &= ~self._has_pods(column, term.topology_key)
        if rules.affinity:
            permitted &= self._near_peers(rules)
        if rules.spread:
            nodes = counted()
            labeled = np.logical_and.reduce([self._domains(rule.topology_key) >= 0 for rule in rules.spread])
            for rule in rules.spread:
                among = labeled & (nodes.open if rule.honors_taints else nodes.selected)
                permitted &= labeled & self._keeps_skew(rule, among, one=rule.peers in rules.selected_by)
        return permitted

    def _near_peers(self, rules: PeerRules) -> BoolArray:
        """Return the nodes that share each domain with a peer. The first of pods that select themselves needs none."""
        column = self._selected.get(rules.affinity)
        labeled = [self._domains(key) >= 0 for key in rules.affinity_keys]
        if column is None or not any(column[has_label].any() for has_label in labeled):
            is_first = rules.affinity in rules.selected_by
            near = labeled if is_first else [np.zeros(self._size, dtype=bool)]
        else:
            near = [self._has_pods(column, key) for key in rules.affinity_keys]
        permitted: BoolArray = np.logical_and.reduce(near)
        return permitted

    def _keeps_skew(self, rule: SpreadRule, among: BoolArray, *, one: bool) -> BoolArray:
        """Return the nodes whose domain may take a pod. `among`: nodes that count; `one`: the pod itself counts."""
        codes = self._domains(rule.topology_key)
        exists = np.bincount(codes[among], minlength=int(codes.max(initial=-1)) + 2) > 0
        column = self._selected.get(rule.peers)
        sums = np.zeros(len(exists), dtype=np.int64)
        if column is not None:
            np.add.at(sums, codes[among], column[among])
        fewest = sums[exists].min(initial=_NO_DOMAIN) if np.count_nonzero(exists) >= rule.min_domains else 0
        permitted: BoolArray = sums[codes] + one - fewest <= rule.max_skew
        return permitted

    def _has_pods(self, column: IntArray, key: str) -> BoolArray:
        """Return the nodes of the domains of a key in which a column has pods."""
        codes = self._domains(key)
        taken = np.zeros(int(codes.max(initial=-1)) + 2, dtype=bool)
        taken[codes[column > 0]] = True
        taken[-1] = False  # the entry of nodes without the label
        return taken[np.maximum(codes, -1)]


def _column_of(columns: dict[K, IntArray], key: K, size: int) -> IntArray:
    found = columns.get(key)
    if found is None:
        found = columns[key] = np.zeros(size, dtype=np.int64)
    return found

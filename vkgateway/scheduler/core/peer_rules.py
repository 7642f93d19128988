"""Hard constraints of a pod about other pods (its peers), as plain data. `capacity.placed_peers` evaluates them.

A selector of peers is an opaque name: whoever makes the rules knows which pods it selects, and lists at each pod the
selectors that select it. So no label is compared while pods are placed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

VIRTUAL_NODE: Final = ""
"""Topology key whose domains are the virtual nodes. For the tenant's scheduler, each of them is one host."""

NO_MINIMUM: Final = 1 << 31
"""Value of `SpreadRule.min_domains` with which the fewest pods of a domain always count as none."""


@dataclass(frozen=True, slots=True)
class PeerTerm:
    """Peers by their selector, and the topology key whose domains a pod must not share with them."""

    peers: str
    topology_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadRule:
    """Topology spread constraint with `DoNotSchedule` and `nodeAffinityPolicy: Honor`."""

    peers: str
    topology_key: str
    max_skew: int
    min_domains: int = 1
    honors_taints: bool = False
    """Whether only nodes count whose taints the pod tolerates (`nodeTaintsPolicy: Honor`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRules:
    """What pods in the same place mean for a pod, and the pod for them. Source: core/v1 Affinity and
    TopologySpreadConstraint.
    """

    selected_by: frozenset[str] = frozenset()
    """Selectors that select this pod."""
    affinity: str = ""
    """Selector of the peers that all terms of required pod affinity select together; empty: no such term."""
    affinity_keys: tuple[str, ...] = ()
    """Topology keys of these terms: such a peer must be in the same domain of each."""
    anti_affinity: tuple[PeerTerm, ...] = ()
    """Terms of required pod anti-affinity. They also keep selected pods away from this one."""
    spread: tuple[SpreadRule, ...] = ()

    def without_company(self) -> PeerRules | None:
        """Return the rules that other pods can only tighten; None: there are none. Peers elsewhere may satisfy
        affinity and level out a spread.
        """
        return replace(self, affinity="", affinity_keys=(), spread=()) if self.anti_affinity else None

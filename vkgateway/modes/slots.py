"""Slots of an admitted attempt: which waiting pod takes which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Protocol

from vkgateway.arbiter.snapshot import Pod


class PodSetNames(Protocol):
    """The mode, as far as it names pod sets."""

    def pod_set_name(self, pod: Pod) -> str:
        """Return the name of a pod's pod set."""


def assign_slots(
    names: PodSetNames, slots: Mapping[str, Mapping[str, int]], holding: Iterable[Pod], waiting: Iterable[Pod]
) -> dict[str, str]:
    """Return the node of each waiting pod that has a free slot, by uid, in the order of the pods.

    A pod takes a slot of its shape. `holding` are the pods of the attempt that occupy slots. An empty node name means
    any node of the pool.
    """
    free: dict[str, Counter[str]] = {name: Counter(nodes) for name, nodes in slots.items()}
    for pod in holding:
        _take_slot(free.get(names.pod_set_name(pod), Counter()), pod.node)
    assigned: dict[str, str] = {}
    for pod in waiting:
        nodes = free.get(names.pod_set_name(pod), Counter())
        node = next((node for node, number in nodes.items() if number > 0), None)
        if node is not None:
            nodes[node] -= 1
            assigned[pod.uid] = node
    return assigned


def _take_slot(nodes: Counter[str], node: str) -> None:
    """Occupy a slot on a node; a pod on an unexpected node occupies any slot."""
    if nodes.get(node, 0) <= 0:
        node = next((each for each, number in nodes.items() if number > 0), node)
    if node in nodes:
        nodes[node] -= 1

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
    for pod in _take_own_slots(names, free, holding):
        _take_any_slot(free.get(names.pod_set_name(pod), Counter()))
    assigned: dict[str, str] = {}
    for pod in waiting:
        nodes = free.get(names.pod_set_name(pod), Counter())
        node = next((node for node, number in nodes.items() if number > 0), None)
        if node is not None:
            nodes[node] -= 1
            assigned[pod.uid] = node
    return assigned


def displaced_pods(names: PodSetNames, slots: Mapping[str, Mapping[str, int]], holding: Iterable[Pod]) -> list[Pod]:
    """Return the pods that run where their attempt has no slot any more. The scheduler may give their place away."""
    return _take_own_slots(names, {name: Counter(nodes) for name, nodes in slots.items()}, holding)


def _take_own_slots(names: PodSetNames, free: Mapping[str, Counter[str]], holding: Iterable[Pod]) -> list[Pod]:
    """Occupy the slots on the nodes of pods; return the pods without one there."""
    displaced: list[Pod] = []
    for pod in holding:
        nodes = free.get(names.pod_set_name(pod), Counter())
        node = next((node for node in (pod.node, "") if nodes.get(node, 0) > 0), None)
        if node is None:
            displaced.append(pod)
        else:
            nodes[node] -= 1
    return displaced


def _take_any_slot(nodes: Counter[str]) -> None:
    node = next((each for each, number in nodes.items() if number > 0), None)
    if node is not None:
        nodes[node] -= 1

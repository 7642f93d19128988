"""Slots of an admitted attempt: which waiting pod takes which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from vkgateway.arbiter.snapshot import Pod
from vkgateway.modes.pod_sets import NAME_PREFIX, pod_set_name


def assign_slots(
    slots: Mapping[str, Mapping[str, int]], holding: Iterable[Pod], waiting: Iterable[Pod]
) -> dict[str, str]:
    """Return the node of each waiting pod that has a free slot, by uid, in the order of the pods.

    A pod takes a slot of its shape. `holding` are the pods of the attempt that occupy slots. An empty node name means
    any node of the pool.
    """
    free: dict[str, Counter[str]] = {name: Counter(nodes) for name, nodes in slots.items()}
    for pod in _take_own_slots(free, holding):
        _take_slot(_equal_pod_sets(free, pod))
    assigned: dict[str, str] = {}
    for pod in waiting:
        nodes = free.get(pod_set_name(pod), Counter())
        node = next((node for node, number in nodes.items() if number > 0), None)
        if node is not None:
            nodes[node] -= 1
            assigned[pod.uid] = node
    return assigned


def displaced_pods(slots: Mapping[str, Mapping[str, int]], holding: Iterable[Pod]) -> list[Pod]:
    """Return the pods that run where their attempt has no slot any more. The scheduler may give their place away."""
    return _take_own_slots({name: Counter(nodes) for name, nodes in slots.items()}, holding)


def _take_own_slots(free: Mapping[str, Counter[str]], holding: Iterable[Pod]) -> list[Pod]:
    """Occupy the slots on the nodes of pods; return the pods without one there."""
    displaced: list[Pod] = []
    for pod in holding:
        pod_sets = _equal_pod_sets(free, pod)
        if not (_take_slot(pod_sets, pod.node) or _take_slot(pod_sets, "")):
            displaced.append(pod)
    return displaced


def _equal_pod_sets(free: Mapping[str, Counter[str]], pod: Pod) -> list[Counter[str]]:
    """Return the slots of the pod sets whose pods request the same as a pod, those of its own pod set first."""
    own = pod_set_name(pod)
    found = sorted(name for name in free if name[:NAME_PREFIX] == own[:NAME_PREFIX])
    return [free[name] for name in sorted(found, key=lambda name: name != own)]


def _take_slot(pod_sets: Iterable[Counter[str]], node: str | None = None) -> bool:
    """Occupy a free slot on a node, or on any node; return whether there was one."""
    for nodes in pod_sets:
        found = next((each for each, number in nodes.items() if number > 0 and node in (None, each)), None)
        if found is not None:
            nodes[found] -= 1
            return True
    return False

"""Slots of an admitted attempt: which waiting pod takes which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from vkgateway.scheduler.backends.pod_sets import NAME_PREFIX, pod_set_name
from vkgateway.scheduler.core.snapshot import Pod


def assign_slots(
    slots: Mapping[str, Mapping[str, int]],
    holding: Iterable[Pod],
    waiting: Iterable[Pod],
    *,
    returned: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the node of each waiting pod that has a free slot, by uid, in the order of the pods.

    A pod takes a slot of its shape. `holding` are the pods of the attempt that occupy slots. An empty node name means
    any node of the pool. `returned` slots by pod set belong to the scheduler again.
    """
    free: dict[str, Counter[str]] = {name: Counter(nodes) for name, nodes in slots.items()}
    for pod in _take_own_slots(free, holding):
        _take_slot(_equal_pod_sets(free, pod))
    left = {name: nodes.total() - returned.get(name, 0) for name, nodes in free.items()}
    assigned: dict[str, str] = {}
    for pod in waiting:
        name = pod_set_name(pod)
        node = next((node for node, number in free.get(name, Counter()).items() if number > 0), None)
        if node is not None and left[name] > 0:
            free[name][node] -= 1
            left[name] -= 1
            assigned[pod.uid] = node
    return assigned


def free_slots(slots: Mapping[str, Mapping[str, int]], pods: Iterable[Pod]) -> dict[str, int]:
    """Return the number of slots that no pod of the attempt needs, by pod set."""
    free = {name: Counter(nodes) for name, nodes in slots.items()}
    for pod in _take_own_slots(free, pods):
        _take_slot(_equal_pod_sets(free, pod))
    return {name: nodes.total() for name, nodes in free.items()}


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

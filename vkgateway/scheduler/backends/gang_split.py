"""Split of a gang into the pods that share an attempt: those that start as a whole, and each pod beyond them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.mode import ModeInput, Request, SchedulingMode
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.pod_sets import NAME_PREFIX, pod_set_name
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members, select_min_members
from vkgateway.scheduler.core.snapshot import ENDING, PLACED, WAITING, Gang, Pod


@dataclass(frozen=True, slots=True)
class AttemptPods:
    """Pods of a gang that share an attempt."""

    request: Request
    holding: tuple[Pod, ...]
    """Pods that hold resources, also while they terminate."""
    placed: tuple[Pod, ...]
    """Those of them that are neither evicted nor terminating."""
    waiting: tuple[Pod, ...]

    @property
    def is_complete(self) -> bool:
        """Whether all min members wait, so that the gang may start."""
        return self.request.is_surplus or has_min_members(self.request.gang, self.waiting)


def min_members(gang: Gang) -> int:
    """Return the number of pods without which a gang cannot start."""
    return max(gang.minimum, sum(gang.role_minimum.values()))


GangSplit = tuple[AttemptPods, list[AttemptPods]]
"""The part of a gang that starts as a whole, and one part for each pod beyond it."""


class GangSplitter:
    """Splitter of the gangs of one mode in one compute cluster, in one cycle: it splits each gang once."""

    def __init__(self, mode: SchedulingMode, given: ModeInput) -> None:
        self._given = given
        self._usable = {(pool.key, node.name) for pool in given.snapshot.pools for node in pool.nodes if node.usable}
        self._splits: dict[str, GangSplit] = {}
        """By gang."""
        self._levels = {pool.key: mode.levels(pool, given.specs[pool.key]) for pool in given.snapshot.pools}

    def split_gang(self, gang: Gang) -> GangSplit:
        """Return the parts of a gang.

        Pods that should have terminated on a node that cannot be used, such as a failed one, are left out: their end
        may never be reported.
        """
        known = self._splits.get(gang.id)
        if known is None:
            known = self._splits[gang.id] = self._split(gang)
        return known

    def split_off(self, gang: Gang, uids: Collection[str]) -> None:
        """Let waiting pods of a gang, by UID, ask one by one from now on."""
        core, surplus = self.split_gang(gang)
        gang = core.request.gang
        left = [pod for pod in core.request.pods if pod.uid not in uids]
        moved = [self._part(gang, (pod,), is_surplus=True) for pod in core.request.pods if pod.uid in uids]
        self._splits[gang.id] = self._part(gang, left), sorted((*surplus, *moved), key=_surplus_order)

    def _split(self, gang: Gang) -> GangSplit:
        if any(self._is_lost(pod) for pod in gang.pods):
            gang = replace(gang, pods=tuple(pod for pod in gang.pods if not self._is_lost(pod)))
        attempts = self._given.attempts
        alone = {pod.uid for pod in gang.pods if attempt_name(gang.tenant, gang.id, pod.uid) in attempts}
        core_attempt = attempts.get(attempt_name(gang.tenant, gang.id))
        others = [pod for pod in gang.pods if pod.uid not in alone]
        core = self._core_pods(gang, others, core_attempt)
        chosen = {pod.uid for pod in core}
        surplus = [pod for pod in gang.pods if pod.uid not in chosen]
        parts = (self._part(gang, (pod,), is_surplus=True) for pod in surplus)
        return self._part(gang, core), sorted(parts, key=_surplus_order)

    def _is_lost(self, pod: Pod) -> bool:
        is_overdue = pod.state is ENDING and 0 < pod.deadline < self._given.now
        return is_overdue and bool(pod.node) and (pod.pool, pod.node) not in self._usable

    def _core_pods(self, gang: Gang, pods: Sequence[Pod], attempt: Attempt | None) -> list[Pod]:
        """Return the pods that start as a whole: the minimum of an elastic gang, all pods of others.

        Once admitted, an attempt has a fixed number of slots: pods without a slot are surplus.
        """
        holding = [pod for pod in pods if pod.state is not WAITING]
        waiting = sorted((pod for pod in pods if pod.state is WAITING), key=lambda pod: (pod.rank, pod.uid))
        if attempt is not None and attempt.state is AttemptState.ADMITTED and holding:
            fitting = assign_slots(attempt.slots, holding, waiting, returned=attempt.returned)
            return [*holding, *(pod for pod in waiting if pod.uid in fitting)]
        if not gang.elastic:
            return [*holding, *waiting]
        return holding or select_min_members(gang, waiting, inside_first=False)

    def _part(self, gang: Gang, pods: Sequence[Pod], *, is_surplus: bool = False) -> AttemptPods:
        uid = pods[0].uid if is_surplus else ""
        request = Request(
            name=attempt_name(gang.tenant, gang.id, uid),
            gang=gang,
            pods=tuple(pods),
            spec=self._given.specs[gang.pools[0]],
            levels=self._levels[gang.pools[0]],
            is_surplus=is_surplus,
        )
        return AttemptPods(
            request,
            holding=tuple(pod for pod in pods if pod.state is not WAITING),
            placed=tuple(pod for pod in pods if pod.state is PLACED),
            waiting=tuple(pod for pod in pods if pod.state is WAITING),
        )


def _surplus_order(part: AttemptPods) -> tuple[int, str]:
    (pod,) = part.request.pods
    return pod.rank, pod.uid


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

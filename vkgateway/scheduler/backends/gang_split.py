"""Split of a gang into the pods that share an attempt: those that start as a whole, and each pod beyond them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.mode import ModeInput, Request, SchedulingMode
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.slots import assign_slots
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

"""Preemption candidates: the running pods of a gang that can be evicted together.

A candidate is one surplus pod of an elastic gang, or the min members of a gang, whose eviction evicts the whole gang.
Pods inside their tenant's guarantee are no candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from vkgateway.scheduler.core.snapshot import PLACED, Gang, Pod, PoolKey


class EvictionStage(IntEnum):
    """Order in which candidates are considered."""

    SURPLUS = 1
    """Surplus of an elastic gang: no work is lost, the gang continues with the rest."""
    WORK = 2
    PROTECTED = 3
    """Within its minimum run time: the last resort."""


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """Pods of one gang that are evicted together or not at all; `whole`: the rest of the gang is evicted with them."""

    gang: Gang
    pods: tuple[Pod, ...]
    stage: EvictionStage
    whole: bool
    running_pods: tuple[Pod, ...]
    """All running pods of the gang that may be evicted."""
    idled_pods: tuple[Pod, ...] = ()
    """Pods that stop working without these: pods inside their tenant's guarantee, which stay, and the gang's pods in
    other pools."""

    @property
    def evicted_pods(self) -> tuple[Pod, ...]:
        return self.running_pods if self.whole else self.pods

    @property
    def candidate_id(self) -> str:
        """Unique id of the candidate."""
        return self.gang.id if self.whole else f"{self.gang.id}/{self.pods[0].uid}"


def candidates_of(gang: Gang, pool: PoolKey) -> list[PreemptionCandidate]:
    """Return the candidates among a gang's running pods in the pool.

    The min members are the pods of lowest rank: for each role its minimum, then up to the gang's minimum. Pods inside
    cells count as min members first, and stay. The pods that such a gang borrows remain candidates. Otherwise a pod
    whose part of the guarantee was taken would block other guarantees.
    """
    running = [pod for pod in gang.pods if pod.state is PLACED and pod.node and pod.pool == pool]
    evictable = tuple(pod for pod in running if pod.borrowed)
    elsewhere = gang.part_info.pods_elsewhere if gang.part_info is not None else ()
    if len(evictable) == len(running) and (not gang.elastic or len(running) <= gang.minimum):
        return (
            [
                PreemptionCandidate(
                    gang, evictable, EvictionStage.WORK, whole=True, running_pods=evictable, idled_pods=elsewhere
                )
            ]
            if running
            else []
        )
    chosen = {pod.uid for pod in select_min_members(gang, running)}
    min_members, idle = (
        tuple(pod for pod in running if pod.uid in chosen and pod.borrowed is is_borrowed)
        for is_borrowed in (True, False)
    )
    stage = EvictionStage.SURPLUS if gang.elastic else EvictionStage.WORK
    surplus = [pod for pod in evictable if pod.uid not in chosen]
    candidates = [PreemptionCandidate(gang, (pod,), stage, whole=False, running_pods=evictable) for pod in surplus]
    return (
        [
            *candidates,
            PreemptionCandidate(
                gang, min_members, EvictionStage.WORK, whole=True, running_pods=evictable, idled_pods=idle + elsewhere
            ),
        ]
        if min_members
        else candidates
    )


def has_min_members(gang: Gang, pods: Sequence[Pod]) -> bool:
    """Return whether these pods satisfy the gang's minimum, in total and by role."""
    roles = all(sum(pod.role == role for pod in pods) >= number for role, number in gang.role_minimum.items())
    return len(pods) >= gang.minimum and roles


def select_min_members(gang: Gang, pods: Iterable[Pod], *, inside_first: bool = True) -> list[Pod]:
    """Return the pods that make up the gang's minimum, or all of them if there are no more.

    Pods inside the guarantee come first, then pods of low rank. `inside_first=False`: by rank only.
    """
    missing = dict(gang.role_minimum)
    min_members, others = [], []
    for pod in sorted(pods, key=lambda pod: (inside_first and pod.borrowed, pod.rank, pod.uid)):
        if missing.get(pod.role, 0) > 0:
            missing[pod.role] -= 1
            min_members.append(pod)
        else:
            others.append(pod)
    return min_members + others[: max(0, gang.minimum - len(min_members))]

"""Lots: which of a gang's running pods may be evicted, and in which company.

A lot is a pod of an elastic gang's surplus, or what is left of a gang: its core, which only goes together with all the
rest. Pods inside their tenant's cells are in no lot, and stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from vkgateway.arbiter.snapshot import PLACED, Gang, Pod, PoolKey


class EvictionStage(IntEnum):
    """How far it must have come before a lot is called in."""

    SURPLUS = 1
    """Beyond an elastic gang's minimum: nothing is lost by it, the gang goes on with the rest."""
    WORK = 2
    PROTECTED = 3
    """Inside its minimum run time: only if nothing else will do."""


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """Pods of one gang that are evicted together or not at all; `whole`: the rest of the gang goes with them."""

    gang: Gang
    pods: tuple[Pod, ...]
    stage: EvictionStage
    whole: bool
    running_pods: tuple[Pod, ...]
    """All of the gang's pods that run and may go."""
    idled_pods: tuple[Pod, ...] = ()
    """Pods inside their tenant's cells, which stay and are of no use without these, and the gang's pods elsewhere."""

    @property
    def evicted_pods(self) -> tuple[Pod, ...]:
        """All who go when it goes."""
        return self.running_pods if self.whole else self.pods

    @property
    def candidate_id(self) -> str:
        """Names no other lot."""
        return self.gang.id if self.whole else f"{self.gang.id}/{self.pods[0].uid}"


def candidates_of(gang: Gang, pool: PoolKey) -> list[PreemptionCandidate]:
    """The lots of a gang: what of its pods that run in the pool may go, and in which company.

    Its core are the pods of lowest rank: of each role its minimum, then up to the gang's minimum. Of a gang of which
    pods are inside its tenant's cells these are its core first, and stay; all that it borrows can still be called in,
    or a pod that was replaced, and whose cells were taken, would stand in the way of others' guarantees.
    """
    runs = [pod for pod in gang.pods if pod.state is PLACED and pod.node and pod.pool == pool]
    may_go = tuple(pod for pod in runs if pod.borrowed)
    elsewhere = gang.part_info.pods_elsewhere if gang.part_info is not None else ()
    if len(may_go) == len(runs) and (not gang.elastic or len(runs) <= gang.minimum):
        return (
            [
                PreemptionCandidate(
                    gang, may_go, EvictionStage.WORK, whole=True, running_pods=may_go, idled_pods=elsewhere
                )
            ]
            if runs
            else []
        )
    chosen = {pod.uid for pod in select_min_members(gang, runs)}
    core, idle = (tuple(pod for pod in runs if pod.uid in chosen and pod.borrowed is side) for side in (True, False))
    stage = EvictionStage.SURPLUS if gang.elastic else EvictionStage.WORK
    beyond = [pod for pod in may_go if pod.uid not in chosen]
    lots = [PreemptionCandidate(gang, (pod,), stage, whole=False, running_pods=may_go) for pod in beyond]
    return (
        [
            *lots,
            PreemptionCandidate(
                gang, core, EvictionStage.WORK, whole=True, running_pods=may_go, idled_pods=idle + elsewhere
            ),
        ]
        if core
        else lots
    )


def has_min_members(gang: Gang, pods: Sequence[Pod]) -> bool:
    """Whether the gang runs with these pods: they are its minimum, of each role too."""
    roles = all(sum(pod.role == role for pod in pods) >= number for role, number in gang.role_minimum.items())
    return len(pods) >= gang.minimum and roles


def select_min_members(gang: Gang, pods: Iterable[Pod], *, inside_first: bool = True) -> list[Pod]:
    """The pods that make up the gang's minimum, those inside cells and then of low rank first; all of them where there
    are no more. `inside_first=False`: of low rank alone."""
    missing = dict(gang.role_minimum)
    core, others = [], []
    for pod in sorted(pods, key=lambda pod: (inside_first and pod.borrowed, pod.rank, pod.uid)):
        if missing.get(pod.role, 0) > 0:
            missing[pod.role] -= 1
            core.append(pod)
        else:
            others.append(pod)
    return core + others[: max(0, gang.minimum - len(core))]

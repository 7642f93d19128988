"""Decisions under construction, for schedulers that evict whole gangs."""

from __future__ import annotations

from dataclasses import dataclass, field

from vkgateway.arbiter.decisions import Admit, Decisions, Evict
from vkgateway.arbiter.snapshot import Gang, PoolKey, PreemptionPlan


@dataclass(slots=True)
class DecisionBuilder:
    """Decisions of a cycle so far."""

    admits: list[Admit] = field(default_factory=list)
    evicts: list[Evict] = field(default_factory=list)
    plans: dict[str, PreemptionPlan] = field(default_factory=dict)

    def admit_gang(self, gang: Gang, pool: PoolKey, nodes: dict[str, str], *, borrowed: bool) -> None:
        """Start a gang."""
        self.admits.append(Admit(gang=gang.id, pool=pool, nodes=nodes, borrowed=borrowed))

    def evict_gang(self, victim: Gang, preemptor: Gang, now: float) -> None:
        """Evict a gang after its notice."""
        uids = tuple(pod.uid for pod in victim.pods)
        deadline = now + victim.notice
        self.evicts.append(
            Evict(gang=victim.id, pods=uids, whole=True, makes_room_for=preemptor.id, deadline=deadline, lost=0.0)
        )

    def build_decisions(self) -> Decisions:
        """Return the decisions."""
        return Decisions(admits=tuple(self.admits), evicts=tuple(self.evicts), plans=self.plans)

"""Gangs of one tenant, built from members, for unit tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from tests.unit.sync.admission.samples import POOL, TENANT, gang_marks, make_member
from vkgateway.api.objects import Object
from vkgateway.kube.clock import SYSTEM_CLOCK
from vkgateway.scheduler.core.decisions import PendingReport
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import Gang, PodState, PoolKey
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.completions import Completion
from vkgateway.scheduler.service.gang_builder import EvictionTerms
from vkgateway.scheduler.service.gangs import TenantGangs
from vkgateway.scheduler.service.member import GangMember, MemberState

GROUP = "default/gang/train"
GANG = f"{TENANT}/{GROUP}"
WAITING = MemberState(state=PodState.WAITING)
ADMITTED = Admission(AdmissionState.ADMITTED, pool=POOL, node="host-1", borrowed=True, since=50.0, behind="alpha/x")
PLACED = MemberState(state=PodState.PLACED, verdict=ADMITTED)
ENDING = MemberState(state=PodState.ENDING, verdict=replace(ADMITTED, deadline=70.0))
SUCCEEDED = MemberState(has_succeeded=True, ended_at=200.0)
GONE = MemberState()
DONE = Completion("", "", 200.0)


class FakeRecords(CompletionRecords):
    """Completion records with manually set contents."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Completion]] = {}
        self.asked: list[str] = []
        self.news: list[str] = []

    def load_completions(self, group: str) -> dict[str, Completion]:
        self.asked.append(group)
        return self.known.get(group, {})

    def mark_changed(self, namespace: str) -> None:
        self.news.append(namespace)


class Harness:
    """Gangs of one tenant; `seen` has the states of members by UID, waiting by default."""

    def __init__(self, *members: GangMember, clock: Any = SYSTEM_CLOCK) -> None:
        self.seen: dict[str, MemberState] = {}
        self.looked: list[str] = []
        self.bounds: Callable[[PoolKey | None], EvictionTerms] = lambda _pool: EvictionTerms(20.0, 60.0)
        self.memory = FakeRecords()
        self.found: dict[str, Object] = {}
        self.foreign: set[PoolKey] = set()
        self.namespaces: dict[str, dict[str, str]] = {}
        self.gangs = TenantGangs(
            TENANT,
            state_of=self.member_state,
            terms=cast(Any, self),
            expected_run=self.expected_run,
            completion_records=self.memory,
            look=lambda reference: self.found.get(reference.name),
            namespaces=lambda: self.namespaces,
            clock=clock,
        )
        for one in members:
            self.gangs.put_member(one)

    def eviction_terms(self, pool: PoolKey | None) -> EvictionTerms:
        return self.bounds(pool)

    def is_foreign(self, pool: PoolKey) -> bool:
        return pool in self.foreign

    def member_state(self, member: GangMember) -> MemberState:
        self.looked.append(member.uid)
        return self.seen.get(member.uid, WAITING)

    def expected_run(self, _member: GangMember) -> float | None:
        return None

    def only_gang(self) -> Gang:
        gangs, holds = self.gangs.build_gangs()
        assert holds == []
        assert len(gangs) == 1
        return gangs[0]

    def pending_gangs(self) -> PendingReport:
        gangs, holds = self.gangs.build_gangs()
        assert gangs == []
        assert len(holds) == 1
        return holds[0]


def make_workers(number: int, *, minimum: int | None = None, **other: object) -> list[GangMember]:
    marks = [gang_marks(minimum=number if minimum is None else minimum, rank=rank) for rank in range(number)]
    return [make_member(f"u{rank}", marks=marks[rank], **other) for rank in range(number)]

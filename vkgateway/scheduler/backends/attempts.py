"""The attempts of all gangs at another scheduler: which to create or release, and what follows for pods.

The same for every mode. Each step depends only on what exists now, so that it can be interrupted and repeated:

1. A waiting gang without an attempt gets one. No pod exists in the compute cluster.
2. An attempt is admitted: all its pods are admitted, each to its slot.
3. An attempt is evicted, or is missing while pods run: the pods get their notice, and are deleted at the deadline.
4. No pod of an evicted attempt is left: the attempt is deleted, which frees its resources.
5. A waiting gang without an attempt gets one.

A scheduler that evicts single pods may leave a gang with less than its minimum. Its other pods are then deleted, too,
so that they do not hold resources for nothing. Pods that a tenant deleted or a node lost have no such effect.

Where the scheduler has no object for a gang, a mode implies the attempts from the gangs themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property

from msgspec.structs import replace

from vkgateway.api.objects import Object
from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.backends.amounts import sum_requests
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Wait
from vkgateway.scheduler.backends.gang_split import (
    AttemptPods,
    GangSplitter,
    assign_slots,
    displaced_pods,
    free_slots,
    min_members,
)
from vkgateway.scheduler.backends.guarantee import UsageSums
from vkgateway.scheduler.backends.mode import ModeInput, ModeResult, Return, SchedulingMode, Started
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.places import queue_places, queue_usages
from vkgateway.scheduler.backends.pod_sets import count_pod_sets
from vkgateway.scheduler.core.decisions import PERMANENT_REASONS, Admit, Decisions, Evict, PendingReason, PendingReport
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.preemption.notice import notice_seconds
from vkgateway.scheduler.core.snapshot import PLACED, WAITING, Gang, Pod, PoolKey, Snapshot

NOT_ASKED = Wait(PendingReason.ROOM, "is passed to the scheduler of the pool")
UNKNOWN = Wait(PendingReason.ROOM, "the scheduler of the pool has not considered it yet")
ENDING_PODS = Wait(PendingReason.ROOM, "waits until its earlier pods have terminated")
FULL_NODES = Wait(PendingReason.EVICTION, "starts when earlier pods on its nodes have terminated")
RETRY = Wait(PendingReason.ROOM, "its pods were evicted; it is passed to the scheduler of the pool again in a moment")
UNUSABLE_NODES = Wait(PendingReason.ROOM, "the scheduler of the pool assigned nodes that do not exist in the pool")
NEXT_ATTEMPT = Wait(
    PendingReason.ROOM, "is passed to the scheduler of the pool again when its last attempt is released"
)
_MAY_BE_BUDGET = frozenset({PendingReason.ROOM, PendingReason.QUOTA, PendingReason.INFEASIBLE})
"""Codes of a wait that a used-up budget may cause: schedulers see a smaller queue."""
TOO_MANY_SHAPES = "its pods have {shapes} different sizes; the scheduler of the pool accepts at most {most} in one gang"


@dataclass(slots=True)
class _Plan:
    """Decisions and writes so far."""

    admits: list[Admit] = field(default_factory=list)
    evicts: list[Evict] = field(default_factory=list)
    creates: list[Object] = field(default_factory=list)
    releases: list[Attempt] = field(default_factory=list)
    wanted: set[str] = field(default_factory=set)
    """Names of attempts that a gang has or needs."""
    started: list[Started] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)


def plan_attempts(mode: SchedulingMode, given: ModeInput) -> ModeResult:
    """Return the decisions on pods and the writes to the scheduler that follow from the current state."""
    splitter = GangSplitter(mode, given)
    if implied := mode.implied_attempts(given, splitter):
        given = replace_fields(given, attempts={**given.attempts, **implied})
    planner = _Planner(mode, given, splitter)
    for gang in given.snapshot.gangs:
        planner.plan_gang(gang)
    return planner.result()


class _Planner:
    """Planner of all gangs of one mode in one compute cluster."""

    def __init__(self, mode: SchedulingMode, given: ModeInput, splitter: GangSplitter) -> None:
        self._mode = mode
        self._given = given
        self._plan = _Plan()
        self._holds = HoldReports(given)
        self._sums = UsageSums(given.snapshot, given.specs)
        self._gang_by_uid: dict[str, str] = {}
        """Gang by the UID of its attempt."""
        self._splitter = splitter
        self._room = NodeRoom(given.snapshot)
        self._displaced: set[str] = set()
        """UIDs of the pods that are evicted because their attempts have no slots for them any more."""
        self._loss_resources = {pool.key: pool.loss_resource for pool in given.snapshot.pools}
        names = {attempt_name(gang.tenant, gang.id): gang.id for gang in given.snapshot.gangs}
        for attempt in given.attempts.values():
            if attempt.name in names:
                self._gang_by_uid[attempt.uid] = names[attempt.name]

    def plan_gang(self, gang: Gang) -> None:
        """Plan one gang."""
        if gang.tenant not in self._given.known_tenants:
            if any(pod.state is WAITING for pod in gang.pods):
                self._holds.add(gang, UNKNOWN.code, UNKNOWN.message)
            return
        part, surplus = self._splitter.split_gang(gang)
        # The min members may have ended before the surplus: nothing is left to start or to reserve for them.
        if part.request.pods and not self._plan_part(part):
            attempt = self._given.attempts.get(part.request.name)
            for each in surplus:
                self._plan.wanted.add(each.request.name)
                if each.placed:
                    self._evict(each, whole=True, attempt=attempt, at_once=gang.id in self._given.breaches)
            return
        self._plan_surplus(gang, surplus, started=len(part.request.pods))

    def _plan_surplus(self, gang: Gang, surplus: Sequence[AttemptPods], *, started: int) -> None:
        """Plan the pods beyond the minimum of a running gang, one by one, up to its maximum."""
        waits: list[Wait] = []
        for part in surplus:
            attempt = self._given.attempts.get(part.request.name)
            if attempt is None and gang.maximum is not None and started >= gang.maximum:
                waits.append(Wait(PendingReason.MAXIMUM, f"has {started} pods and a maximum of {gang.maximum}"))
                continue
            started += 1
            if not self._plan_part(part) and part.waiting:
                waits.append(NOT_ASKED if attempt is None else self._find_wait(part, attempt))
        if waits:
            self._holds.add(gang, waits[0].code, waits[0].message)

    def _plan_part(self, part: AttemptPods) -> bool:
        """Plan the pods of one attempt; return whether it is admitted and its pods may run."""
        request = part.request
        attempt = self._given.attempts.get(request.name)
        self._plan.wanted.add(request.name)
        is_broken = self._is_broken(part, attempt)
        if attempt is not None and attempt.state is AttemptState.ADMITTED and not is_broken:
            return self._run(part, attempt)
        if part.placed:
            # The scheduler evicted the attempt or a part of it, or took its reservation away without a word.
            self._evict(part, whole=not request.is_surplus, attempt=attempt, at_once=is_broken)
        self._prepare(part, attempt, is_broken=is_broken)
        return False

    def _is_broken(self, part: AttemptPods, attempt: Attempt | None) -> bool:
        """Return whether the scheduler evicted pods of a gang, and too few are left for it to work."""
        gang = part.request.gang
        breach = self._given.breaches.get(gang.id)
        if part.request.is_surplus or breach is None or (attempt is not None and attempt.uid != breach.attempt):
            return False
        return not has_min_members(gang, [pod for pod in gang.pods if pod.state is PLACED])

    def _prepare(self, part: AttemptPods, attempt: Attempt | None, *, is_broken: bool) -> None:
        """Take the next step to the start of pods that may not start now, and report why they wait."""
        if part.holding:
            self._holds.add_part(part, ENDING_PODS)
        elif attempt is None:
            self._ask(part)
        elif attempt.state is AttemptState.DELETING:
            self._holds.add_part(part, NEXT_ATTEMPT)
        elif attempt.state is AttemptState.EVICTED or is_broken or self._is_outdated(part, attempt):
            self._release(part, attempt)
        else:
            self._holds.add_part(part, self._find_wait(part, attempt), attempt)

    def _run(self, part: AttemptPods, attempt: Attempt) -> bool:
        """Admit the waiting pods of an admitted attempt to its free slots."""
        if not part.holding and self._is_outdated(part, attempt):
            self._release(part, attempt)
            return False
        nodes = assign_slots(attempt.slots, part.holding, part.waiting, returned=attempt.returned)
        # A gang starts as a whole: no pod of an earlier start holds a slot, and all pods have one.
        starts = not part.holding and len(nodes) == len(part.waiting)
        if not part.placed and not starts:
            self._holds.add_part(part, ENDING_PODS)
            return False
        if unusable := self._room.unusable_nodes(part.request.gang.pools[0], nodes.values()):
            return self._leave_nodes(part, attempt, unusable)
        if nodes:
            gang = part.request.gang
            pods = [pod for pod in part.waiting if pod.uid in nodes]
            if full := self._room.full_nodes(gang.pools[0], pods, nodes):
                self._evict_displaced(gang, full)
                self._holds.add_part(part, FULL_NODES)
                return bool(part.placed)
            self._room.start(gang.pools[0], pods, nodes)
            borrowed = not self._sums.fits_guarantee(gang, pods)
            self._sums.count(gang.tenant, gang.pools[0], pods, borrowed=borrowed)
            request = replace_fields(part.request, is_borrowed=borrowed)
            marks = {pod.uid: self._mode.marks(request, pod) for pod in pods}
            self._plan.admits.append(
                Admit(gang=gang.id, pool=gang.pools[0], nodes=nodes, borrowed=borrowed, marks=marks)
            )
        if not part.waiting and not attempt.is_ready:
            self._plan.started.append(Started(attempt, tuple(pod.uid for pod in part.placed)))
        self._return_slots(part, attempt)
        return True

    def _return_slots(self, part: AttemptPods, attempt: Attempt) -> None:
        """Return the slots of pods that have ended, unless the gang needs replacements of them to have its minimum.

        A replacement that comes nevertheless is surplus, as it has no slot.
        """
        pods = (*part.holding, *part.waiting)
        is_whole = part.request.is_surplus or has_min_members(part.request.gang, pods)
        if not self._mode.takes_slots_back or not is_whole:
            return
        free = free_slots(attempt.slots, pods)
        slots = {name: max(number, attempt.returned.get(name, 0)) for name, number in free.items()}
        if any(number > attempt.returned.get(name, 0) for name, number in slots.items()):
            self._plan.returns.append(Return(attempt, slots))

    def _leave_nodes(self, part: AttemptPods, attempt: Attempt, nodes: Iterable[str]) -> bool:
        """Ask for other nodes than those that were assigned and cannot be used now.

        The scheduler moves the slots of nodes that were deleted, but not of those that were cordoned.
        """
        if not any(self._room.is_known(part.request.gang.pools[0], node) for node in nodes):
            self._holds.add_part(part, UNUSABLE_NODES)
            return bool(part.placed)
        if not part.holding:
            self._release(part, attempt)
            return False
        self._holds.add_part(part, NEXT_ATTEMPT)
        if part.placed and not part.request.is_surplus and not has_min_members(part.request.gang, part.placed):
            self._evict(part, whole=True)
        return bool(part.placed)

    def _evict_displaced(self, gang: Gang, nodes: Collection[str]) -> None:
        """Evict the pods on nodes that a gang needs, and where their attempts have no slots any more."""
        for other in self._given.snapshot.gangs:
            core, surplus = self._splitter.split_gang(other)
            for part in (core, *surplus):
                attempt = self._given.attempts.get(part.request.name)
                if attempt is None or attempt.state is not AttemptState.ADMITTED:
                    continue
                displaced = displaced_pods(attempt.slots, part.placed)
                pods = tuple(pod for pod in displaced if pod.node in nodes and pod.uid not in self._displaced)
                if pods:
                    self._displaced.update(pod.uid for pod in pods)
                    self._evict(replace_fields(part, placed=pods), whole=False, makes_room_for=gang.id)

    def _find_wait(self, part: AttemptPods, attempt: Attempt) -> Wait:
        """Return why a pending attempt waits. Not every scheduler tells a limit or a budget from a lack of room."""
        wait = attempt.wait or UNKNOWN
        if wait.code in _MAY_BE_BUDGET and (
            stopped := self._sums.budget_wait(part.request.gang, part.waiting, self._given.now, by_queue=True)
        ):
            return stopped
        over = self._sums.over_limit(part.request.gang, part.waiting) if wait.code is PendingReason.ROOM else ""
        return Wait(PendingReason.QUOTA, f"its start would exceed your limit of {over}") if over else wait

    def _is_outdated(self, part: AttemptPods, attempt: Attempt) -> bool:
        """Return whether an attempt has other slots than for the pods that wait, or is for an incomplete gang."""
        is_other = attempt.digest != self._mode.digest(part.request) or any(attempt.returned.values())
        return is_other or not part.is_complete

    def _ask(self, part: AttemptPods) -> None:
        """Create an attempt for waiting pods, unless pods are missing."""
        gang = part.request.gang
        if not part.waiting:
            return
        breach = self._given.breaches.get(gang.id)
        if breach is not None and self._given.now < breach.last_pod + self._mode.retry_seconds:
            self._holds.add_part(part, RETRY)
            return
        if not part.is_complete:
            self._holds.add(gang, PendingReason.MEMBERS, _members_text(gang, part.waiting))
            return
        shapes = len(count_pod_sets(part.waiting))
        if shapes > self._mode.max_pod_sets:
            text = TOO_MANY_SHAPES.format(shapes=shapes, most=self._mode.max_pod_sets)
            self._holds.add(gang, PendingReason.INFEASIBLE, text)
            return
        self._plan.creates.append(self._mode.attempt_object(part.request))
        self._holds.add_part(part, NOT_ASKED)

    def _evict(
        self,
        part: AttemptPods,
        *,
        whole: bool,
        attempt: Attempt | None = None,
        makes_room_for: str = "",
        at_once: bool = False,
    ) -> None:
        gang, now = part.request.gang, self._given.now
        preemptor = self._gang_by_uid.get(attempt.preemptor, "") if attempt is not None else makes_room_for
        unit = self._loss_resources[gang.pools[0]]
        self._plan.evicts.append(
            Evict(
                gang=gang.id,
                pods=tuple(pod.uid for pod in part.placed),
                whole=whole,
                makes_room_for=preemptor,
                deadline=now if at_once else now + notice_seconds(gang, part.placed, now),
                lost=sum(
                    max(0.0, now - max(pod.since, gang.checkpoint)) * pod.shape.amount_of(unit) for pod in part.placed
                )
                / 1000,
            )
        )

    def _release(self, part: AttemptPods, attempt: Attempt) -> None:
        self._plan.releases.append(attempt)
        self._holds.add_part(part, NEXT_ATTEMPT)

    def result(self) -> ModeResult:
        """Return everything that was planned."""
        plan, holds = self._plan, tuple(self._holds.with_places())
        return ModeResult(
            decisions=Decisions(admits=tuple(plan.admits), evicts=tuple(plan.evicts), holds=holds),
            creates=tuple(plan.creates),
            releases=(*plan.releases, *_leftovers(self._given, plan.wanted)),
            pool_objects=tuple(_pool_objects(self._mode, self._given)),
            started=tuple(plan.started),
            returns=tuple(plan.returns),
        )


def _pool_objects(mode: SchedulingMode, given: ModeInput) -> Iterator[Object]:
    for pool in given.snapshot.pools:
        quotas = [quota for quota in given.snapshot.quotas if quota.pool == pool.key]
        gangs = [gang for gang in given.snapshot.gangs if gang.pools[0] == pool.key]
        yield from mode.pool_objects(pool, given.specs[pool.key], quotas, gangs)


def _leftovers(given: ModeInput, wanted: Collection[str]) -> Iterator[Attempt]:
    """Yield the attempts of gangs that have ended or left the pool, and of tenants that were removed."""
    for attempt in given.attempts.values():
        known = attempt.tenant in given.known_tenants or attempt.tenant in given.removed_tenants
        if known and attempt.name not in wanted and attempt.state is not AttemptState.DELETING:
            yield attempt


def _members_text(gang: Gang, waiting: Iterable[Pod]) -> str:
    return f"{len(list(waiting))} of {min_members(gang)} pods created"


class HoldReports:
    """Reports of one cycle, in the order in which they were added."""

    def __init__(self, given: ModeInput) -> None:
        self._given = given
        self._reports: list[tuple[PendingReport, str]] = []
        """Each with the name of its pending attempt; empty: none."""
        self._pending: dict[str, tuple[Attempt, MilliResources]] = {
            attempt.name: (attempt, {}) for attempt in given.attempts.values() if _is_queued(attempt)
        }
        """Pending attempts by name, each with the sum of its requests; those of unknown tenants count without."""

    def add(self, gang: Gang, code: PendingReason, message: str) -> None:
        """Report why a gang waits."""
        self._reports.append((_report(gang, code, message), ""))

    def add_part(self, part: AttemptPods, wait: Wait, attempt: Attempt | None = None) -> None:
        """Report why the pods of an attempt wait. The wait of surplus is reported with that of the other surplus."""
        name = attempt.name if attempt is not None else ""
        if attempt is not None and name in self._pending:
            self._pending[name] = attempt, sum_requests(part.request.pods)
        if part.waiting and not part.request.is_surplus:
            self._reports.append((_report(part.request.gang, wait.code, wait.message), name))

    def with_places(self) -> Iterator[PendingReport]:
        """Yield the reports, each with the place of its gang."""
        usages = queue_usages(self._given.snapshot, self._given.specs) if self._pending else {}
        places = queue_places(self._pending.values(), usages)
        for report, name in self._reports:
            place = places.get(name, 0)
            yield replace(report, place=place) if place else report


def _is_queued(attempt: Attempt) -> bool:
    """Return whether an attempt has a place: the scheduler has an object for it, and starts it some time."""
    never = attempt.wait is not None and attempt.wait.code in PERMANENT_REASONS
    return attempt.state is AttemptState.PENDING and bool(attempt.uid) and not never


def _report(gang: Gang, code: PendingReason, message: str) -> PendingReport:
    return PendingReport(gang=gang.id, code=code, message=message, pool=gang.pools[0])


_NodeKey = tuple[PoolKey, str]


class NodeRoom:
    """Free devices of each node, in thousandths.

    A scheduler may move the slot of a pod whose node is not ready, and give its place to another gang, while the pod
    still runs there.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._governed = {pool.key: pool.governed for pool in snapshot.pools}
        self._usable = {(pool.key, node.name) for pool in snapshot.pools for node in pool.nodes if node.usable}

    @cached_property
    def _free(self) -> dict[_NodeKey, MilliResources]:
        """Free devices, computed when the first gang of a cycle starts."""
        free: dict[_NodeKey, MilliResources] = {
            (pool.key, node.name): {
                name: node.allocatable.get(name, 0) - node.used.get(name, 0) for name in pool.governed
            }
            for pool in self._snapshot.pools
            for node in pool.nodes
        }
        for gang in self._snapshot.gangs:
            for pod in gang.pods:
                if pod.pool is not None and pod.node:
                    self._take(free.get((pod.pool, pod.node)), pod.pool, pod)
        return free

    def unusable_nodes(self, pool: PoolKey, nodes: Iterable[str]) -> set[str]:
        """Return the nodes on which no pod can start now; an empty name means any node."""
        return {node for node in nodes if node and (pool, node) not in self._usable}

    def is_known(self, pool: PoolKey, node: str) -> bool:
        """Return whether a node exists in a pool."""
        return (pool, node) in self._free

    def full_nodes(self, pool: PoolKey, pods: Iterable[Pod], nodes: Mapping[str, str]) -> set[str]:
        """Return the nodes that have too few free devices for the pods that would start there, by UID."""
        wanted: dict[str, MilliResources] = {}
        for pod in pods:
            amounts = wanted.setdefault(nodes[pod.uid], {})
            for name, amount in self._devices(pool, pod):
                amounts[name] = amounts.get(name, 0) + amount
        return {
            node
            for node, amounts in wanted.items()
            if node and any(amount > self._free.get((pool, node), {}).get(name, 0) for name, amount in amounts.items())
        }

    def start(self, pool: PoolKey, pods: Iterable[Pod], nodes: Mapping[str, str]) -> None:
        """Count pods that start."""
        for pod in pods:
            self._take(self._free.get((pool, nodes[pod.uid])), pool, pod)

    def _take(self, free: MilliResources | None, pool: PoolKey, pod: Pod) -> None:
        if free is not None:
            for name, amount in self._devices(pool, pod):
                free[name] -= amount

    def _devices(self, pool: PoolKey, pod: Pod) -> list[tuple[str, int]]:
        governed = self._governed.get(pool, ())
        return [(name, amount) for name, amount in pod.shape.requests if name in governed]

"""One gang of the arbiter's snapshot, built from its members."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from vkgateway.api.objects import Object
from vkgateway.api.requests import is_extended
from vkgateway.kube.clock import Clock
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import Band, Gang, Pod, PodState, PoolKey, PreemptionPlan, Shape
from vkgateway.scheduler.gangs import GangMarks, MarkError, Reference, merge_marks
from vkgateway.scheduler.gangs.job_pods import JOB_KIND
from vkgateway.scheduler.gangs.jobset_lws import read_sibling_job
from vkgateway.scheduler.service.completions import Completion, MinimumReduction, reduce_minimum
from vkgateway.scheduler.service.lost_members import GangMemory
from vkgateway.scheduler.service.member import GangMember, MemberState, gang_id
from vkgateway.scheduler.service.peer_constraints import PeerSelectors

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration


class MemberBackoff(NamedTuple):
    """Exclusion of a member `until` a time (seconds since the epoch), with the reason."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class EvictionTerms:
    """Terms of evictions from a pool, in seconds."""

    notice: float
    grace_max: float
    minimum_run: float = 0.0
    """Duration after the start within which a pod is evicted only if no other victim suffices."""
    restart_max: float = 3600.0
    """Maximum restart cost for each device of a gang: a higher declared cost has no effect."""
    brief_run: float = 0.0
    """Pods that ran for less time get `brief_notice` instead of `notice`."""
    brief_notice: float = 0.0


@dataclass(slots=True)
class MemberGroup:
    """Members of one gang, and what was last built from them."""

    members: dict[str, GangMember]
    completions: dict[str, Completion] = field(default_factory=dict)
    """Succeeded and deleted pods by name, as long as another member exists."""
    first_created: dict[str, float] = field(default_factory=dict)
    """Time of the first pod of each controller, by the controller's UID (seconds since the epoch)."""
    is_loaded: bool = False
    """Whether the completions of before a restart are included."""
    plan: PreemptionPlan | None = None
    gang: Gang | None = None
    pending_reason: PendingReport | None = None
    is_fresh: bool = False
    memory: GangMemory | None = None
    """What the gang was before it lost members. None: a pod without a gang, or an earlier attempt of the gang."""


class GangBuilder:
    """Builder of one tenant's gangs. `backoffs` are members that must not start now."""

    def __init__(
        self,
        tenant: str,
        *,
        state_of: Callable[[GangMember], MemberState],
        terms: Arbitration,
        expected_run: Callable[[GangMember], float | None],
        backoffs: Mapping[str, MemberBackoff],
        look: Callable[[Reference], Object | None],
        peer_selectors: PeerSelectors,
        clock: Clock,
    ) -> None:
        self._tenant = tenant
        self._clock = clock
        self._peer_selectors = peer_selectors
        self._state_of = state_of
        self._terms = terms
        self._expected_run = expected_run
        self._backoffs = backoffs
        self._look = look

    def build_group(self, name: str, group: MemberGroup) -> tuple[Gang | None, PendingReport | None]:
        """Return the gang and its pending reason. Running pods count even if no other pod of the gang may start."""
        members = sorted(group.members.values(), key=lambda member: member.uid)
        states = {member.uid: self._state_of(member) for member in members}
        present = [member for member in members if states[member.uid].state is not None]
        governed = [member for member in present if member.governed]
        if not governed:
            return self._gang_without_pods(group, states), None
        in_several_pools = not _common_pools(_with_pools(governed))
        gang = gang_id(self._tenant, name)
        marks, report = _agree_marks(gang, name, present)
        report = report or self._unreachable_reason(gang, governed, states)
        pods = [
            self._build_pod(member, states[member.uid], in_several_pools=in_several_pools)
            for member in governed
            if states[member.uid].state is not PodState.WAITING or (report is None and self._is_ready(member))
        ]
        if not pods:
            return self._gang_without_pods(group, states), report or self._not_ready_reason(gang, governed)
        roles = Counter(member.marks.role for member in present if not member.governed and member.marks is not None)
        reduction = reduce_minimum(
            members,
            states,
            done=group.completions.values(),
            first=group.first_created,
            marks=marks,
            siblings=self._ended_jobs(marks, namespace=members[0].key[0]),
        )
        built = self._build_gang(
            gang, governed, pods, marks=marks, ungoverned=roles, reduction=reduction, plan=group.plan
        )
        if group.memory is not None:
            built = group.memory.note_pods(built, members, states, self._look, self._clock.time())
        return built, report

    def _gang_without_pods(self, group: MemberGroup, states: Mapping[str, MemberState]) -> Gang | None:
        """Return the gang while it has no pods that may start, if its controller is expected to re-create it."""
        if group.memory is None:
            return None
        group.memory.note_absence(states, self._clock.time())
        return self.absent_gang(group.memory)

    def absent_gang(self, memory: GangMemory) -> Gang | None:
        """Return a gang without pods whose controller is expected to re-create it. Pools of other schedulers have no
        places to hold.
        """
        found = memory.gang_without_pods(self._look, self._clock.time())
        return None if found is None or any(map(self._terms.is_foreign, found.pools)) else found

    def _ended_jobs(self, marks: GangMarks, *, namespace: str) -> Iterator[GangMarks]:
        """Yield what the gang's Jobs say of which pods succeeded, whether or not pods of them exist."""
        for jobs in marks.sibling_jobs:
            for index in range(jobs.replicas):
                reference = Reference(*JOB_KIND, namespace, f"{jobs.prefix}-{index}")
                found = self._look(reference)
                if found is None or not (found.get("status") or {}).get("succeeded"):
                    continue
                with contextlib.suppress(MarkError):
                    if (said := read_sibling_job(found, reference, jobs)) is not None:
                        yield said

    def _unreachable_reason(
        self, gang: str, members: list[GangMember], states: Mapping[str, MemberState]
    ) -> PendingReport | None:
        """Return why a waiting member can run on no virtual node."""
        for member in members:
            reason = member.unreachable_reason
            if not reason and member.peer_constraints is not None and not self._is_foreign(member):
                reason = member.peer_constraints.fault
            if reason and states[member.uid].state is PodState.WAITING:
                message = f"pod {'/'.join(member.key)} can run on no virtual node: {reason}"
                return PendingReport(gang=gang, code=PendingReason.INFEASIBLE, message=message)
        return None

    def _is_foreign(self, member: GangMember) -> bool:
        """Return whether a member can only run where another scheduler keeps its constraints about other pods."""
        return bool(member.pools) and all(map(self._terms.is_foreign, member.pools))

    def _build_pod(self, member: GangMember, state: MemberState, *, in_several_pools: bool) -> Pod:
        """Return a pod of the snapshot; `in_several_pools` says that no pool suits all pods of the gang."""
        marks, verdict = member.marks, state.verdict
        assert state.state is not None
        pod = Pod(
            uid=member.uid,
            shape=self._build_shape(member, terminating=state.state is PodState.ENDING),
            rank=marks.rank if marks is not None else 0,
            role=marks.role if marks is not None else "",
            state=state.state,
            pools=member.pools if in_several_pools else (),
        )
        if verdict is None:
            return pod
        return replace(
            pod,
            pool=verdict.pool,
            node=verdict.node,
            borrowed=bool(verdict.borrowed),
            since=verdict.since,
            deadline=verdict.deadline,
            evicted_for=verdict.evicted_for,
            limit_reached=verdict.has_reached_limit,
            behind=verdict.behind,
        )

    def _build_shape(self, member: GangMember, *, terminating: bool) -> Shape:
        """Return a member's shape with the hard constraints about other pods that concern it."""
        if not self._peer_selectors or self._is_foreign(member):
            return member.shape
        peers = self._peer_selectors.rules_for(
            member.peer_constraints, member.key[0], member.labels, terminating=terminating
        )
        return member.shape if peers is None else replace(member.shape, peers=peers)

    def _is_ready(self, member: GangMember) -> bool:
        return not member.waiting_gates and member.uid not in self._backoffs

    def _not_ready_reason(self, gang: str, members: list[GangMember]) -> PendingReport | None:
        gates = sorted({gate for member in members for gate in member.waiting_gates})
        if gates:
            message = f"waits for other scheduling gates: {', '.join(gates)}"
            return PendingReport(gang=gang, code=PendingReason.MEMBERS, message=message)
        left = next((self._backoffs[member.uid] for member in members if member.uid in self._backoffs), None)
        return PendingReport(gang=gang, code=PendingReason.MEMBERS, message=left.why) if left is not None else None

    def _terms_in(self, pools: list[PoolKey]) -> EvictionTerms:
        """Return the terms for a gang in several pools: the most generous value of each."""
        each = [self._terms.eviction_terms(pool) for pool in pools] or [self._terms.eviction_terms(None)]
        return EvictionTerms(
            max(one.notice for one in each),
            max(one.grace_max for one in each),
            max(one.minimum_run for one in each),
            max(one.restart_max for one in each),
            min(one.brief_run for one in each),
            max(one.brief_notice for one in each),
        )

    def _build_gang(
        self,
        gang: str,
        governed: list[GangMember],
        pods: list[Pod],
        *,
        marks: GangMarks,
        ungoverned: Counter[str],
        reduction: MinimumReduction,
        plan: PreemptionPlan | None,
    ) -> Gang:
        """Return a gang of the snapshot.

        `ungoverned` counts, by role, members that the arbiter does not place; `reduction` are pods that ended for good.
        """
        pools = _common_pools(_with_pools(governed)) or _union_of_pools(governed)
        running = dict.fromkeys(pod.pool for pod in pods if pod.pool is not None)
        bounds = self._terms_in([*running] or ([*pools] if any(pod.pools for pod in pods) else [*pools[:1]]))
        units = sum(amount for member in governed for name, amount in member.shape.requests if is_extended(name)) / 1000
        needed = {
            role: number - ungoverned[role] - reduction.roles[role] for role, number in marks.role_minimum.items()
        }
        return Gang(
            id=gang,
            tenant=self._tenant,
            pods=tuple(pods),
            pools=pools,
            band=Band.LOW if any(member.band is Band.LOW for member in governed) else Band.GUARANTEED,
            priority=max(member.priority for member in governed),
            preempts=all(member.preempts for member in governed),
            created=min(member.created for member in governed),
            minimum=max(1, marks.minimum - ungoverned.total() - reduction.total),
            role_minimum={role: number for role, number in needed.items() if number > 0},
            elastic=marks.elastic,
            maximum=max(1, marks.maximum - ungoverned.total()) if marks.maximum is not None else None,
            required_level=marks.required_level,
            preferred_level=marks.preferred_level,
            run_limit=marks.run_limit,
            checkpoint=marks.checkpoint,
            restart_cost=min(marks.restart_cost, bounds.restart_max * units),
            minimum_run=bounds.minimum_run,
            expected_run=self._expected_run(governed[0]) if marks.run_limit is None else None,
            notice=bounds.notice,
            brief_run=bounds.brief_run,
            brief_notice=bounds.brief_notice,
            grace=min(bounds.grace_max, max(member.grace for member in governed)),
            plan=plan,
        )


def _agree_marks(gang: str, group: str, members: list[GangMember]) -> tuple[GangMarks, PendingReport | None]:
    """Return the common marks of all members, and why the gang waits if they are invalid or incomplete.

    Marks that contradict each other leave the strictest ones, so that a running gang is not taken for single pods.
    """
    fault = next((member.fault for member in members if member.fault), "")
    sound = [member for member in members if not member.mark_warning] or members
    if not fault:
        try:
            marks = merge_marks([member.marks for member in sound if member.marks is not None])
        except MarkError as error:
            fault = str(error)
        else:
            known = [marks, *(member.marks for member in members if member.mark_warning and member.marks is not None)]
            marks = replace(
                marks,
                checkpoint=max(each.checkpoint for each in known),
                restart_cost=max(each.restart_cost for each in known),
            )
            return marks, _missing_reference(gang, marks)
    valid = (member.marks for member in sound if member.marks is not None)
    marks = max(valid, key=lambda each: each.minimum, default=GangMarks(group=group))
    return marks, PendingReport(gang=gang, code=PendingReason.INVALID, message=fault)


def _missing_reference(gang: str, marks: GangMarks) -> PendingReport | None:
    if marks.missing_reference is None:
        return None
    message = f"{marks.missing_reference} does not exist; it has the number of pods of the gang"
    if marks.is_unserved:
        kind = marks.missing_reference.object_kind
        message += f": this cluster does not serve the kind {kind}; install it, or remove the mark from the pods"
    return PendingReport(gang=gang, code=PendingReason.MEMBERS, message=message)


def _with_pools(members: list[GangMember]) -> list[GangMember]:
    """Return the members that can use any pool; all members if none can."""
    return [member for member in members if member.pools] or members


def _union_of_pools(members: list[GangMember]) -> tuple[PoolKey, ...]:
    """Return the pools that any member may use, in the members' order."""
    return tuple(dict.fromkeys(pool for member in members for pool in member.pools))


def _common_pools(members: list[GangMember]) -> tuple[PoolKey, ...]:
    """Return the pools that all members may use, in the first one's order."""
    first, *rest = members
    return tuple(pool for pool in first.pools if all(pool in other.pools for other in rest))

"""A tenant's gangs as the arbiter's snapshot needs them, rebuilt from their members only after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from vkgateway.arbiter.decisions import PendingReason, PendingReport
from vkgateway.arbiter.snapshot import Band, Gang, Pod, PodState, PoolKey, PreemptionPlan
from vkgateway.model.requests import is_extended
from vkgateway.sync.admission.completions import Completion, MinimumReduction, completion_of, reduce_minimum
from vkgateway.sync.admission.member import GangMember, gang_id
from vkgateway.sync.admission.member_state import MemberState
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.gangs import GangMarks, MarkError, merge_marks

_NO_STATE: Final = MemberState()
_MOST_DONE: Final = 10_000
"""Maximum recorded completions of a gang; of more, the first are dropped, as the minimum is down to one by then."""


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


class CompletionStore(Protocol):
    """Store of succeeded members that survives restarts."""

    def load_completions(self, group: str, /) -> Mapping[str, Completion]:
        """Return a gang's completions by pod name."""

    def mark_changed(self, namespace: str, /) -> None:
        """Record that the completions of a gang in this namespace changed."""


class MemberStates(Protocol):
    """Observer of members."""

    def member_state(self, member: GangMember) -> MemberState:
        """Return the current state of a member."""


class TermsSource(Protocol):
    """The arbitration, as far as it defines the terms of evictions."""

    def eviction_terms(self, pool: PoolKey | None) -> EvictionTerms:
        """Return the terms of evictions from a pool."""


class RunForecast(Protocol):
    """Forecast of run times."""

    def expected_run(self, member: GangMember) -> float | None:
        """Return the seconds that a pod will run; None if unknown."""


class _NoCompletionStore:
    def load_completions(self, _group: str) -> Mapping[str, Completion]:
        return {}

    def mark_changed(self, _namespace: str) -> None:
        pass


@dataclass(slots=True)
class _Group:
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


class TenantGangs:
    """All gangs of one tenant."""

    def __init__(
        self,
        tenant: str,
        *,
        states: MemberStates,
        terms: TermsSource,
        forecast: RunForecast | None = None,
        completion_store: CompletionStore | None = None,
    ) -> None:
        self._tenant = tenant
        self._completion_store = completion_store or _NoCompletionStore()
        self._forecast = forecast
        self._states = states
        self._terms = terms
        self._members: dict[str, GangMember] = {}
        self._uids_by_pod: dict[Key, set[str]] = {}
        self._groups: dict[str, _Group] = {}
        self.images: Counter[str] = Counter()
        """Number of pods by requested image."""
        self.backoffs: dict[str, MemberBackoff] = {}
        """Members that were admitted and that the tenant's scheduler did not bind."""

    def __iter__(self) -> Iterator[GangMember]:
        return iter(list(self._members.values()))

    def find_member(self, uid: str) -> GangMember | None:
        """Return the member with a UID."""
        return self._members.get(uid)

    def members_named(self, key: Key) -> list[GangMember]:
        """Return the members with a pod's name: one, and for a while earlier pods of that name."""
        return [self._members[uid] for uid in self._uids_by_pod.get(key, ())]

    def members_of(self, gang: str) -> list[GangMember]:
        """Return the members of a gang by its id."""
        group = self._groups.get(gang.removeprefix(f"{self._tenant}/"))
        return list(group.members.values()) if group is not None else []

    def put_member(self, member: GangMember) -> None:
        """Add or replace a pod that was read."""
        if member.uid in self._members:
            self.drop_member(member.uid)
        self._members[member.uid] = member
        self.images.update(member.shape.images)
        self._uids_by_pod.setdefault(member.key, set()).add(member.uid)
        group = self._groups.setdefault(member.gang_group, _Group({}))
        group.members[member.uid] = member
        if member.marks is not None and (controller := member.marks.controller_uid):
            group.first_created[controller] = min(member.created, group.first_created.get(controller, member.created))
        group.completions.pop(member.key[1], None)  # it is made once more
        if group.completions:
            self._completion_store.mark_changed(member.key[0])
        group.is_fresh = False

    def drop_member(self, uid: str, *, state: MemberState = _NO_STATE) -> None:
        """Remove a deleted pod; if it succeeded, the other members do not wait for it."""
        member = self._members.pop(uid, None)
        if member is None:
            return
        for image in member.shape.images:
            self.images[image] -= 1
            if not self.images[image]:
                del self.images[image]
        uids = self._uids_by_pod[member.key]
        uids.discard(uid)
        if not uids:
            del self._uids_by_pod[member.key]
        group = self._groups[member.gang_group]
        del group.members[uid]
        if (done := completion_of(member, state)) is not None:
            if len(group.completions) >= _MOST_DONE:
                del group.completions[next(iter(group.completions))]
            group.completions[member.key[1]] = done
        group.is_fresh = False
        if group.completions:
            self._completion_store.mark_changed(member.key[0])
        if not group.members:
            del self._groups[member.gang_group]

    def completions_in(self, namespace: str) -> dict[str, Mapping[str, Completion]]:
        """Return the succeeded members by gang and name, for gangs with members whose start depends on them."""
        found: dict[str, Mapping[str, Completion]] = {}
        for name, group in self._groups.items():
            if not name.startswith(f"{namespace}/"):
                continue
            self._load_completions(name, group)
            done = dict(group.completions)
            left = False
            for member in group.members.values():
                state = self._states.member_state(member)
                if (record := completion_of(member, state)) is not None:
                    done[member.key[1]] = record
                if not state.has_succeeded:
                    left = left or _counts_completions(member)
            if done and left:
                found[name] = done
        return found

    def member_succeeded(self, uid: str) -> None:
        """Record that a member succeeded."""
        member = self._members.get(uid)
        if member is not None and _counts_completions(member):
            self._completion_store.mark_changed(member.key[0])

    def _load_completions(self, name: str, group: _Group) -> None:
        if group.is_loaded or not any(map(_counts_completions, group.members.values())):
            return
        group.is_loaded = True
        present = {member.key[1] for member in group.members.values()}
        known = self._completion_store.load_completions(name)
        group.completions = {pod: done for pod, done in known.items() if pod not in present} | group.completions

    def mark_changed(self, uid: str) -> None:
        """Rebuild a member's gang, after the member or the verdict on it changed."""
        member = self._members.get(uid)
        if member is not None:
            self._groups[member.gang_group].is_fresh = False

    def mark_all_changed(self) -> None:
        """Rebuild all gangs, after pools or settings changed."""
        for group in self._groups.values():
            group.is_fresh = False

    def set_plans(self, plans: Mapping[str, PreemptionPlan]) -> None:
        """Take over the preemption plans of the last cycle, by gang id."""
        for name, group in self._groups.items():
            plan = plans.get(self._gang_id(name))
            if plan != group.plan:
                group.plan = plan
                group.is_fresh = False

    def build_gangs(self) -> tuple[list[Gang], list[PendingReport]]:
        """Return all gangs that the arbiter can judge, and why the others wait."""
        gangs, holds = [], []
        for name, group in self._groups.items():
            if not group.is_fresh:
                group.gang, group.pending_reason = self._build_group(name, group)
                group.is_fresh = True
            if group.gang is not None:
                gangs.append(group.gang)
            if group.pending_reason is not None:
                holds.append(group.pending_reason)
        return gangs, holds

    def _gang_id(self, group: str) -> str:
        return gang_id(self._tenant, group)

    def _build_group(self, name: str, group: _Group) -> tuple[Gang | None, PendingReport | None]:
        """Return the gang and its pending reason. Running pods count even if no other pod of the gang may start."""
        self._load_completions(name, group)
        members = sorted(group.members.values(), key=lambda member: member.uid)
        states = {member.uid: self._states.member_state(member) for member in members}
        present = [member for member in members if states[member.uid].state is not None]
        governed = [member for member in present if member.governed]
        if not governed:
            return None, None
        in_several_pools = not _common_pools(_with_pools(governed))
        marks, report = self._agree_marks(name, present)
        report = report or self._unreachable_reason(name, governed, states)
        pods = [
            self._build_pod(member, states[member.uid], in_several_pools=in_several_pools)
            for member in governed
            if states[member.uid].state is not PodState.WAITING or (report is None and self._is_ready(member))
        ]
        if not pods:
            return None, report or self._not_ready_reason(self._gang_id(name), governed)
        roles = Counter(member.marks.role for member in present if not member.governed and member.marks is not None)
        reduction = reduce_minimum(
            members, states, done=group.completions.values(), first=group.first_created, marks=marks
        )
        return self._build_gang(
            name, governed, pods, marks=marks, ungoverned=roles, reduction=reduction, plan=group.plan
        ), report

    def _agree_marks(self, name: str, members: list[GangMember]) -> tuple[GangMarks, PendingReport | None]:
        alone = GangMarks(group=name)
        fault = next((member.fault for member in members if member.fault), "")
        if not fault:
            try:
                marks = merge_marks([member.marks for member in members if member.marks is not None])
            except MarkError as error:
                fault = str(error)
            else:
                return marks, self._missing_reference(name, marks)
        return alone, PendingReport(gang=self._gang_id(name), code=PendingReason.INVALID, message=fault)

    def _unreachable_reason(
        self, name: str, members: list[GangMember], states: Mapping[str, MemberState]
    ) -> PendingReport | None:
        """Return why a waiting member can reach no virtual node."""
        for member in members:
            if member.unreachable_reason and states[member.uid].state is PodState.WAITING:
                message = f"pod {'/'.join(member.key)} can run on no virtual node: {member.unreachable_reason}"
                return PendingReport(gang=self._gang_id(name), code=PendingReason.INFEASIBLE, message=message)
        return None

    def _is_ready(self, member: GangMember) -> bool:
        return not member.waiting_gates and member.uid not in self.backoffs

    def _not_ready_reason(self, gang: str, members: list[GangMember]) -> PendingReport | None:
        gates = sorted({gate for member in members for gate in member.waiting_gates})
        if gates:
            message = f"waits for other scheduling gates: {', '.join(gates)}"
            return PendingReport(gang=gang, code=PendingReason.MEMBERS, message=message)
        left = next((self.backoffs[member.uid] for member in members if member.uid in self.backoffs), None)
        return PendingReport(gang=gang, code=PendingReason.MEMBERS, message=left.why) if left is not None else None

    def _missing_reference(self, name: str, marks: GangMarks) -> PendingReport | None:
        if marks.missing_reference is None:
            return None
        message = f"{marks.missing_reference} does not exist; it has the number of pods of the gang"
        if marks.is_unserved:
            kind = marks.missing_reference.object_kind
            message += f": this cluster does not serve the kind {kind}; install it, or remove the mark from the pods"
        return PendingReport(gang=self._gang_id(name), code=PendingReason.MEMBERS, message=message)

    def _build_pod(self, member: GangMember, state: MemberState, *, in_several_pools: bool) -> Pod:
        """Return a pod of the snapshot; `in_several_pools` says that no pool suits all pods of the gang."""
        marks = member.marks
        assert state.state is not None
        return Pod(
            uid=member.uid,
            shape=member.shape,
            rank=marks.rank if marks is not None else 0,
            role=marks.role if marks is not None else "",
            state=state.state,
            pool=state.pool,
            node=state.node,
            borrowed=state.borrowed,
            since=state.since,
            deadline=state.deadline,
            evicted_for=state.evicted_for,
            behind=state.behind,
            pools=member.pools if in_several_pools else (),
        )

    def _expected_run(self, member: GangMember) -> float | None:
        return self._forecast.expected_run(member) if self._forecast is not None else None

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
        name: str,
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
            id=self._gang_id(name),
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


def _with_pools(members: list[GangMember]) -> list[GangMember]:
    """Return the members that can use any pool; all members if none can."""
    return [member for member in members if member.pools] or members


def _union_of_pools(members: list[GangMember]) -> tuple[PoolKey, ...]:
    """Return the pools that any member may use, in the members' order."""
    return tuple(dict.fromkeys(pool for member in members for pool in member.pools))


def _counts_completions(member: GangMember) -> bool:
    """Return whether a gang's minimum must be reduced by its succeeded pods: its source does not do so itself."""
    return member.marks is not None and member.marks.minimum > 1 and not member.marks.excludes_succeeded


def _common_pools(members: list[GangMember]) -> tuple[PoolKey, ...]:
    """Return the pools that all members may use, in the first one's order."""
    first, *rest = members
    return tuple(pool for pool in first.pools if all(pool in other.pools for other in rest))

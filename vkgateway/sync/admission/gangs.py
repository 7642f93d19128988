"""A tenant's gangs as facts for the arbiter: put together from members, made anew only where something changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from vkgateway.arbiter.decisions import Hold, HoldCode
from vkgateway.arbiter.facts import Band, Gang, Plan, Pod, PodState, PoolKey
from vkgateway.sync.admission.ended import Done, Shrink, done_of, shrink
from vkgateway.sync.admission.member import Member, gang_id
from vkgateway.sync.admission.seen import Seen
from vkgateway.sync.compute.ownership import Key
from vkgateway.translate.gangs import GangMarks, MarkError, agree
from vkgateway.translate.governed import is_extended

_GONE: Final = Seen()
_MOST_DONE: Final = 10_000
"""Of more pods of a gang that ended well the first are forgotten: its minimum is long down to one."""


class LeftAlone(NamedTuple):
    """A member that is not tried again `until` then (seconds since the epoch), and why."""

    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """How those who are evicted from a pool are treated, in seconds."""

    notice: float
    grace_max: float
    minimum_run: float = 0.0
    """For so long after its start nothing is evicted, unless nothing else will do."""
    restart_max: float = 3600.0
    """The most that a restart may be said to cost, for each unit that a gang holds: who says more gains nothing."""
    brief_run: float = 0.0
    """Pods that ran for less get `brief_notice` instead of `notice`."""
    brief_notice: float = 0.0


class Memory(Protocol):
    """Remembers over a restart which members of gangs ended well."""

    def recall(self, group: str, /) -> Mapping[str, Done]:
        """Return them by name."""

    def changed(self, namespace: str, /) -> None:
        """They are others now in some gang of this namespace."""


class _NoMemory:
    def recall(self, _group: str) -> Mapping[str, Done]:
        return {}

    def changed(self, _namespace: str) -> None:
        pass


@dataclass(slots=True)
class _Group:
    """One gang's members, and what was made of them last."""

    members: dict[str, Member]
    done: dict[str, Done] = field(default_factory=dict)
    """By name the pods that succeeded and were deleted since, as long as any other is left."""
    first: dict[str, float] = field(default_factory=dict)
    """When each controller created its first pod of the gang, by the controller's UID (seconds since the epoch)."""
    recalled: bool = False
    """Those of before a restart are among them."""
    plan: Plan | None = None
    gang: Gang | None = None
    hold: Hold | None = None
    fresh: bool = False


class TenantGangs:
    """All gangs of one tenant. `look` tells where a member stands now, `expect` how many seconds ones like it ran."""

    def __init__(
        self,
        tenant: str,
        *,
        look: Callable[[Member], Seen],
        bounds: Callable[[PoolKey | None], Bounds],
        expect: Callable[[Member], float | None] = lambda _: None,
        memory: Memory | None = None,
    ) -> None:
        self._tenant = tenant
        self._memory = memory or _NoMemory()
        self._expect = expect
        self._look = look
        self._bounds = bounds
        self._members: dict[str, Member] = {}
        self._uids: dict[Key, set[str]] = {}
        self._groups: dict[str, _Group] = {}
        self.images: Counter[str] = Counter()
        """The images that pods ask for, and how many pods."""
        self.unbound: dict[str, LeftAlone] = {}
        """Members that were admitted and that the tenant's scheduler did not bind."""

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def member(self, uid: str) -> Member | None:
        """The member with this uid."""
        return self._members.get(uid)

    def under(self, key: Key) -> list[Member]:
        """The members under a pod's name: one, and for a while its namesakes of before."""
        return [self._members[uid] for uid in self._uids.get(key, ())]

    def of_gang(self, gang: str) -> list[Member]:
        """The members of a gang, by its id."""
        group = self._groups.get(gang.removeprefix(f"{self._tenant}/"))
        return list(group.members.values()) if group is not None else []

    def put(self, member: Member) -> None:
        """Take in a pod that was read, perhaps anew."""
        if member.uid in self._members:
            self.drop(member.uid)
        self._members[member.uid] = member
        self.images.update(member.shape.images)
        self._uids.setdefault(member.key, set()).add(member.uid)
        group = self._groups.setdefault(member.group, _Group({}))
        group.members[member.uid] = member
        if member.marks is not None and (controller := member.marks.controller):
            group.first[controller] = min(member.created, group.first.get(controller, member.created))
        group.done.pop(member.key[1], None)  # it is made once more
        if group.done:
            self._memory.changed(member.key[0])
        group.fresh = False

    def drop(self, uid: str, *, seen: Seen = _GONE) -> None:
        """Forget a pod that is gone above and below; where it was seen to succeed the others need not wait for it."""
        member = self._members.pop(uid, None)
        if member is None:
            return
        for image in member.shape.images:
            self.images[image] -= 1
            if not self.images[image]:
                del self.images[image]
        uids = self._uids[member.key]
        uids.discard(uid)
        if not uids:
            del self._uids[member.key]
        group = self._groups[member.group]
        del group.members[uid]
        if (done := done_of(member, seen)) is not None:
            if len(group.done) >= _MOST_DONE:
                del group.done[next(iter(group.done))]
            group.done[member.key[1]] = done
        group.fresh = False
        if group.done:
            self._memory.changed(member.key[0])
        if not group.members:
            del self._groups[member.group]

    def done_in(self, namespace: str) -> dict[str, Mapping[str, Done]]:
        """By gang and name the members that succeeded, where there are others for whose start that counts."""
        found: dict[str, Mapping[str, Done]] = {}
        for name, group in self._groups.items():
            if not name.startswith(f"{namespace}/"):
                continue
            self._recall(name, group)
            done = dict(group.done)
            left = False
            for member in group.members.values():
                seen = self._look(member)
                if (record := done_of(member, seen)) is not None:
                    done[member.key[1]] = record
                if not seen.done:
                    left = left or _counts_done(member)
            if done and left:
                found[name] = done
        return found

    def ended_well(self, uid: str) -> None:
        """A member has just done its part."""
        member = self._members.get(uid)
        if member is not None and _counts_done(member):
            self._memory.changed(member.key[0])

    def _recall(self, name: str, group: _Group) -> None:
        if group.recalled or not any(map(_counts_done, group.members.values())):
            return
        group.recalled = True
        there = {member.key[1] for member in group.members.values()}
        known = self._memory.recall(name)
        group.done = {pod: done for pod, done in known.items() if pod not in there} | group.done

    def touch(self, uid: str) -> None:
        """Something about a member changed, above, below or in what was said of it."""
        member = self._members.get(uid)
        if member is not None:
            self._groups[member.group].fresh = False

    def touch_all(self) -> None:
        """Make everything anew: pools or settings changed."""
        for group in self._groups.values():
            group.fresh = False

    def set_plans(self, plans: Mapping[str, Plan]) -> None:
        """Take over what the last cycle planned, by gang id."""
        for name, group in self._groups.items():
            plan = plans.get(self._id(name))
            if plan != group.plan:
                group.plan = plan
                group.fresh = False

    def gangs(self) -> tuple[list[Gang], list[Hold]]:
        """All gangs that the arbiter can judge, and why the others wait."""
        gangs, holds = [], []
        for name, group in self._groups.items():
            if not group.fresh:
                group.gang, group.hold = self._build(name, group)
                group.fresh = True
            if group.gang is not None:
                gangs.append(group.gang)
            if group.hold is not None:
                holds.append(group.hold)
        return gangs, holds

    def _id(self, group: str) -> str:
        return gang_id(self._tenant, group)

    def _build(self, name: str, group: _Group) -> tuple[Gang | None, Hold | None]:
        """The gang; where nothing of it may start, the hold says why, and what runs of it still counts."""
        self._recall(name, group)
        members = sorted(group.members.values(), key=lambda member: member.uid)
        seen = {member.uid: self._look(member) for member in members}
        there = [member for member in members if seen[member.uid].state is not None]
        governed = [member for member in there if member.governed]
        if not governed:
            return None, None
        apart = not _common(_that_reach_any(governed))
        marks, hold = self._agreed(name, there)
        hold = hold or self._nowhere(name, governed, seen)
        pods = [
            self._pod(member, seen[member.uid], apart=apart)
            for member in governed
            if seen[member.uid].state is not PodState.WAITING or (hold is None and self._is_ready(member))
        ]
        if not pods:
            return None, hold or self._not_ready(self._id(name), governed)
        roles = Counter(member.marks.role for member in there if not member.governed and member.marks is not None)
        less = shrink(members, seen, done=group.done.values(), first=group.first, marks=marks)
        return self._gang(name, governed, pods, marks=marks, beside=roles, less=less, plan=group.plan), hold

    def _agreed(self, name: str, members: list[Member]) -> tuple[GangMarks, Hold | None]:
        alone = GangMarks(group=name)
        fault = next((member.fault for member in members if member.fault), "")
        if not fault:
            try:
                marks = agree([member.marks for member in members if member.marks is not None])
            except MarkError as error:
                fault = str(error)
            else:
                return marks, self._waits_for(name, marks)
        return alone, Hold(gang=self._id(name), code=HoldCode.INVALID, message=fault)

    def _nowhere(self, name: str, members: list[Member], seen: Mapping[str, Seen]) -> Hold | None:
        """Why one of those that wait can reach none of the virtual nodes that there are."""
        for member in members:
            if member.nowhere and seen[member.uid].state is PodState.WAITING:
                message = f"pod {'/'.join(member.key)} can go nowhere: {member.nowhere}"
                return Hold(gang=self._id(name), code=HoldCode.INFEASIBLE, message=message)
        return None

    def _is_ready(self, member: Member) -> bool:
        return not member.waiting_gates and member.uid not in self.unbound

    def _not_ready(self, gang: str, members: list[Member]) -> Hold | None:
        gates = sorted({gate for member in members for gate in member.waiting_gates})
        if gates:
            message = f"waits for other scheduling gates: {', '.join(gates)}"
            return Hold(gang=gang, code=HoldCode.MEMBERS, message=message)
        left = next((self.unbound[member.uid] for member in members if member.uid in self.unbound), None)
        return Hold(gang=gang, code=HoldCode.MEMBERS, message=left.why) if left is not None else None

    def _waits_for(self, name: str, marks: GangMarks) -> Hold | None:
        if marks.waits_for is None:
            return None
        message = f"{marks.waits_for} is not there, which says how many pods the gang takes"
        if marks.unserved:
            kind = marks.waits_for.of
            message += f": this cluster does not serve the kind {kind}; install it, or take the mark off the pods"
        return Hold(gang=self._id(name), code=HoldCode.MEMBERS, message=message)

    def _pod(self, member: Member, seen: Seen, *, apart: bool) -> Pod:
        """`apart`: no pool is one where all the gang's pods may run."""
        marks = member.marks
        assert seen.state is not None
        return Pod(
            uid=member.uid,
            shape=member.shape,
            rank=marks.rank if marks is not None else 0,
            role=marks.role if marks is not None else "",
            state=seen.state,
            pool=seen.pool,
            node=seen.node,
            borrowed=seen.borrowed,
            since=seen.since,
            deadline=seen.deadline,
            evicted_for=seen.evicted_for,
            behind=seen.behind,
            pools=member.pools if apart else (),
        )

    def _bounds_in(self, pools: list[PoolKey]) -> Bounds:
        """Return how a gang in these pools is treated: by the longest that one of them grants."""
        each = [self._bounds(pool) for pool in pools] or [self._bounds(None)]
        return Bounds(
            max(one.notice for one in each),
            max(one.grace_max for one in each),
            max(one.minimum_run for one in each),
            max(one.restart_max for one in each),
            min(one.brief_run for one in each),
            max(one.brief_notice for one in each),
        )

    def _gang(
        self,
        name: str,
        governed: list[Member],
        pods: list[Pod],
        *,
        marks: GangMarks,
        beside: Counter[str],
        less: Shrink,
        plan: Plan | None,
    ) -> Gang:
        """`beside` are, by role, members that need nothing of the arbiter; `less` are pods that ended for good."""
        pools = _common(_that_reach_any(governed)) or _all_of(governed)
        running = dict.fromkeys(pod.pool for pod in pods if pod.pool is not None)
        bounds = self._bounds_in([*running] or ([*pools] if any(pod.pools for pod in pods) else [*pools[:1]]))
        units = sum(amount for member in governed for name, amount in member.shape.requests if is_extended(name)) / 1000
        needed = {role: number - beside[role] - less.roles[role] for role, number in marks.role_minimum.items()}
        return Gang(
            id=self._id(name),
            tenant=self._tenant,
            pods=tuple(pods),
            pools=pools,
            band=Band.LOW if any(member.band is Band.LOW for member in governed) else Band.GUARANTEED,
            priority=max(member.priority for member in governed),
            preempts=all(member.preempts for member in governed),
            created=min(member.created for member in governed),
            minimum=max(1, marks.minimum - beside.total() - less.total),
            role_minimum={role: number for role, number in needed.items() if number > 0},
            elastic=marks.elastic,
            maximum=max(1, marks.maximum - beside.total()) if marks.maximum is not None else None,
            required_level=marks.required_level,
            preferred_level=marks.preferred_level,
            run_limit=marks.run_limit,
            checkpoint=marks.checkpoint,
            restart_cost=min(marks.restart_cost, bounds.restart_max * units),
            minimum_run=bounds.minimum_run,
            expected_run=self._expect(governed[0]) if marks.run_limit is None else None,
            notice=bounds.notice,
            brief_run=bounds.brief_run,
            brief_notice=bounds.brief_notice,
            grace=min(bounds.grace_max, max(member.grace for member in governed)),
            plan=plan,
        )


def _that_reach_any(members: list[Member]) -> list[Member]:
    """Return those that can go anywhere at all; all of them, where none can."""
    return [member for member in members if member.pools] or members


def _all_of(members: list[Member]) -> tuple[PoolKey, ...]:
    """Return the pools that any of them may use, in the order in which they name them."""
    return tuple(dict.fromkeys(pool for member in members for pool in member.pools))


def _counts_done(member: Member) -> bool:
    """Whether those who are done count for it: its minimum is not told anew by whoever made it."""
    return member.marks is not None and member.marks.minimum > 1 and not member.marks.counts_done


def _common(members: list[Member]) -> tuple[PoolKey, ...]:
    """The pools that all of them may use, in the first one's order."""
    first, *rest = members
    return tuple(pool for pool in first.pools if all(pool in other.pools for other in rest))

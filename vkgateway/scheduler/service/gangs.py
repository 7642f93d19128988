"""A tenant's gangs as the arbiter's snapshot needs them, rebuilt from their members only after a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from vkgateway.api.objects import Object
from vkgateway.kinds.pods.translation.peer_terms import NamespaceLabels
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.runtime.views.ownership import Key
from vkgateway.scheduler.core.decisions import PendingReport
from vkgateway.scheduler.core.snapshot import Gang, PreemptionPlan
from vkgateway.scheduler.gangs import Reference
from vkgateway.scheduler.service.completion_records import CompletionRecords
from vkgateway.scheduler.service.completions import Completion, completion_of
from vkgateway.scheduler.service.gang_builder import (
    GangBuilder,
    MemberBackoff,
    MemberGroup,
)
from vkgateway.scheduler.service.lost_members import GangMemory, lineage_of
from vkgateway.scheduler.service.member import NO_STATE, GangMember, MemberState, gang_id
from vkgateway.scheduler.service.peer_constraints import PeerSelectors

if TYPE_CHECKING:
    from vkgateway.scheduler.service.arbitration import Arbitration

_MOST_DONE: Final = 10_000
"""Maximum recorded completions of a gang; of more, the first are dropped, as the minimum is down to one by then."""


class TenantGangs:
    """All gangs of one tenant."""

    def __init__(
        self,
        tenant: str,
        *,
        state_of: Callable[[GangMember], MemberState],
        terms: Arbitration,
        expected_run: Callable[[GangMember], float | None],
        completion_records: CompletionRecords,
        look: Callable[[Reference], Object | None],
        namespaces: NamespaceLabels,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._tenant = tenant
        self._completion_records = completion_records
        self._state_of = state_of
        self._members: dict[str, GangMember] = {}
        self.uids_by_pod: dict[Key, set[str]] = {}
        """UIDs of the members by the names of their pods."""
        self._groups: dict[str, MemberGroup] = {}
        self.images: Counter[str] = Counter()
        """Number of pods by requested image."""
        self.backoffs: dict[str, MemberBackoff] = {}
        """Members that were admitted and that the tenant's scheduler did not bind."""
        self.peer_selectors = PeerSelectors(namespaces)
        """Selectors of the hard constraints that its pods have about others."""
        self._builder = GangBuilder(
            tenant,
            state_of=state_of,
            terms=terms,
            expected_run=expected_run,
            backoffs=self.backoffs,
            look=look,
            peer_selectors=self.peer_selectors,
            clock=clock,
        )
        self._clock = clock
        self._memories: dict[str, GangMemory] = {}
        """Memories of gangs by the part of the name that re-creations share."""

    def __iter__(self) -> Iterator[GangMember]:
        return iter(list(self._members.values()))

    def find_member(self, uid: str) -> GangMember | None:
        """Return the member with a UID."""
        return self._members.get(uid)

    def members_named(self, key: Key) -> list[GangMember]:
        """Return the members with a pod's name: one, and for a while earlier pods of that name."""
        return [self._members[uid] for uid in self.uids_by_pod.get(key, ())]

    def members_of(self, gang: str) -> list[GangMember]:
        """Return the members of a gang by its id."""
        group = self._groups.get(gang.removeprefix(f"{self._tenant}/"))
        return list(group.members.values()) if group is not None else []

    def put_member(self, member: GangMember) -> bool:
        """Add or replace a pod that was read. Return whether its hard constraints select pods that none selected."""
        new = self.peer_selectors.add(member.peer_constraints) if member.peer_constraints is not None else {}
        was_known = member.uid in self._members
        self._remove_member(member.uid)
        self._members[member.uid] = member
        self.images.update(member.shape.images)
        self.uids_by_pod.setdefault(member.key, set()).add(member.uid)
        group = self._groups.setdefault(member.gang_group, MemberGroup({}))
        group.members[member.uid] = member
        if member.marks is not None and (controller := member.marks.controller_uid):
            group.first_created[controller] = min(member.created, group.first_created.get(controller, member.created))
        group.completions.pop(member.key[1], None)  # it is made once more
        if group.completions:
            self._completion_records.mark_changed(member.key[0])
        group.is_fresh = False
        self._attach_memory(member.gang_group, group, is_new=not was_known)
        for other in self._members.values() if new else ():
            if self.peer_selectors.selects(new, other.key[0], other.labels):
                self._groups[other.gang_group].is_fresh = False
        return bool(new)

    def drop_member(self, uid: str, *, state: MemberState = NO_STATE) -> None:
        """Remove a deleted pod; if it succeeded, the other members do not wait for it."""
        member = self._members.get(uid)
        group = self._groups[member.gang_group] if member is not None else None
        if group is not None and group.memory is not None:
            group.memory.member_deleted(uid, state)
        self._remove_member(uid, state=state)
        if group is not None and group.memory is not None and not group.members:
            group.memory.note_absence({}, self._clock.time())

    def _remove_member(self, uid: str, *, state: MemberState = NO_STATE) -> None:
        self.backoffs.pop(uid, None)
        member = self._members.pop(uid, None)
        if member is None:
            return
        if member.peer_constraints is not None:
            self.peer_selectors.drop(member.peer_constraints)
        for image in member.shape.images:
            self.images[image] -= 1
            if not self.images[image]:
                del self.images[image]
        uids = self.uids_by_pod[member.key]
        uids.discard(uid)
        if not uids:
            del self.uids_by_pod[member.key]
        group = self._groups[member.gang_group]
        del group.members[uid]
        if (done := completion_of(member, state)) is not None:
            if len(group.completions) >= _MOST_DONE:
                del group.completions[next(iter(group.completions))]
            group.completions[member.key[1]] = done
        group.is_fresh = False
        if group.completions:
            self._completion_records.mark_changed(member.key[0])
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
                state = self._state_of(member)
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
            self._completion_records.mark_changed(member.key[0])

    def _load_completions(self, name: str, group: MemberGroup) -> None:
        if group.is_loaded or not any(map(_counts_completions, group.members.values())):
            return
        group.is_loaded = True
        present = {member.key[1] for member in group.members.values()}
        known = self._completion_records.load_completions(name)
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
            plan = plans.get(gang_id(self._tenant, name))
            if plan != group.plan:
                group.plan = plan
                group.is_fresh = False

    def _attach_memory(self, name: str, group: MemberGroup, *, is_new: bool) -> None:
        """Give a group the memory of its gang, which an earlier group may have had."""
        if group.memory is not None or name.split("/")[1:2] == ["pod"]:
            return
        lineage = lineage_of(name)
        memory = self._memories.get(lineage)
        if memory is None:
            memory = self._memories[lineage] = GangMemory(name)
        elif memory.group != name:
            if not is_new:
                return
            if (earlier := self._groups.get(memory.group)) is not None:
                earlier.memory, earlier.is_fresh = None, False
            memory.move_to(name, self._clock.time())
        group.memory = memory

    def _absent_gangs(self) -> Iterator[Gang]:
        """Yield gangs without any member that their controllers are expected to re-create; forget the others."""
        for lineage, memory in list(self._memories.items()):
            if memory.group in self._groups:
                continue
            gang, before = self._builder.absent_gang(memory), memory.absent
            if gang is None and (memory.expires_at() or 0.0) <= self._clock.time():
                del self._memories[lineage]
            # An unchanged gang must stay the same object.
            memory.absent = before if before == gang else gang
            if memory.absent is not None:
                yield memory.absent

    def next_expiry(self, now: float) -> float | None:
        """Return the next time from which a lost member is not expected back (seconds since the epoch)."""
        times = (pod.deadline for memory in self._memories.values() for pod in memory.lost.values())
        return min((time for time in times if time > now), default=None)

    def build_gangs(self) -> tuple[list[Gang], list[PendingReport]]:
        """Return all gangs that the arbiter can judge, and why the others wait."""
        gangs, holds, now = list(self._absent_gangs()), [], self._clock.time()
        for name, group in self._groups.items():
            if not group.is_fresh or _is_expired(group, now):
                self._load_completions(name, group)
                group.gang, group.pending_reason = self._builder.build_group(name, group)
                group.is_fresh = True
            if group.gang is not None:
                gangs.append(group.gang)
            if group.pending_reason is not None:
                holds.append(group.pending_reason)
        return gangs, holds


def _is_expired(group: MemberGroup, now: float) -> bool:
    """Return whether lost members of the gang, as it was built, are not expected back any more."""
    return group.gang is not None and any(pod.deadline <= now for pod in group.gang.lost)


def _counts_completions(member: GangMember) -> bool:
    """Return whether a gang's minimum must be reduced by its succeeded pods: its source does not do so itself."""
    return member.marks is not None and member.marks.minimum > 1 and not member.marks.excludes_succeeded

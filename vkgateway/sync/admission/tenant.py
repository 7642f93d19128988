"""One tenant's governed pods: what the arbiter must know of them, and what it said of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from msgspec import structs

from vkgateway.arbiter.decisions import Admit, Evict, Hold, Promote, Reprieve
from vkgateway.arbiter.facts import Gang, PodState, PoolKey, Quota
from vkgateway.arbiter.limits import Admission
from vkgateway.arbiter.naming import ahead_named, gang_text
from vkgateway.arbiter.poolsums import node_name
from vkgateway.kube.reflector import Reflector
from vkgateway.sync.admission.accounts import Accounts, Audience
from vkgateway.sync.admission.gangs import Bounds, LeftAlone, Memory, TenantGangs
from vkgateway.sync.admission.member import Member, gang_id
from vkgateway.sync.admission.reach import in_front_of
from vkgateway.sync.admission.seen import Seen
from vkgateway.sync.admission.sight import Sight, ending_gang, is_placed, recovered
from vkgateway.sync.admission.starts import Starts
from vkgateway.sync.admission.verdicts import PREEMPTED, Book, Said, Verdict, Waits
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.pods.case import Binding
from vkgateway.sync.pods.views import ComputePodView, TenantPodView
from vkgateway.translate.holdtext import sentence

_UNBOUND_AFTER: Final = 120.0
"""Seconds for which room is kept for a pod that was let go and that its tenant's scheduler does not bind."""
_LEFT_ALONE: Final = 300.0
"""Seconds after which it is tried again; a change of the pod is a new try at once."""
_NOT_BOUND: Final = "was let go, but no scheduler of this cluster bound it; its room was given back, see its events"
_NOT_LET_GO: Final = "was admitted, but its gate could not be lifted; its room was given back"
_AWAY: Final = "was admitted while this cluster's API server did not answer; its room was given back until it does"
_AFTER_RETURN: Final = 5.0
"""Seconds that a pod under notice has at least when its cluster, or the gateway's sight of it, is back."""
_GONE: Final = Seen()
_PENDING: Final = Admission("pending")


class Service(Audience, Protocol):
    """The part of the arbitration that a tenant's part speaks to."""

    def poke(self) -> None:
        """Something changed: decide again soon."""

    def recount(self, pod: ComputePodView, cluster: str) -> None:
        """A pod was read, or forgotten: look again at whose burden it is."""

    def bounds(self, pool: PoolKey | None) -> Bounds:
        """How those who are evicted from a pool are treated."""


class TenantAdmission:
    """What is known and said of one tenant's governed pods.

    `look(key)` asks for a look at a pod, as a whole; `settled` tells whether what was read of pods holds, `followed`
    whether the tenant's API server is followed now, so that who is let go is let go, and who is bound is seen.
    """

    def __init__(
        self,
        name: str,
        pods: Reflector[TenantPodView],
        *,
        links: Mapping[str, ComputeLink],
        bindings: Mapping[str, Binding],
        service: Service,
        sent: Mapping[str, float],
        look: Callable[[Key], None],
        clock: Callable[[], float],
        memory: Memory | None = None,
        settled: Callable[[], bool] = lambda: True,
        followed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.quotas: tuple[Quota, ...] = ()
        self.book = Book()
        self._sight = Sight(name, pods, links, book=self.book, sent=sent, clock=clock)
        self._accounts = Accounts(name, service, clock=clock)
        self.gangs = TenantGangs(
            name, look=self._sight.seen, bounds=service.bounds, expect=self._accounts.expect, memory=memory
        )
        self.unread: set[Key] = set()
        """Pods that are still to be read."""
        self.complete = False
        """Everything that the tenant has was listed."""
        self.under_notice = False
        """Whether somebody was told to go, as of the last cycle."""
        self._from_before: set[Key] = set()
        """Pods that are still to be read and were there when everything was listed first."""
        self._links = links
        self._bindings = bindings
        self._service = service
        self._look = look
        self._clock = clock
        self._settled = settled
        self._followed = followed
        self._listed_at = 0.0
        """Since when the tenant's API server can do its part, as far as that is known."""
        self._starts = Starts()
        self._left_behind: dict[str, Gang] = {}
        """By the uid of the tenant pod that is gone."""
        self._at: dict[tuple[str, Key], str] = {}
        """The uids of those, by cluster and name."""
        self._known: dict[str, Seen] = {}
        """Where each member stood when it was last looked at."""

    @property
    def known(self) -> bool:
        """Whether every governed pod was read, those included that run below, with what says more about its gang."""
        below = self._sight.placed_below()
        read = self.complete and not self.unread and self._settled()
        return read and all(self.places(pod.tenant_uid) for pod in below)

    def places(self, uid: str) -> bool:
        """Whether a pod is the arbiter's to place, or was until its end."""
        member = self.gangs.member(uid)
        return uid in self._left_behind if member is None else member.governed

    def stands_below(self, view: TenantPodView) -> bool:
        """Whether something that the arbiter placed stands for a pod below, and has not ended."""
        return self.is_placed_below(view.metadata.key, view.metadata.uid) is True

    def is_placed_below(self, key: Key, uid: str) -> bool | None:
        """Whether the arbiter placed what stands for a pod below; None: nothing does, or it has ended."""
        placed = [is_placed(pod) for pod, _ in self._sight.under(key) if pod.tenant_uid == uid and not pod.ended]
        return any(placed) if placed else None

    def left_behind(self) -> list[Gang]:
        """What is ending below of pods that are gone above: their room is on its way back."""
        return list(self._left_behind.values())

    def listed(self) -> None:
        """Everything that the tenant has is known: absence is a fact from now on."""
        if not self.complete:
            self._from_before = set(self.unread)
        self.complete = True
        self._listed_at = self._clock()
        if self._try_again(lambda left: left.why == _AWAY):
            self._service.poke()
        for link in self._links.values():
            for key in link.pods.keys(self.name):
                self._look_behind(key, link)

    def put(self, member: Member) -> None:
        """Take in a pod that was read."""
        new = self.complete and member.key not in self._from_before and self.gangs.member(member.uid) is None
        if new and member.governed and not member.bound:
            self._accounts.arrived(member)
        self._from_before.discard(member.key)
        self.gangs.unbound.pop(member.uid, None)
        self.gangs.put(member)
        self._known[member.uid] = self._sight.seen(member)
        if member.bound:
            self._settle_start(member)
        self._recount(member)
        self._service.poke()

    def leave(self, member: Member) -> None:
        """A pod is of no gang any more, and asks for nothing."""
        self._drop(member)
        self._service.poke()

    def changed(self, key: Key) -> list[Member]:
        """A pod changed, above or below; returns the members that are gone now."""
        gone = []
        for member in self.gangs.under(key):
            seen, below, nothing_left = self._sight.look(member)
            if member.governed:
                self._accounts.note(member, seen, below=below, verdict=self.book.verdicts.get(member.uid))
            if nothing_left:
                gone.append(member)
                self._drop(member, seen=self._known.get(member.uid, seen))
            elif seen != self._known.get(member.uid):
                self._known[member.uid] = seen
                self.gangs.touch(member.uid)
                if seen.done:
                    self.gangs.ended_well(member.uid)
            else:
                continue
            self._service.poke()
        for link in self._links.values():
            self._look_behind(key, link)
        return gone

    def _look_behind(self, key: Key, link: ComputeLink) -> None:
        """Note what still ends below under a name whose pod is gone above; nobody has read that one."""
        pod, place = link.pods.find(self.name, key), (link.name, key)
        self._left_behind.pop(self._at.pop(place, ""), None)
        if pod is None or pod.ended or not self.complete or not is_placed(pod):
            return
        if not self._sight.has_owner(pod) and self.gangs.member(pod.tenant_uid) is None:
            self._at[place] = pod.tenant_uid
            self._left_behind[pod.tenant_uid] = ending_gang(self.name, pod, link.name, now=self._clock())
            self._service.recount(pod, link.name)

    def _drop(self, member: Member, *, seen: Seen = _GONE) -> None:
        self._known.pop(member.uid, None)
        self.gangs.unbound.pop(member.uid, None)
        self._accounts.forget(member)
        if self._starts.waits(member.group, member.uid):
            self._cancel_start(member.group)
        self.gangs.drop(member.uid, seen=seen)
        self.book.forget(member.uid)
        self._sight.forget(member.uid)
        self._recount(member)

    def rebound(self, quotas: Iterable[Quota]) -> None:
        """The tenant's pools, or what it may use of them, changed."""
        self.quotas = tuple(quotas)
        self.gangs.touch_all()
        self._service.poke()

    # What the arbiter decided.

    def admit(self, admit: Admit, *, now: float) -> None:
        """These pods may start, each on its node."""
        self._begin_start(admit)
        for uid, node in admit.nodes.items():
            member = self.gangs.member(uid)
            if member is None or self._sight.seen(member).state is not PodState.WAITING:
                continue
            self.book.verdicts[uid] = Verdict(
                said=Said.ADMITTED,
                pool=admit.pool,
                node=node,
                borrowed=admit.borrowed,
                since=now,
                behind=admit.behind,
            )
            self._told(member)

    def _begin_start(self, admit: Admit) -> None:
        """Forward nothing of a gang that starts before all its pods are bound."""
        members = [member for uid in admit.nodes if (member := self.gangs.member(uid)) is not None]
        if len(members) > 1 and not any(map(self._sight.below, self.gangs.of_gang(admit.gang))):
            self._starts.begin(members[0].group, (member.uid for member in members if not member.bound))

    def _settle_start(self, member: Member) -> None:
        """A pod of a gang that starts is bound: the last one lets all of them be forwarded."""
        if self._starts.settle(member.group, member.uid):
            for other in self.gangs.of_gang(gang_id(self.name, member.group)):
                self._look(other.key)

    def _cancel_start(self, group: str) -> None:
        """Take back what was said of a gang that starts: not all its pods were bound in time, or one was deleted."""
        if not self._starts.waits(group):
            return
        self._starts.cancel(group)
        for member in self.gangs.of_gang(gang_id(self.name, group)):
            verdict = self.book.verdicts.get(member.uid)
            if verdict is not None and verdict.said is Said.ADMITTED and not self._sight.is_sent(member):
                self.take_back(member.uid)

    def evict(self, evict: Evict) -> None:
        """These pods go at the deadline."""
        for uid in evict.pods:
            self._change(
                uid, said=Said.EVICTING, deadline=evict.deadline, evicted_for=evict.makes_room_for, borrowed=True
            )

    def reprieve(self, reprieve: Reprieve) -> None:
        """These may stay after all."""
        for uid in reprieve.pods:
            self._change(uid, said=Said.ADMITTED, deadline=0.0, evicted_for="")

    def put_off(self, cluster: str) -> None:
        """Whoever was to go while this cluster was away goes a little later: perhaps nobody needs the room any more."""
        soonest = self._clock() + _AFTER_RETURN
        for uid, verdict in list(self.book.verdicts.items()):
            member = self.gangs.member(uid)
            if member is None or verdict.pool[0] != cluster or verdict.said is not Said.EVICTING:
                continue
            if verdict.deadline < soonest and self._sight.seen(member).state is PodState.NOTIFIED:
                self._change(uid, deadline=soonest)

    def promote(self, promote: Promote) -> None:
        """These run inside the tenant's guarantee from now on."""
        for uid in promote.pods:
            self._change(uid, borrowed=False)

    def hold(self, holds: Iterable[Hold], *, pools: Mapping[str, PoolKey | None]) -> None:
        """Why gangs wait, in the place of all that was said before; those of which that changed are looked at."""
        now = self._clock()
        old = self.book.holds
        self.book.holds = {hold.gang: _waits(self._named(hold), pools.get(hold.gang), now) for hold in holds}
        for gang, waits in self.book.holds.items():
            if old.get(gang) != waits:
                for member in self.gangs.of_gang(gang):
                    if member.governed and member.uid not in self.book.verdicts:
                        self._look(member.key)

    def expire(self, now: float) -> None:
        """Take back what was said of pods that are not below, and whose time has come.

        Those that were told to go need not be deleted: they just wait again. Those that no scheduler of the tenant has
        bound must not keep others from their room, and are left alone for a while, or until the tenant's API server is
        back.
        """
        self._try_again(lambda left: left.until <= now)
        self.under_notice = False
        for uid, verdict in list(self.book.verdicts.items()):
            self.under_notice |= verdict.said is Said.EVICTING
            member = self.gangs.member(uid)
            if member is None or self._sight.below(member) is not None or self._sight.is_sent(member):
                continue
            if verdict.said is Said.EVICTING and verdict.deadline <= now:
                self.take_back(uid)
            elif verdict.said is Said.ADMITTED and not member.bound and self._bound_by(verdict) <= now:
                self.gangs.unbound[uid] = self._left_alone(member, now)
                self.take_back(uid)
                self._cancel_start(member.group)

    def _try_again(self, whom: Callable[[LeftAlone], bool]) -> bool:
        """Leave some alone no longer; whether there were any."""
        found = [uid for uid, left in self.gangs.unbound.items() if whom(left)]
        for uid in found:
            del self.gangs.unbound[uid]
            self.gangs.touch(uid)
        return bool(found)

    def _bound_by(self, verdict: Verdict) -> float:
        """By when a pod that was let go is to be bound."""
        return max(verdict.since, self._listed_at) + _UNBOUND_AFTER

    def _left_alone(self, member: Member, now: float) -> LeftAlone:
        """For how long to leave a member alone that was not bound in time, and what is told of it."""
        if not self._followed():
            return LeftAlone(math.inf, _AWAY)
        return LeftAlone(now + _LEFT_ALONE, _NOT_LET_GO if self._sight.is_gated(member) else _NOT_BOUND)

    def take_back(self, uid: str) -> None:
        """What was said of a pod does not hold any more: it waits again."""
        self.book.forget(uid)
        self.gangs.touch(uid)
        self._service.poke()

    def retake(self, uid: str, compute_uid: str) -> None:
        """A compute pod is removed because no node took it: it stands for nobody any more."""
        if compute_uid not in self._sight.retaken:
            self._sight.retaken[compute_uid] = uid
            self.take_back(uid)

    def keep(self, uid: str, compute_uid: str) -> None:
        """A node took a compute pod after all, before it was removed: it stands for its pod again."""
        if self._sight.retaken.pop(compute_uid, None) is not None:
            self.take_back(uid)

    def next_deadline(self) -> float | None:
        """When the next of those who were told to go is due, or of those who are to be bound."""
        now = self._clock()
        times = (
            verdict.deadline if verdict.said is Said.EVICTING else self._bound_by(verdict)
            for verdict in self.book.verdicts.values()
        )
        return min((time for time in times if time > now), default=None)

    # What the pods' reconcilers ask.

    def ask(self, uid: str, node: str) -> Admission:
        """What is said of a pod that is bound to this virtual node."""
        verdict, member = self.book.verdicts.get(uid), self.gangs.member(uid)
        if member is None:
            return _PENDING
        if verdict is None:
            waits = self.waits(member)
            return _PENDING if waits is None else Admission("held", waits.code, waits.reason)
        if node not in in_front_of(verdict.pool, verdict.node, self._bindings):
            self.take_back(uid)
            return _PENDING
        if verdict.said is Said.EVICTING:
            return self._evicting(uid, verdict)
        if self._starts.waits(member.group):
            return _PENDING
        return Admission("admitted", node=verdict.node, borrowed=verdict.borrowed, behind=verdict.behind)

    def ask_running(self, uid: str) -> Admission:
        """What is said of a pod that runs below."""
        verdict = self.book.verdicts.get(uid)
        if verdict is not None and verdict.said is Said.EVICTING:
            return self._evicting(uid, verdict)
        return Admission("admitted", borrowed=verdict.borrowed if verdict is not None else None)

    def waits(self, member: Member) -> Waits | None:
        """Why a member waits."""
        return self.book.holds.get(gang_id(self.name, member.group))

    def _evicting(self, uid: str, verdict: Verdict) -> Admission:
        mine = verdict.evicted_for.startswith(f"{self.name}/")
        reason = self._own_work(uid, verdict.evicted_for) if mine else "another tenant's work, which comes first"
        return Admission(
            "evicting",
            code=PREEMPTED,
            message=f"makes room for {reason}",
            deadline=verdict.deadline,
            evicted_for=verdict.evicted_for,
            grace=self._service.bounds(verdict.pool).grace_max,
        )

    def _own_work(self, uid: str, gang: str) -> str:
        """The tenant's own gang for which a pod is evicted, and its priority where that is why."""
        text = gang_text(gang.removeprefix(f"{self.name}/"), self._name_of)
        member, others = self.gangs.member(uid), self.gangs.of_gang(gang)
        higher = max((other.priority for other in others if other.governed), default=0)
        if member is None or not others or higher <= member.priority:
            return text
        return f"{text}, which has a higher priority ({higher} over {member.priority})"

    def _named(self, hold: Hold) -> Hold:
        """With the names of the tenant's own pods for their uids."""
        if not hold.behind.startswith(f"{self.name}/"):
            return hold
        ahead = hold.behind.rpartition("/")[2]
        message = ahead_named(hold.message, hold.behind, {ahead: ("", self._name_of(ahead))})
        return structs.replace(hold, message=message)

    def _name_of(self, uid: str) -> str:
        member = self.gangs.member(uid)
        return member.key[1] if member is not None else ""

    def _change(self, uid: str, **fields: object) -> None:
        member = self.gangs.member(uid)
        if member is None:
            return
        verdict = self.book.verdicts.get(uid)
        if verdict is None:
            below = self._sight.below(member)
            if below is None:
                return
            verdict = recovered(below[0], below[1].name)
        self.book.verdicts[uid] = replace(verdict, **fields)  # type: ignore[arg-type]
        self._told(member)

    def _told(self, member: Member) -> None:
        self._known[member.uid] = self._sight.seen(member)
        self.gangs.touch(member.uid)
        self._look(member.key)

    def _recount(self, member: Member) -> None:
        for pod, link in self._sight.under(member.key):
            if pod.tenant_uid == member.uid:
                self._service.recount(pod, link.name)


def _waits(hold: Hold, pool: PoolKey | None, now: float) -> Waits:
    node = node_name(pool) if pool is not None else ""
    return Waits(hold.code, hold.message, sentence(hold, pool=node, now=now))

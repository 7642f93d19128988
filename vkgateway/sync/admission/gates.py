"""Reads pods for the arbiter, lets go those that it admitted, and tells the others why they wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

from vkgateway.arbiter.decisions import HoldCode
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.names import ADMISSION_GATE
from vkgateway.model.objects import Object
from vkgateway.sync.admission.beside import Beside
from vkgateway.sync.admission.conditions import set_condition
from vkgateway.sync.admission.member import Member, may_be_member, read_member
from vkgateway.sync.admission.ordinary import OrdinaryPods
from vkgateway.sync.admission.reach import narrowing
from vkgateway.sync.admission.telling import Telling
from vkgateway.sync.admission.tenant import TenantAdmission
from vkgateway.sync.admission.verdicts import Said, Verdict, Waits
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.pods.case import Binding, decode
from vkgateway.sync.pods.views import TenantPodView
from vkgateway.translate.conditions import ADMITTED_CONDITION
from vkgateway.translate.gangs import Kind, Reference
from vkgateway.translate.governed import VirtualNode, ungate_patch
from vkgateway.translate.machines import Judgement, admit_patch
from vkgateway.translate.references import claims_of

_ANYWHERE: Final = Judgement()
_SERIOUS: Final = frozenset({HoldCode.INFEASIBLE, HoldCode.INVALID})
"""What will not pass by waiting."""


class Gates:
    """The gates of one tenant's pods. `later(key, seconds)` asks for another look at a pod, `go_on(key)` for one at a
    pod that has a node and turned out not to wait for the arbiter.

    `refuse(view, pod)` fails a pod that breaks the tenant's policy, and says whether it does: such a pod is not let
    wait for what it will never get. `machines(pod)` tells where a pod without devices or marks may go by its size;
    None: that is not known yet.
    """

    def __init__(
        self,
        admission: TenantAdmission,
        client: Client,
        pods: Reflector[TenantPodView],
        *,
        bindings: Mapping[str, Binding],
        nodes: Mapping[str, VirtualNode],
        beside: Beside,
        events: EventRecorder,
        whole: Callable[[TenantPodView], Awaitable[bytes]],
        places: Callable[[Object], Sequence[Sequence[Object]]] = lambda _pod: (),
        refuse: Callable[[TenantPodView, Object], Awaitable[bool]],
        machines: Callable[[Object], Judgement | None] = lambda _pod: _ANYWHERE,
        later: Callable[[Key, float], None],
        go_on: Callable[[Key], None] = lambda _key: None,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._client = client
        self._pods = pods
        self._bindings = bindings
        self._nodes = nodes
        self._beside = beside
        self._events = events
        self._whole = whole
        self._places = places
        self._refuse = refuse
        self._machines = machines
        self._later = later
        self._go_on = go_on
        self._clock = clock
        self._monotonic = monotonic
        self._telling = Telling()
        self.ordinary = OrdinaryPods(admission, beside)
        self._users: dict[Reference, set[Key]] = {}
        """Pods by the objects beside them that say more about their gang."""
        self._outdated: set[str] = set()
        """Pods, by uid, beside which such an object changed since they were read."""
        self._with_volumes: dict[str, Key] = {}
        """Pods, by uid, whose volumes are from claims."""

    @property
    def settled(self) -> bool:
        """Whether all that was read of pods holds, what objects beside them say included."""
        return self._beside.complete and not self._outdated

    def beside_changed(self, reference: Reference) -> list[Key]:
        """An object beside pods came, changed or went; returns the pods that must be read again."""
        keys = self._users.get(reference, set())
        for key in keys:
            self._outdated.update(member.uid for member in self._admission.gangs.under(key))
        return sorted(keys)

    def kind_changed(self, kind: Kind) -> list[Key]:
        """A kind of objects beside pods is served now, or not any more; returns the pods that must be read again."""
        references = [reference for reference in self._users if reference.of == kind]
        return sorted({key for reference in references for key in self.beside_changed(reference)})

    def below_changed(self, key: Key) -> bool:
        """Handle a change of the compute pod; return whether the tenant pod must be read again.

        It must where it was judged before its compute pod was seen, which tells whether the arbiter placed it.
        """
        view = self._pods.items.get(key)
        if view is None:
            return False
        uid = view.metadata.uid
        placed, member = self._admission.is_placed_below(key, uid), self._admission.gangs.member(uid)
        if placed and self.ordinary.knows(view):
            self.ordinary.forget(uid)
            return True
        if placed is False and member is not None and member.only_marked:
            self._outdated.add(uid)
            return True
        return False

    def pools_changed(self) -> None:
        """The tenant's pools or virtual nodes changed: pods that are on no node yet must be read again."""
        self._outdated.update(member.uid for member in self._admission.gangs if not member.bound)

    def volumes_changed(self) -> list[Key]:
        """Volumes may be elsewhere than was known; returns the pods that must be read again."""
        self._outdated.update(self._with_volumes)
        return list(self._with_volumes.values())

    def wants(self, view: TenantPodView) -> bool:
        """Whether a pod must be read (again): it may be governed, or of a gang, or runs as one, and it changed."""
        known = self._admission.gangs.member(view.metadata.uid)
        if known is not None:
            return known.mark != view.fingerprint or known.uid in self._outdated
        if self.ordinary.knows(view):
            return False
        if self._admission.stands_below(view):
            return True
        return not view.terminal and (is_gated(view) or may_be_member(view))

    def wants_now(self, view: TenantPodView) -> bool:
        """Whether a pod that asks for devices or carries a mark must be read (again)."""
        unknown = self._admission.gangs.member(view.metadata.uid) is None and not self.ordinary.knows(view)
        return unknown or self.wants(view)

    def note(self, pod: Object, mark: str, unserved: frozenset[Kind] = frozenset()) -> None:
        """Take in a pod whose whole object is at hand, and which of the kinds that its marks need are not served."""
        known = self._admission.gangs.member(pod["metadata"]["uid"])
        member = self._member(pod, mark, unserved)
        if known is not None:
            self._unuse(known)
        if member is None:
            if known is not None:
                self._admission.leave(known)
                self._drop(known)
            return
        self._outdated.discard(member.uid)
        if not member.bound and claims_of(pod):
            self._with_volumes[member.uid] = member.key
        else:
            self._with_volumes.pop(member.uid, None)
        for reference in member.beside:
            self._users.setdefault(reference, set()).add(member.key)
            self._beside.want(reference)
        self._admission.put(member)

    def _member(self, pod: Object, mark: str, unserved: frozenset[Kind]) -> Member | None:
        if self.ordinary.judge(pod, unserved):
            return None
        return read_member(
            pod,
            mark=mark,
            bindings=self._bindings,
            look=self._beside.look,
            nodes=self._nodes,
            places=self._places(pod),
            unserved=unserved,
        )

    def forget(self, member: Member) -> None:
        """Drop what is remembered of a pod that is gone."""
        self._telling.forget(member.uid)
        self._drop(member)
        self._unuse(member)

    def _drop(self, member: Member) -> None:
        self._outdated.discard(member.uid)
        self._with_volumes.pop(member.uid, None)

    def _unuse(self, member: Member) -> None:
        for reference in member.beside:
            users = self._users.get(reference, set())
            users.discard(member.key)
            if not users:
                self._users.pop(reference, None)

    def gone(self, uid: str) -> None:
        """Drop what a pod that was deleted was notified of."""
        self._telling.forget(uid)
        self.ordinary.forget(uid)

    async def reconcile(self, key: Key) -> None:
        """Look at one pod that does not run below yet."""
        view = self._pods.items.get(key)
        if view is None:
            self._admission.unread.discard(key)
            return
        read = not self.wants(view) or await self._read(view)
        self._admission.unread.discard(key)
        if not read:
            return
        if view.terminal or view.metadata.deletion_timestamp is not None:
            return
        member = self._admission.gangs.member(view.metadata.uid)
        if member is None or not member.governed:
            if is_gated(view):
                await self._settle_size(view)
            return
        verdict = self._admission.book.verdicts.get(member.uid)
        if verdict is None:
            await self.tell(view, member)
        elif verdict.said is Said.ADMITTED and is_gated(view) and not member.waiting_gates:
            await self._let_go(view, self._narrowing(member, verdict))

    def _narrowing(self, member: Member, verdict: Verdict) -> dict[str, str]:
        if not member.is_narrowed:
            return {}
        return narrowing(verdict.pool, verdict.node, self._bindings, any_part=member.follows_others)

    async def _read(self, view: TenantPodView) -> bool:
        """Read a pod as a whole; false where it is another by now, or will never run."""
        mark = view.fingerprint
        try:
            whole = decode(await self._whole(view))
        except (errors.NotFound, errors.Conflict):
            return False
        if is_gated(view) and await self._refuse(view, whole):
            self._outdated.discard(view.metadata.uid)
            return False
        unserved = await self.ordinary.unserved_kinds(whole)
        now = self._pods.items.get(view.metadata.key)
        if now is None or now.metadata.uid != view.metadata.uid:
            return False
        self.note(whole, mark, unserved)
        if view.spec.node_name and self.ordinary.knows(view):
            self._go_on(view.metadata.key)
        return True

    async def _settle_size(self, view: TenantPodView) -> None:
        """Admit a gated pod without devices or marks to where a machine can take it, or report why it waits.

        Its gate is from the policy by size, or was set by hand: only the gateway takes it off.
        """
        try:
            whole = decode(await self._whole(view))
        except (errors.NotFound, errors.Conflict):
            return
        judged = self._machines(whole)
        if judged is None:
            return
        if not judged.why:
            await self._lift(view, admit_patch(whole, judged))
            return
        code = HoldCode.ROOM if judged.passing else HoldCode.INFEASIBLE
        group = f"{view.metadata.namespace}/pod/{view.metadata.uid}"
        await self._tell(view, group, Waits(code, judged.why, judged.why))

    async def _let_go(self, view: TenantPodView, narrowing: Mapping[str, str]) -> None:
        """Lift the gate, and add to the pod's node selector."""
        await self._lift(view, ungate_patch(view.metadata.uid, narrowing))

    async def _lift(self, view: TenantPodView, patch: Object) -> None:
        metadata = view.metadata
        told = self._telling.is_told(metadata.uid)
        self._telling.forget(metadata.uid)
        try:
            if told:
                await self._set_condition(view, status="True", reason="Admitted", message="it may start")
            await self._client.patch(
                resources.PODS,
                metadata.name,
                patch,
                namespace=metadata.namespace,
                kind="strategic",
                metadata_only=True,
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def tell(self, view: TenantPodView, member: Member) -> None:
        """Tell a pod why it waits: a condition that is refreshed now and then, and an event for each new reason."""
        waits = self._admission.waits(member)
        if waits is not None:
            await self._tell(view, member.group, waits)

    async def _tell(self, view: TenantPodView, group: str, waits: Waits) -> None:
        uid = view.metadata.uid
        tell = self._telling.tell(uid, group, waits, now=self._monotonic())
        if tell.again is not None:
            self._later(view.metadata.key, tell.again)
        if tell.now is None:
            return
        try:
            if tell.is_new:
                kind: Literal["Normal", "Warning"] = "Warning" if tell.now.code in _SERIOUS else "Normal"
                await self._events.emit(view.metadata, reason=tell.now.code, message=tell.now.reason, kind=kind)
            await self._set_condition(view, status="False", reason=tell.now.code, message=tell.now.text)
        except errors.ApiError:
            self._telling.failed(uid)
            raise

    async def _set_condition(self, view: TenantPodView, *, status: str, reason: str, message: str) -> None:
        now = datetime.fromtimestamp(self._clock(), UTC)
        await set_condition(
            self._client, view, ADMITTED_CONDITION, status=status, reason=reason, message=message, now=now
        )


def is_gated(view: TenantPodView) -> bool:
    """Whether our scheduling gate is on a pod."""
    return any(gate.name == ADMISSION_GATE for gate in view.spec.scheduling_gates)

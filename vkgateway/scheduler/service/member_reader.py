"""Reader of pods that the arbiter must know: which must be read as a whole, and which must be read again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from vkgateway.api.objects import Object
from vkgateway.api.requests import device_requests
from vkgateway.kinds.pods.mirror import PodMirror
from vkgateway.kinds.pods.pod_context import decode
from vkgateway.kinds.pods.translation.pod_references import pod_claims
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import VOLUME_LOCATIONS
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.claim_users import ClaimUsers
from vkgateway.kube import errors
from vkgateway.runtime.requests import GATE, POD
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.gangs import GangMarks, Kind, Reference
from vkgateway.scheduler.gangs.mark_detection import (
    find_marks,
    has_unserved_marks,
    mark_kinds,
    may_be_member,
    needs_served_kind,
)
from vkgateway.scheduler.service.companion_objects import COMPANION_KINDS, COMPANIONS, CompanionObjects
from vkgateway.scheduler.service.conditions import has_condition, set_condition
from vkgateway.scheduler.service.member import GangMember, read_member
from vkgateway.scheduler.service.pod_observer import is_gated
from vkgateway.scheduler.service.tenant_admission import TenantAdmission

MARKS_CONDITION: Final = "vkgateway.io/GangMarks"
"""Condition of a pod: whether its gang follows its marks."""
INVALID_MARK: Final = "InvalidGangMark"


class OrdinaryPods:
    """Pods of one tenant without devices whose gang marks have no meaning there: they start like pods without marks.

    The classification holds as long as a pod has the same marks, even if a kind is installed.
    """

    def __init__(self, admission: TenantAdmission, companions: CompanionObjects) -> None:
        self._admission = admission
        self._companions = companions
        self.marks: dict[str, frozenset[str]] = {}
        """Marks of each ordinary pod by UID."""

    async def unserved_kinds(self, pod: Object) -> frozenset[Kind]:
        """Ask the tenant's API server which kinds of a pod's marks it does not serve now."""
        return await self._companions.find_unserved(mark_kinds(pod))

    def must_query_kinds(self, pod: Object) -> bool:
        """Return whether the API server must be asked about a kind of the pod's marks."""
        return not all(map(self._companions.is_watched, mark_kinds(pod)))

    def classify_pod(self, pod: Object, unserved: frozenset[Kind]) -> bool:
        """Return whether a pod is ordinary, and remember it: the API server does not serve the kinds of its marks.

        Pods with a compute pod keep their classification. The arbiter does not take over a pod that started without it,
        and keeps one that it placed.
        """
        metadata = pod["metadata"]
        found = needs_served_kind(pod) and not device_requests(pod)
        if found:
            key = metadata["namespace"], metadata["name"]
            placed = self._admission.observer.is_compute_pod_placed(key, metadata["uid"])
            found = has_unserved_marks(pod, unserved) if placed is None else not placed
        if found:
            labels, annotations = metadata.get("labels") or (), metadata.get("annotations") or ()
            self.marks[metadata["uid"]] = find_marks(labels=labels, annotations=annotations)
        else:
            self.marks.pop(metadata["uid"], None)
        return found

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Return whether a pod with its current marks was classified as ordinary."""
        metadata = view.metadata
        marks = self.marks.get(metadata.uid)
        return marks is not None and marks == find_marks(labels=metadata.labels, annotations=metadata.annotations)

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted pod."""
        self.marks.pop(uid, None)


class MemberReader:
    """Reader of one tenant's pods for its admission."""

    def __init__(
        self,
        scope: TenantScope,
        admission: TenantAdmission,
        companions: CompanionObjects,
        *,
        mirror: PodMirror,
        claims: ClaimUsers,
    ) -> None:
        self._scope = scope
        self._pods = scope.cache.pods
        self._admission = admission
        self._reads = admission.reads
        self._companions = companions
        self._mirror = mirror
        self._claims = claims
        self.ordinary = OrdinaryPods(admission, companions)
        self.pods_by_companion: dict[Reference, set[Key]] = {}
        """Pods by their companion objects."""
        self._with_volumes: dict[str, Key] = {}
        """Pods with volumes from claims, by UID."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.watches(VOLUME_LOCATIONS, self.volumes_changed)
            .watches(COMPANIONS, self.companion_changed)
            .watches(COMPANION_KINDS, self.kind_changed)
        )

    def enqueue_read(self, key: Key) -> None:
        """Request that a pod is read."""
        self._reads.unread.add(key)
        self._scope.work_queue.enqueue(GATE, key)

    def companion_changed(self, reference: Reference) -> None:
        """Read the pods of a changed companion object again."""
        self._read_users([reference])

    def kind_changed(self, kind: Kind) -> None:
        """Read the pods of a kind's companion objects again: the API server started or stopped serving it."""
        self._read_users(reference for reference in self.pods_by_companion if reference.object_kind == kind)

    def _read_users(self, references: Iterable[Reference]) -> None:
        keys = {key for reference in references for key in self.pods_by_companion.get(reference, ())}
        for key in sorted(keys):
            self._reads.outdated.update(member.uid for member in self._admission.gangs.members_named(key))
            self.enqueue_read(key)

    def volumes_changed(self) -> None:
        """Read pods with volumes again: volumes became reachable from other nodes."""
        self._reads.outdated.update(self._with_volumes)
        for key in self._with_volumes.values():
            self._scope.work_queue.enqueue(GATE, key)

    def pools_changed(self) -> None:
        """Mark pods without a node as outdated, after the tenant's pools or virtual nodes changed."""
        self._reads.outdated.update(member.uid for member in self._admission.gangs if not member.bound)

    def compute_pod_changed(self, key: Key) -> None:
        """Read the tenant pod again if it was judged before its compute pod was seen.

        The compute pod shows whether the arbiter placed it.
        """
        view = self._pods.store.get(key)
        if view is None:
            return
        uid = view.metadata.uid
        placed = self._admission.observer.is_compute_pod_placed(key, uid)
        member = self._admission.gangs.find_member(uid)
        if placed and self.ordinary.is_ordinary(view):
            self.ordinary.forget_pod(uid)
            self.enqueue_read(key)
        elif placed is False and member is not None and member.has_only_marks:
            self._reads.outdated.add(uid)
            self.enqueue_read(key)

    def needs_read(self, view: TenantPodView) -> bool:
        """Return whether a pod must be read (again): it may be governed or belong to a gang, and has changed."""
        known = self._admission.gangs.find_member(view.metadata.uid)
        if known is not None:
            return known.mark != view.fingerprint or known.uid in self._reads.outdated
        if self.ordinary.is_ordinary(view):
            return False
        if self._admission.observer.is_compute_pod_placed(view.metadata.key, view.metadata.uid):
            return True
        return not view.is_terminal and (is_gated(view) or may_be_member(view))

    def must_read(self, view: TenantPodView) -> bool:
        """Return whether a pod that requests devices or carries a mark must be read (again)."""
        unknown = self._admission.gangs.find_member(view.metadata.uid) is None and not self.ordinary.is_ordinary(view)
        return unknown or self.needs_read(view)

    async def read_pod(self, view: TenantPodView) -> bool:
        """Read a whole pod. Return False if it has changed since, or will never run."""
        mark = view.fingerprint
        try:
            document = decode(await self._mirror.read_pod(view))
        except (errors.NotFound, errors.Conflict):
            return False
        if is_gated(view) and await self._mirror.reject_forbidden(view, document):
            self._reads.outdated.discard(view.metadata.uid)
            return False
        unserved = await self.ordinary.unserved_kinds(document)
        now = self._pods.store.get(view.metadata.key)
        if now is None or now.metadata.uid != view.metadata.uid:
            return False
        self.observe_pod(document, mark, unserved)
        await self._report_marks(now)
        if view.spec.node_name and self.ordinary.is_ordinary(view):
            self._scope.work_queue.enqueue(POD, view.metadata.key)
        return True

    def observe_pod(self, pod: Object, mark: str, unserved: frozenset[Kind] = frozenset()) -> None:
        """Add a pod whose whole object was read; `unserved` are the kinds of its marks that the API server does not
        serve.
        """
        known = self._admission.gangs.find_member(pod["metadata"]["uid"])
        member = None
        if not self.ordinary.classify_pod(pod, unserved):
            member = read_member(
                pod,
                tenant=self._scope.name,
                mark=mark,
                bindings=self._scope.bindings,
                look=self._companions.get_object,
                nodes=self._scope.virtual_nodes,
                places=self._claims.volume_terms(pod),
                unserved=unserved,
            )
        if member is not None:
            member = self._keep_gang(member, known)
        if known is not None:
            self._drop_companions(known)
        if member is None:
            if known is not None:
                self._admission.remove_member(known)
                self.forget_member(known)
            return
        self._reads.outdated.discard(member.uid)
        if not member.bound and pod_claims(pod):
            self._with_volumes[member.uid] = member.key
        else:
            self._with_volumes.pop(member.uid, None)
        for reference in member.companions:
            self.pods_by_companion.setdefault(reference, set()).add(member.key)
            self._companions.watch_kind_of(reference)
        self._admission.put_member(member)

    def _keep_gang(self, member: GangMember, known: GangMember | None) -> GangMember:
        """Return a member in the gang that it was admitted with, whatever its marks say now.

        Marks that cannot be read, or name another gang, leave those that were read last; after a restart of the
        gateway, only the gang is known.
        """
        admitted = self._admission.observer.admitted_gang(member.key, member.uid)
        if known is not None and not admitted and self._has_started(known):
            admitted = known.gang_group
        if not admitted or (not member.fault and member.gang_group == admitted):
            return member
        if member.marks is not None and member.marks.missing_reference is not None:
            # After a restart, the object that completes the gang's name may not be known yet.
            return replace(member, marks=replace(member.marks, group=admitted))
        last = known.marks if known is not None and known.gang_group == admitted else None
        warning = member.fault or f"its marks name the gang {member.gang_group}"
        return replace(
            member,
            marks=last or GangMarks(group=admitted, integration=admitted.split("/")[1]),
            fault="",
            mark_warning=f"the pod stays in the gang {admitted}, with the values that it had: {warning}",
        )

    def _has_started(self, member: GangMember) -> bool:
        state = self._admission.observer.member_state(member).state
        return state not in (None, PodState.WAITING) or (member.bound and not member.governed)

    async def _report_marks(self, view: TenantPodView) -> None:
        """Report on a pod that its gang does not follow its marks, or does so again."""
        member = self._admission.gangs.find_member(view.metadata.uid)
        warning = member.mark_warning if member is not None else ""
        if not warning and not has_condition(view, MARKS_CONDITION):
            return
        status, reason = ("False", INVALID_MARK) if warning else ("True", "Read")
        changed = await set_condition(
            self._scope, view, MARKS_CONDITION, status=status, reason=reason, message=warning or "the marks are read"
        )
        if changed and warning:
            await self._scope.events.emit_event(view.metadata, reason=INVALID_MARK, message=warning, kind="Warning")

    def forget_member(self, member: GangMember) -> None:
        """Drop the state of a deleted pod."""
        self._reads.outdated.discard(member.uid)
        self._with_volumes.pop(member.uid, None)
        self._drop_companions(member)

    def _drop_companions(self, member: GangMember) -> None:
        for reference in member.companions:
            users = self.pods_by_companion.get(reference, set())
            users.discard(member.key)
            if not users:
                self.pods_by_companion.pop(reference, None)

"""Reconciler of scheduling gates: it reads pods for the arbiter, lifts the gates of admitted pods, and reports why pods
wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol

from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.queueing.admission import Admission, AdmissionState
from vkgateway.kube import errors, resources
from vkgateway.model.names import ADMISSION_GATE
from vkgateway.model.objects import Object
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.admission.conditions import set_condition
from vkgateway.sync.admission.member import GangMember, may_be_member, read_member
from vkgateway.sync.admission.ordinary_pods import OrdinaryPods
from vkgateway.sync.admission.pending_reporter import PendingReporter
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.admission.verdict_store import PendingMessage
from vkgateway.sync.admission.virtual_nodes import narrowing_selector
from vkgateway.sync.pods.pod_context import decode
from vkgateway.sync.runtime.registry import Registry
from vkgateway.sync.runtime.requests import GATE, POD
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import Key
from vkgateway.sync.views.pods import TenantPodView
from vkgateway.translate.conditions import ADMITTED_CONDITION
from vkgateway.translate.gangs import Kind, Reference
from vkgateway.translate.governed import ungate_patch
from vkgateway.translate.node_sizes import SizeVerdict, admit_patch
from vkgateway.translate.pod_references import pod_claims

_WARNING_CODES: Final = frozenset({PendingReason.INFEASIBLE, PendingReason.INVALID})
"""Pending reasons that do not resolve by waiting."""


class PodReader(Protocol):
    """Reader of tenant pods; it also fails pods that the tenant's policy forbids."""

    async def read_pod(self, view: TenantPodView) -> bytes:
        """Return the whole pod, never another one with its name."""

    async def reject_forbidden(self, view: TenantPodView, pod: Object) -> bool:
        """Fail a pod that breaks the tenant's policy, so that it does not wait in vain. Return whether it breaks it."""


class VolumeTerms(Protocol):
    """Lookup of the nodes that can reach volumes."""

    def volume_terms(self, pod: Object) -> Sequence[Sequence[Object]]:
        """Return for each volume of a pod the node selector terms of which one must hold."""


class SizeJudge(Protocol):
    """Judge of pods by their size."""

    def judge_pod(self, pod: Object) -> SizeVerdict | None:
        """Return where a pod without devices or marks may run by its size; None: not known yet."""


class GateReconciler:
    """Reconciler of the gates of one tenant's pods."""

    def __init__(
        self,
        scope: TenantScope,
        admission: TenantAdmission,
        companions: CompanionObjects,
        *,
        reader: PodReader,
        volumes: VolumeTerms,
        sizes: SizeJudge,
    ) -> None:
        self._scope = scope
        self._admission = admission
        self._client = scope.client
        self._pods = scope.cache.pods
        self._reads = admission.reads
        self._companions = companions
        self._reader = reader
        self._volumes = volumes
        self._sizes = sizes
        self._reporter = PendingReporter()
        self.ordinary = OrdinaryPods(admission, companions)
        self._pods_by_companion: dict[Reference, set[Key]] = {}
        """Pods by their companion objects."""
        self._with_volumes: dict[str, Key] = {}
        """Pods with volumes from claims, by UID."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        registry.for_(GATE, self.reconcile)

    def companion_changed(self, reference: Reference) -> list[Key]:
        """Mark the pods of a changed companion object as outdated; return those that must be read again."""
        keys = self._pods_by_companion.get(reference, set())
        for key in keys:
            self._reads.outdated.update(member.uid for member in self._admission.gangs.members_named(key))
        return sorted(keys)

    def kind_changed(self, kind: Kind) -> list[Key]:
        """Do the same for all companion objects of a kind, after the API server started or stopped serving it."""
        references = [reference for reference in self._pods_by_companion if reference.object_kind == kind]
        return sorted({key for reference in references for key in self.companion_changed(reference)})

    def compute_pod_changed(self, key: Key) -> bool:
        """Handle a change of the compute pod; return whether the tenant pod must be read again.

        It must if it was judged before its compute pod was seen, which shows whether the arbiter placed it.
        """
        view = self._pods.store.get(key)
        if view is None:
            return False
        uid = view.metadata.uid
        placed, member = self._admission.is_compute_pod_placed(key, uid), self._admission.gangs.find_member(uid)
        if placed and self.ordinary.is_ordinary(view):
            self.ordinary.forget_pod(uid)
            return True
        if placed is False and member is not None and member.has_only_marks:
            self._reads.outdated.add(uid)
            return True
        return False

    def pools_changed(self) -> None:
        """Mark pods without a node as outdated, after the tenant's pools or virtual nodes changed."""
        self._reads.outdated.update(member.uid for member in self._admission.gangs if not member.bound)

    def volumes_changed(self) -> list[Key]:
        """Mark pods with volumes as outdated, after volumes became reachable from other nodes; return those pods."""
        self._reads.outdated.update(self._with_volumes)
        return list(self._with_volumes.values())

    def needs_read(self, view: TenantPodView) -> bool:
        """Return whether a pod must be read (again): it may be governed or belong to a gang, and has changed."""
        known = self._admission.gangs.find_member(view.metadata.uid)
        if known is not None:
            return known.mark != view.fingerprint or known.uid in self._reads.outdated
        if self.ordinary.is_ordinary(view):
            return False
        if self._admission.runs_arbiter_placed(view):
            return True
        return not view.is_terminal and (is_gated(view) or may_be_member(view))

    def must_read(self, view: TenantPodView) -> bool:
        """Return whether a pod that requests devices or carries a mark must be read (again)."""
        unknown = self._admission.gangs.find_member(view.metadata.uid) is None and not self.ordinary.is_ordinary(view)
        return unknown or self.needs_read(view)

    def observe_pod(self, pod: Object, mark: str, unserved: frozenset[Kind] = frozenset()) -> None:
        """Add a pod whose whole object was read; `unserved` are the kinds of its marks that the API server does not
        serve.
        """
        known = self._admission.gangs.find_member(pod["metadata"]["uid"])
        member = self._read_member(pod, mark, unserved)
        if known is not None:
            self._drop_companions(known)
        if member is None:
            if known is not None:
                self._admission.remove_member(known)
                self._clear_flags(known)
            return
        self._reads.outdated.discard(member.uid)
        if not member.bound and pod_claims(pod):
            self._with_volumes[member.uid] = member.key
        else:
            self._with_volumes.pop(member.uid, None)
        for reference in member.companions:
            self._pods_by_companion.setdefault(reference, set()).add(member.key)
            self._companions.watch_kind_of(reference)
        self._admission.put_member(member)

    def _read_member(self, pod: Object, mark: str, unserved: frozenset[Kind]) -> GangMember | None:
        if self.ordinary.classify_pod(pod, unserved):
            return None
        return read_member(
            pod,
            mark=mark,
            bindings=self._scope.bindings,
            look=self._companions.get_object,
            nodes=self._scope.virtual_nodes,
            places=self._volumes.volume_terms(pod),
            unserved=unserved,
        )

    def forget_member(self, member: GangMember) -> None:
        """Drop the state of a deleted pod."""
        self._reporter.forget_pod(member.uid)
        self._clear_flags(member)
        self._drop_companions(member)

    def _clear_flags(self, member: GangMember) -> None:
        self._reads.outdated.discard(member.uid)
        self._with_volumes.pop(member.uid, None)

    def _drop_companions(self, member: GangMember) -> None:
        for reference in member.companions:
            users = self._pods_by_companion.get(reference, set())
            users.discard(member.key)
            if not users:
                self._pods_by_companion.pop(reference, None)

    def pod_deleted(self, uid: str) -> None:
        """Drop the reports to a deleted pod."""
        self._reporter.forget_pod(uid)
        self.ordinary.forget_pod(uid)

    async def reconcile(self, key: Key) -> None:
        """Reconcile one pod that has no compute pod."""
        view = self._pods.store.get(key)
        if view is None:
            self._reads.unread.discard(key)
            return
        read = not self.needs_read(view) or await self._read_pod(view)
        self._reads.unread.discard(key)
        if not read:
            return
        if view.is_terminal or view.metadata.deletion_timestamp is not None:
            return
        member = self._admission.gangs.find_member(view.metadata.uid)
        if member is None or not member.governed:
            if is_gated(view):
                await self._reconcile_size(view)
            return
        verdict = self._admission.verdict_store.verdicts.get(member.uid)
        if verdict is None:
            await self.report_pending(view, member)
        elif verdict.verdict is AdmissionState.ADMITTED and is_gated(view) and not member.waiting_gates:
            await self._admit_pod(view, self._node_selector(member, verdict))

    def _node_selector(self, member: GangMember, verdict: Admission) -> dict[str, str]:
        if not member.is_pinned:
            return {}
        return narrowing_selector(verdict.pool, verdict.node, self._scope.bindings, any_part=member.follows_others)

    async def _read_pod(self, view: TenantPodView) -> bool:
        """Read a whole pod. Return False if it has changed since, or will never run."""
        mark = view.fingerprint
        try:
            document = decode(await self._reader.read_pod(view))
        except (errors.NotFound, errors.Conflict):
            return False
        if is_gated(view) and await self._reader.reject_forbidden(view, document):
            self._reads.outdated.discard(view.metadata.uid)
            return False
        unserved = await self.ordinary.unserved_kinds(document)
        now = self._pods.store.get(view.metadata.key)
        if now is None or now.metadata.uid != view.metadata.uid:
            return False
        self.observe_pod(document, mark, unserved)
        if view.spec.node_name and self.ordinary.is_ordinary(view):
            self._scope.work_queue.enqueue(POD, view.metadata.key)
        return True

    async def _reconcile_size(self, view: TenantPodView) -> None:
        """Admit a gated pod without devices or marks to nodes of sufficient size, or report why it waits.

        The policy by size has set its gate, or a user has: only the gateway lifts it.
        """
        try:
            document = decode(await self._reader.read_pod(view))
        except (errors.NotFound, errors.Conflict):
            return
        judged = self._sizes.judge_pod(document)
        if judged is None:
            return
        if not judged.reason:
            await self._remove_gate(view, admit_patch(document, judged))
            return
        code = PendingReason.ROOM if judged.is_temporary else PendingReason.INFEASIBLE
        group = f"{view.metadata.namespace}/pod/{view.metadata.uid}"
        await self._report_pending(view, group, PendingMessage(code, judged.reason, judged.reason))

    async def _admit_pod(self, view: TenantPodView, node_selector: Mapping[str, str]) -> None:
        """Lift the gate, and narrow the pod's node selector."""
        await self._remove_gate(view, ungate_patch(view.metadata.uid, node_selector))

    async def _remove_gate(self, view: TenantPodView, patch: Object) -> None:
        metadata = view.metadata
        was_reported = self._reporter.was_reported(metadata.uid)
        self._reporter.forget_pod(metadata.uid)
        try:
            if was_reported:
                await self._set_condition(view, status="True", reason="Admitted", message="the pod may start")
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

    async def report_pending(self, view: TenantPodView, member: GangMember) -> None:
        """Report to a pod why it waits: in a condition that is refreshed occasionally, and in an event for each new
        reason.
        """
        pending = self._admission.pending_message(member)
        if pending is not None:
            await self._report_pending(view, member.gang_group, pending)

    async def _report_pending(self, view: TenantPodView, group: str, pending: PendingMessage) -> None:
        uid = view.metadata.uid
        action = self._reporter.plan_report(uid, group, pending, now=self._scope.clock.monotonic())
        if action.requeue_after is not None:
            self._scope.work_queue.enqueue(GATE, view.metadata.key, action.requeue_after)
        if action.report_now is None:
            return
        try:
            if action.is_new:
                kind: Literal["Normal", "Warning"] = "Warning" if action.report_now.code in _WARNING_CODES else "Normal"
                await self._scope.events.emit_event(
                    view.metadata, reason=action.report_now.code, message=action.report_now.reason, kind=kind
                )
            await self._set_condition(
                view, status="False", reason=action.report_now.code, message=action.report_now.text
            )
        except errors.ApiError:
            self._reporter.report_failed(uid)
            raise

    async def _set_condition(self, view: TenantPodView, *, status: str, reason: str, message: str) -> None:
        now = self._scope.clock.now()
        await set_condition(
            self._client, view, ADMITTED_CONDITION, status=status, reason=reason, message=message, now=now
        )


def is_gated(view: TenantPodView) -> bool:
    """Return whether vkgateway's scheduling gate is on a pod."""
    return any(gate.name == ADMISSION_GATE for gate in view.spec.scheduling_gates)

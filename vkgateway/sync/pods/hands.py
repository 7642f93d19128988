"""The hands: carry out what the table asks for one pod; every act is idempotent and guarded by UID."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.model import times
from vkgateway.model.names import MIRROR_FINALIZER
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute import Key, owned_by
from vkgateway.sync.copies import Copies, Reference
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.marks import EVICTED, FORWARDED
from vkgateway.sync.namespaces import Namespaces
from vkgateway.sync.pods.case import Case, Plan, decode
from vkgateway.sync.pods.record import Instruction
from vkgateway.sync.pods.views import ComputePodView, TenantPodView, decode_compute_pod
from vkgateway.sync.tokens import Tokens
from vkgateway.translate.context import TenantContext
from vkgateway.translate.down import forward_pod
from vkgateway.translate.mutable import spec_changes
from vkgateway.translate.up import clean, failed_status, final_status, mirror_status, taken_below

log = structlog.get_logger(__name__)

FORWARDED_CONDITION: Final = "vkgateway.io/Forwarded"
"""Condition on a tenant pod that says why it is not in the compute cluster yet."""

_NAME_TAKEN_RETRY: Final = 30.0
_CREATED_GRACE: Final = 30.0
"""Seconds for which a pod that was just created below counts as there, though the watch has not shown it."""
_GRACE_SLACK: Final = 2.0
"""Seconds by which two deletion times may differ and still mean the same grace."""


class _Stored(msgspec.Struct):
    metadata: Meta


_decode_stored = msgspec.json.Decoder(_Stored).decode


class Hands:
    """Carries instructions out for one tenant's pods.

    `later(key, seconds)` asks for another look at a pod. Every method raises `errors.ApiError` (or another of our
    errors) where the act could not be done; the caller sorts transient from terminal.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        namespaces: Namespaces,
        copies: Copies,
        tokens: Tokens,
        events: EventRecorder,
        namespace_uid: Callable[[str], str],
        later: Callable[[Key, float], None],
        clock: Callable[[], float],
    ) -> None:
        self.tenant = tenant
        self._client = client
        self._namespaces = namespaces
        self._copies = copies
        self._tokens = tokens
        self._events = events
        self._namespace_uid = namespace_uid
        self._later = later
        self._clock = clock
        self.created: dict[str, float] = {}
        """Tenant pod UIDs whose compute pod was created, until the watch shows it, with the time of giving up."""
        self.taken: dict[str, float] = {}
        """Tenant pod UIDs whose name is taken below, with the time of the next try."""
        self._settled: dict[str, tuple[str, str]] = {}
        """Tenant pod UIDs to the versions above and below whose statuses were last made equal."""
        self._acts: Mapping[Instruction, Callable[[Case], Awaitable[None]]] = {
            Instruction.FORGET: _nothing,
            Instruction.WAIT: _nothing,
            Instruction.DELETE_COMPUTE: self._delete_compute,
            Instruction.DELETE_COMPUTE_LIKE_TENANT: self._delete_compute_like_tenant,
            Instruction.DELETE_AT_DEADLINE: self._delete_at_deadline,
            Instruction.DELETE_STALE: self._delete_stale,
            Instruction.RELEASE: self._release,
            Instruction.NOTICE: self._notice,
            Instruction.REPORT_TAKEN: self._report_taken,
            Instruction.REPORT_MISSING: self._report_missing,
            Instruction.REPORT_HELD: self._report_held,
            Instruction.REPORT_UNDO: self._report_undo,
            Instruction.REFUSE: self._refuse,
            Instruction.LOSE: self._lose,
            Instruction.CREATE: self._create,
            Instruction.STATUS_UP: self._status_up,
            Instruction.SPEC_DOWN: self._spec_down,
            Instruction.FINISH: self._finish,
            Instruction.REMOVE_TENANT: self._remove_tenant,
        }

    async def carry_out(self, instruction: Instruction, case: Case) -> None:
        """Do one instruction for a case."""
        await self._acts[instruction](case)

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a tenant pod that is gone."""
        self.created.pop(uid, None)
        self.taken.pop(uid, None)
        self._settled.pop(uid, None)

    # Downward.

    async def _create(self, case: Case) -> None:
        above, plan = _tenant(case), _plan(case)
        assert case.binding is not None
        whole = decode(await self.whole(above))
        namespace = above.metadata.namespace
        await self._namespaces.ensure(case.link, namespace, self._namespace_uid(namespace))
        for reference in plan.references:
            await self._copies.ensure(case.link, reference)
        if plan.tokens:
            due = await self._tokens.ensure(case.link, above.metadata, plan.service_account, plan.tokens)
            self._later(case.key, due)
        below = forward_pod(whole, tenant=self.tenant, pool=case.binding.pool, namespace=namespace)
        below["metadata"]["annotations"][FORWARDED] = above.fingerprint
        try:
            await case.link.client.create(resources.PODS, below, namespace=below["metadata"]["namespace"])
        except errors.AlreadyExists:
            await self._already_exists(case, below)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            await self._refused_below(case, error)
        else:
            self.created[above.metadata.uid] = self._clock() + _CREATED_GRACE

    async def _already_exists(self, case: Case, below: Object) -> None:
        metadata = below["metadata"]
        raw = await case.link.client.get(resources.PODS, metadata["name"], namespace=metadata["namespace"])
        found = decode_compute_pod(raw)
        uid = _tenant(case).metadata.uid
        if owned_by(self.tenant.name, found.metadata):
            if found.tenant_uid == uid:
                self.created[uid] = self._clock() + _CREATED_GRACE
            else:
                self._later(case.key, 1.0)
            return
        self.taken[uid] = self._clock() + _NAME_TAKEN_RETRY
        await self._report_taken(case)

    async def _refused_below(self, case: Case, error: errors.ApiError) -> None:
        """The compute cluster's own verdict; only what would be the same tomorrow is final."""
        said = clean(error.message, hide=self._hidden(case))
        if isinstance(error, errors.Forbidden) and ("being terminated" in said or "exceeded quota" in said):
            await self._report(case, "ForwardingDelayed", said)
            raise errors.TooManyRequests(said, status=429, reason="TooManyRequests") from error
        await self._fail(case, "ForwardingRefused", f"the compute cluster refused the pod: {said}")

    async def _spec_down(self, case: Case) -> None:
        above, below = _tenant(case), _compute(case)
        if below.metadata.annotations.get(FORWARDED) == above.fingerprint:
            above.raw = None
            if case.plan is not None and case.plan.tokens:
                await self._refresh_tokens(case, case.plan)
            return
        whole = decode(await self.whole(above))
        namespace, name = below.metadata.namespace, below.metadata.name
        current = decode(await case.link.client.get(resources.PODS, name, namespace=namespace))
        assert case.binding is not None
        changes = spec_changes(whole, current, tenant=self.tenant, pool=case.binding.pool)
        for sentence in changes.unsupported:
            await self._events.emit(above.metadata, reason="ChangeNotForwarded", message=sentence)
        patch: Object = changes.patch or {}
        metadata = patch.setdefault("metadata", {})
        metadata["uid"] = below.metadata.uid
        metadata.setdefault("annotations", {})[FORWARDED] = above.fingerprint
        try:
            await case.link.client.patch(resources.PODS, name, patch, namespace=namespace, kind="strategic")
        except errors.Invalid as error:
            said = clean(error.message, hide=self._hidden(case))
            await self._events.emit(above.metadata, reason="ChangeNotForwarded", message=said)

    async def _refresh_tokens(self, case: Case, plan: Plan) -> None:
        due = await self._tokens.ensure(case.link, _tenant(case).metadata, plan.service_account, plan.tokens)
        self._later(case.key, due)

    async def _delete_compute(self, case: Case) -> None:
        below = _compute(case)
        if below.metadata.deletion_timestamp is None:
            await self._delete_below(case, below, grace=None)

    async def _delete_compute_like_tenant(self, case: Case) -> None:
        """Delete below with what is left of the tenant's grace; never force, since only a kubelet ends a pod."""
        above, below = _tenant(case), _compute(case)
        deadline = _deadline(above.metadata)
        if below.metadata.deletion_timestamp is not None:
            known = _deadline(below.metadata)
            if deadline is None or known is None or known <= deadline + _GRACE_SLACK:
                return
        grace = 30.0 if deadline is None else deadline - self._clock()
        await self._delete_below(case, below, grace=max(1, round(grace)))

    async def _delete_below(self, case: Case, below: ComputePodView, *, grace: int | None) -> None:
        try:
            await case.link.client.delete(
                resources.PODS,
                below.metadata.name,
                namespace=below.metadata.namespace,
                uid=below.metadata.uid,
                grace_period_seconds=grace,
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _delete_stale(self, case: Case) -> None:
        await self._delete_compute(case)
        await self._release(case)

    async def _release(self, case: Case) -> None:
        """Take our finalizer off; whatever finalizers others have put there stay."""
        below = _compute(case)
        if not below.held:
            return
        others = [name for name in below.metadata.finalizers if name != MIRROR_FINALIZER]
        metadata: Object = {"uid": below.metadata.uid, "finalizers": others or None}
        if others:
            metadata["resourceVersion"] = below.metadata.resource_version
        try:
            await case.link.client.patch(
                resources.PODS, below.metadata.name, {"metadata": metadata}, namespace=below.metadata.namespace
            )
        except errors.NotFound:
            return

    # Evictions.

    async def _notice(self, case: Case) -> None:
        assert case.admission is not None
        admission = case.admission
        await self._events.emit(_tenant(case).metadata, reason=admission.code, message=admission.message)

    async def _delete_at_deadline(self, case: Case) -> None:
        assert case.admission is not None
        admission, below = case.admission, _compute(case)
        left = (admission.deadline or 0.0) - self._clock()
        if left > 0:
            self._later(case.key, left)
            return
        await case.link.client.patch(
            resources.PODS,
            below.metadata.name,
            {
                "metadata": {
                    "uid": below.metadata.uid,
                    "annotations": {EVICTED: f"{admission.code}: {admission.message}"},
                }
            },
            namespace=below.metadata.namespace,
        )
        await self._delete_compute(case)

    # Upward.

    async def _status_up(self, case: Case) -> None:
        above, below = _tenant(case), _compute(case)
        uid = above.metadata.uid
        versions = above.metadata.resource_version, below.metadata.resource_version
        if self._settled.get(uid) == versions:
            return
        patch = mirror_status(
            _as_object(below),
            msgspec.json.decode(above.status),
            node_ip=self._node_ip(case),
            hide=self._hidden(case),
        )
        if patch is not None:
            versions = await self._patch_status(above.metadata, patch), versions[1]
        self._settled[uid] = versions

    async def _finish(self, case: Case) -> None:
        """Write how it ended; a final status that stands above is never touched."""
        above, below = _tenant(case), _compute(case)
        if above.terminal:
            return
        taken = None
        if above.metadata.deletion_timestamp is None and below.metadata.deletion_timestamp is not None:
            taken = taken_below(_as_object(below), evicted=below.metadata.annotations.get(EVICTED))
        patch = final_status(
            _as_object(below),
            msgspec.json.decode(above.status),
            node_ip=self._node_ip(case),
            hide=self._hidden(case),
            taken=taken,
            now=datetime.fromtimestamp(self._clock(), UTC),
        )
        if patch is None:
            return
        await self._patch_status(above.metadata, patch)
        if taken is not None:
            await self._events.emit(above.metadata, reason=taken.reason, message=taken.message)

    async def _remove_tenant(self, case: Case) -> None:
        above = _tenant(case)
        try:
            await self._client.delete(
                resources.PODS,
                above.metadata.name,
                namespace=above.metadata.namespace,
                uid=above.metadata.uid,
                grace_period_seconds=0,
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _refuse(self, case: Case) -> None:
        refusal = _plan(case).refusals[0]
        more = len(_plan(case).refusals) - 1
        suffix = f" (and {more} more)" if more else ""
        await self._fail(case, "PolicyRefused", f"{refusal.message}{suffix}")

    async def _lose(self, case: Case) -> None:
        await self._fail(
            case,
            "Lost",
            "the pod ran, and nothing of it is left in the compute cluster; it is not started a second time",
            disrupted=True,
        )

    async def _fail(self, case: Case, reason: str, message: str, *, disrupted: bool = False) -> None:
        above = _tenant(case)
        await self._events.emit(above.metadata, reason=reason, message=message)
        patch = failed_status(
            msgspec.json.decode(above.status),
            reason=reason,
            message=message,
            disrupted=disrupted,
            now=datetime.fromtimestamp(self._clock(), UTC),
        )
        if patch is not None:
            await self._patch_status(above.metadata, patch)

    async def _report_taken(self, case: Case) -> None:
        uid = _tenant(case).metadata.uid
        self._later(case.key, max(1.0, self.taken.get(uid, 0.0) - self._clock()))
        await self._report(case, "NameTaken", "the pod's name is taken in the compute cluster by something else")

    async def _report_missing(self, case: Case) -> None:
        await self._report(case, "MissingDependency", missing_sentence(case.missing))

    async def _report_held(self, case: Case) -> None:
        assert case.admission is not None
        await self._report(case, case.admission.code or "Held", case.admission.message, kind="Normal")

    async def _report_undo(self, case: Case) -> None:
        log.warning("pod is final above but runs below; deleting it", tenant=self.tenant.name, pod="/".join(case.key))

    async def report_delay(self, case: Case, error: Exception) -> None:
        """Tell the tenant that its pod waits for something that passes by itself."""
        said = clean(str(error), hide=self._hidden(case))
        await self._report(case, "ForwardingDelayed", said)

    async def _report(self, case: Case, reason: str, message: str, *, kind: Any = "Warning") -> None:
        """An event, and a condition that says the same for as long as it is so."""
        above = _tenant(case)
        await self._events.emit(above.metadata, reason=reason, message=message, kind=kind)
        condition = {"type": FORWARDED_CONDITION, "status": "False", "reason": reason, "message": message}
        standing = _condition(msgspec.json.decode(above.status), FORWARDED_CONDITION)
        if standing is not None and all(standing.get(key) == value for key, value in condition.items()):
            return
        now = times.render(datetime.fromtimestamp(self._clock(), UTC))
        condition["lastTransitionTime"] = now if standing is None else standing.get("lastTransitionTime", now)
        await self._patch_status(above.metadata, {"conditions": [condition]}, kind="strategic")

    async def _patch_status(self, metadata: Meta, status: Object, *, kind: Any = "merge") -> str:
        """Patch a tenant pod's status, only if it is still that very pod; returns the version it then has."""
        answer = await self._client.patch(
            resources.PODS,
            metadata.name,
            {"metadata": {"uid": metadata.uid}, "status": status},
            namespace=metadata.namespace,
            subresource="status",
            kind=kind,
        )
        return _decode_stored(answer).metadata.resource_version

    async def whole(self, view: TenantPodView) -> bytes:
        """The tenant pod with all that is in it: as it came, or asked for anew once it was let go."""
        if view.raw is not None:
            return view.raw
        metadata = view.metadata
        return await self._client.get(resources.PODS, metadata.name, namespace=metadata.namespace)

    def _node_ip(self, case: Case) -> str:
        return case.binding.node_ip if case.binding is not None else ""

    def _hidden(self, case: Case) -> tuple[str, ...]:
        """Names that the tenant must not read: the compute node and namespace."""
        below = case.compute
        if below is None:
            return ()
        node = (below.spec.node_name,) if below.spec.node_name else ()
        return (*node, below.metadata.namespace)


async def _nothing(_case: Case) -> None:
    return


def missing_sentence(missing: list[Reference]) -> str:
    """What a pod waits for, in the words that a kubelet uses."""
    words = {"configmaps": "configmap", "secrets": "secret"}
    return ", ".join(f'{words[kind]} "{name}" not found' for kind, _, name in missing)


def _tenant(case: Case) -> TenantPodView:
    assert case.tenant is not None
    return case.tenant


def _compute(case: Case) -> ComputePodView:
    assert case.compute is not None
    return case.compute


def _plan(case: Case) -> Plan:
    assert case.plan is not None
    return case.plan


def _as_object(view: ComputePodView) -> Object:
    """The part of a compute pod that the translation upward looks at."""
    metadata = view.metadata
    return {
        "metadata": {
            "name": metadata.name,
            "namespace": metadata.namespace,
            "deletionTimestamp": metadata.deletion_timestamp,
        },
        "spec": {"nodeName": view.spec.node_name},
        "status": msgspec.json.decode(view.status),
    }


def _deadline(metadata: Meta) -> float | None:
    return times.parse(metadata.deletion_timestamp).timestamp() if metadata.deletion_timestamp else None


def _condition(status: Object, kind: str) -> Object | None:
    return next((entry for entry in status.get("conditions") or () if entry.get("type") == kind), None)

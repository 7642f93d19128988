"""What is written into the compute cluster about a pod: its creation, changes, deletion and release."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.facts import PoolKey
from vkgateway.kube import errors, resources
from vkgateway.kube.client import encode
from vkgateway.model import times
from vkgateway.model.names import BORROWED_ANNOTATION, MIRROR_FINALIZER, POOL_LABEL, compute_namespace
from vkgateway.model.objects import Meta, Object, decode_object
from vkgateway.sync import finalizers
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import owned_by
from vkgateway.sync.copies import Copies
from vkgateway.sync.marks import AMOUNTS, BEHIND, EVICTED, FORWARDED, LOG_TAILS, REQUESTS, RETAKEN
from vkgateway.sync.metrics import PodMeter
from vkgateway.sync.namespaces import Namespaces
from vkgateway.sync.pods import absences
from vkgateway.sync.pods.case import Case, above_of, below_of, decode, digest, make_plan, plan_of
from vkgateway.sync.pods.changes import ChangesDown
from vkgateway.sync.pods.guard import lost_in_creation
from vkgateway.sync.pods.logtails import read_tails
from vkgateway.sync.pods.readiness import ReadinessDown
from vkgateway.sync.pods.upward import Upward, cleaned
from vkgateway.sync.pods.views import decode_compute_pod
from vkgateway.sync.refusals import is_verdict, lacks_rights
from vkgateway.sync.shared import Shared
from vkgateway.sync.tokens import Tokens
from vkgateway.translate.budget import OversizeError
from vkgateway.translate.context import TenantContext
from vkgateway.translate.down import forward_pod
from vkgateway.translate.guarded import what_is_lost
from vkgateway.translate.subresources import amounts_sum

log = structlog.get_logger(__name__)

_NAME_TAKEN_RETRY: Final = 30.0
_STALE_RETRY: Final = 1.0
_REFUSED_RETRY: Final = 60.0
_CREATED_GRACE: Final = 30.0
"""Seconds for which a pod that was just created below counts as there, though the watch has not shown it."""
_RELEASED_FOR: Final = 30.0
"""Seconds for which a pod whose finalizer was just taken off is left alone, though the watch still shows it."""
_OUR_ACCOUNT: Final = "error looking up service account"
_LATER: Final = (
    "exceeded quota",
    "status unknown for quota",
    "no PriorityClass with name",
    _OUR_ACCOUNT,
)
"""What a 403 says that is no verdict on the pod, beside what `refusals` knows: a quota, or something that we lack.
None of them names a cause that could be looked for instead."""


class OutdatedPlanError(Exception):
    """The pod asks for something else, or breaks other rules, than when it was looked at and admitted."""


class SeenFrom(Protocol):
    """Tells what a pod in a compute cluster must know of its tenant; see `Names.seen_from`, `Services.settle`."""

    async def __call__(self, link: ComputeLink, namespace: str, *, with_services: bool) -> TenantContext:
        """With `with_services` the Services of the tenant's `namespace` stand below first."""


class Downward:
    """Writes below for one tenant's pods.

    `seen_from(link, namespace)` tells what pods in a compute cluster must know of the tenant there, `grace_max(pool)`
    how many seconds pods that borrow in a pool are given to end at most.
    """

    def __init__(
        self,
        tenant: TenantContext,
        shared: Shared,
        *,
        upward: Upward,
        namespaces: Namespaces,
        copies: Copies,
        tokens: Tokens,
        seen_from: SeenFrom,
        grace_max: Callable[[PoolKey], float],
        meter: PodMeter,
    ) -> None:
        self.tenant = tenant
        self._upward = upward
        self._namespaces = namespaces
        self._copies = copies
        self._tokens = tokens
        self._holdings = shared.holdings
        self._seen_from = seen_from
        self._grace_max = grace_max
        self._later = shared.agenda.pod
        self._meter = meter
        self._clock = shared.clock
        self._changes = ChangesDown(upward=upward, copies=copies, later=self._later)
        self.readiness = ReadinessDown(upward=upward, later=self._later)
        self.created: dict[str, float] = {}
        """Tenant pod UIDs whose compute pod was created, until the watch shows it, with the time of giving up."""
        self.taken: dict[str, float] = {}
        """Tenant pod UIDs whose name is taken below, with the time of the next try."""
        self._released: dict[str, float] = {}
        """Compute pod UIDs whose finalizer was taken off, oldest first, with the time of forgetting that."""

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a tenant pod that is gone; what was created for it is there all the same."""
        self.taken.pop(uid, None)

    async def create(self, case: Case) -> None:
        """Make namespace, copies, token and pod, in this order; each may be there already. Raises OutdatedPlanError."""
        above, plan = above_of(case), plan_of(case)
        whole = await self._judged(case)
        namespace = above.metadata.namespace
        below_namespace = await self._namespaces.ensure(case.link, namespace, self._holdings.namespace_uid(namespace))
        self._copies.place(case.key, case.link)
        for reference in plan.references:
            await self._copies.ensure(case.link, reference)
        if plan.tokens:
            await self._refresh_tokens(case)
        try:
            below = await self._translated(case, whole, below_namespace)
        except OversizeError as error:
            await self._upward.fail(case, "ForwardingRefused", f"the pod cannot be forwarded: {error}")
            return
        try:
            lost = await lost_in_creation(case.link, below)
            if not lost:
                await case.link.client.create(
                    resources.PODS, below, namespace=below["metadata"]["namespace"], metadata_only=True
                )
        except errors.AlreadyExists:
            await self._already_exists(case, below)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            await self._refused(case, error)
        else:
            if lost:
                await self._upward.fail(case, "ForwardingRefused", what_is_lost(lost))
            else:
                self._forwarded(case)
                await self._report_optional(case)

    async def _report_optional(self, case: Case) -> None:
        """Emit events about the optional objects that do not exist at the pod's start."""
        missing = [reference for reference in plan_of(case).optional if not self._copies.exists(reference)]
        for absence in absences.optional(missing):
            await self._upward.tell(case, absence.reason, absence.message)

    def _forwarded(self, case: Case) -> None:
        metadata, now = above_of(case).metadata, self._clock()
        self.created[metadata.uid] = now + _CREATED_GRACE
        born = metadata.creation_timestamp
        self._meter.forwarded(now - times.parse(born).timestamp() if born else 0.0)

    async def _judged(self, case: Case) -> Object:
        """The whole pod, which is what was judged and admitted.

        It may have changed since. Nor need a server that is asked twice tell the same: a tenant can put one of its own
        in the place of its API server's. Raises OutdatedPlanError.
        """
        plan, binding = plan_of(case), case.binding
        assert binding is not None
        raw = await self._upward.whole(above_of(case))
        if case.read is not None and case.read[0] is raw:
            return case.read[1]
        whole = decode(raw)
        if digest(raw) == plan.source:
            return whole
        if plan != make_plan(whole, tenant=self.tenant, pool=binding.pool, state=plan.state, source=plan.source):
            raise OutdatedPlanError
        return whole

    async def _translated(self, case: Case, whole: Object, below_namespace: str) -> Object:
        """The compute pod, with what is to be found again on it. Raises OversizeError."""
        above, said, binding = above_of(case), case.admission, case.binding
        assert binding is not None
        with_services = whole["spec"].get("enableServiceLinks") is not False
        below = forward_pod(
            whole,
            tenant=await self._seen_from(case.link, above.metadata.namespace, with_services=with_services),
            pool=binding.pool,
            namespace=below_namespace,
            compute_node=said.node if said is not None else "",
            borrowed=said.borrowed if said is not None else None,
            namespaces=self._holdings.namespace_labels,
            claims=case.claims.names,
        )
        requests = encode(plan_of(case).requests).decode()
        marks = {REQUESTS: requests, AMOUNTS: amounts_sum(whole["spec"])}
        if not whole["spec"].get("ephemeralContainers"):  # none can be given at creation: they are still to go down
            marks[FORWARDED] = above.fingerprint
        below["metadata"]["annotations"] |= marks
        if said is not None and said.behind:
            below["metadata"]["annotations"][BEHIND] = said.behind
        return below

    async def _already_exists(self, case: Case, below: Object) -> None:
        metadata = below["metadata"]
        raw = await case.link.client.get(resources.PODS, metadata["name"], namespace=metadata["namespace"])
        found = decode_compute_pod(raw)
        uid = above_of(case).metadata.uid
        if not owned_by(self.tenant.name, found.metadata):
            self.taken[uid] = self._clock() + _NAME_TAKEN_RETRY
            await self.report_taken(case)
        elif found.tenant_uid == uid:
            self.created[uid] = self._clock() + _CREATED_GRACE
        else:
            self._later(case.key, _STALE_RETRY)

    async def report_taken(self, case: Case) -> None:
        """Tell that the name is taken below, and look again in a while."""
        uid = above_of(case).metadata.uid
        self._later(case.key, max(_STALE_RETRY, self.taken.get(uid, 0.0) - self._clock()))
        message = "the pod's name is taken in the compute cluster by something that is not this tenant's"
        await self._upward.report(case, "NameTaken", message)

    async def _refused(self, case: Case, error: errors.ApiError) -> None:
        """The compute cluster's own verdict; only what would be the same tomorrow is final."""
        said = cleaned(case, error.words, namespace=compute_namespace(self.tenant.name, case.key[0]))
        later = any(words in error.words for words in _LATER) or not is_verdict(error)
        if "NamespaceTerminating" in error.causes or later:
            if _OUR_ACCOUNT in error.words:
                self._namespaces.doubt(case.link, self._holdings.namespace_uid(case.key[0]))
            if lacks_rights(error):
                said = "the compute cluster does not let the gateway make pods now"
            await self._upward.report(case, "ForwardingDelayed", said)
            raise errors.TooManyRequests(said, status=429, reason="TooManyRequests") from error
        await self._upward.fail(case, "ForwardingRefused", f"the compute cluster refused the pod: {said}")

    async def change(self, case: Case) -> None:
        """Bring labels, annotations and mutable fields down where they differ, and keep tokens fresh."""
        above, below = above_of(case), below_of(case)
        if below.forwarded != above.fingerprint:
            await self._changes.write(case, self.tenant)
        else:
            above.raw = None
        if case.plan is not None and case.plan.tokens:
            await self._refresh_tokens(case)

    async def refresh(self, case: Case) -> None:
        """Keep the tokens of a pod that is ending fresh: its containers may need them to its last moment.

        What its tenant's API server refuses by then (the account is gone, its namespace is going) stays as it is.
        """
        above = above_of(case)
        due = self._tokens.due(case.link, above.metadata)
        if due is None:
            return
        if due > 0:
            self._later(case.key, due)
            return
        try:
            case.plan = make_plan(decode(await self._upward.whole(above)), tenant=self.tenant, pool=None)
            await self._refresh_tokens(case)
        except errors.ApiError as error:
            if error.transient:
                raise
            self._later(case.key, _REFUSED_RETRY)

    async def _refresh_tokens(self, case: Case) -> None:
        plan = plan_of(case)
        due = await self._tokens.ensure(case.link, above_of(case).metadata, plan.service_account, plan.tokens)
        self._later(case.key, due)

    async def delete(self, case: Case) -> None:
        """Delete the compute pod with its own grace, unless that is under way."""
        if below_of(case).metadata.deletion_timestamp is None:
            await self._delete(case, grace=self._bounded(case, None))

    async def delete_like_tenant(self, case: Case) -> None:
        """Delete below with what is left of the tenant's grace; never by force, since only a kubelet ends a pod.

        Deletion times are told by three clocks: graces are compared, and what is left is never more than was given.
        They are told in whole seconds, rounded down: so the second that has begun counts as left.
        """
        above, below = above_of(case).metadata, below_of(case).metadata
        given = self._bounded(case, above.deletion_grace_period_seconds)
        if below.deletion_timestamp is not None:
            known = below.deletion_grace_period_seconds
            if given is None or known is None or known <= max(given, 1):
                return
        deadline = _deadline(above)
        left = given if deadline is None else math.ceil(deadline - self._clock())
        await self._delete(case, grace=None if given is None or left is None else max(1, min(left, given)))

    def _bounded(self, case: Case, grace: int | None) -> int | None:
        """A grace in seconds (None: the pod's own), no longer than whoever waits for what it borrows has to wait.

        A pod that is ending is not told to go a second time: with years to end in, it would keep what is another's.
        """
        below = below_of(case)
        metadata = below.metadata
        if metadata.annotations.get(BORROWED_ANNOTATION) != "true":
            return grace
        most = self._grace_max((case.link.name, metadata.labels.get(POOL_LABEL, "")))
        bounded = _capped(below.spec.termination_grace_period_seconds if grace is None else grace, most)
        return None if bounded == below.spec.termination_grace_period_seconds and grace is None else bounded

    async def _delete(self, case: Case, *, grace: int | None, version: str | None = None) -> bool:
        """Delete the compute pod; False where another has its name, or where it is not as in `version` any more."""
        metadata = below_of(case).metadata
        try:
            await case.link.client.delete(
                resources.PODS,
                metadata.name,
                namespace=metadata.namespace,
                uid=metadata.uid,
                resource_version=version,
                grace_period_seconds=grace,
            )
        except errors.Conflict:
            return False
        except errors.NotFound:
            pass
        return True

    async def delete_stale(self, case: Case) -> None:
        """Delete a pod whose end concerns nobody: that of an earlier namesake, or one that was taken back.

        What was taken back is deleted only while it has no node: one that got it at the last moment may run by now, and
        stands for its pod again.
        """
        above, below = above_of(case), below_of(case)
        if below.tenant_uid != above.metadata.uid or below.metadata.deletion_timestamp is not None:
            await self.delete(case)
        elif below.spec.node_name:
            await self._patch_metadata(case, {"uid": below.metadata.uid, "annotations": {RETAKEN: None}})
            return
        elif not await self._delete(case, grace=None, version=below.metadata.resource_version):
            return
        await self.release(case)

    async def release(self, case: Case) -> None:
        """Take our finalizer off; whatever finalizers others have put there stay."""
        below = below_of(case)
        if not below.held:
            return
        uid = below.metadata.uid
        if self._was_released(uid):
            return
        await finalizers.release(case.link.client, resources.PODS, below.metadata, MIRROR_FINALIZER)
        self._released[uid] = self._clock() + _RELEASED_FOR

    def _was_released(self, uid: str) -> bool:
        """Whether the finalizer was taken off a moment ago; the end of a pod comes in several events."""
        now = self._clock()
        while self._released and next(iter(self._released.values())) <= now:
            del self._released[next(iter(self._released))]
        return uid in self._released

    async def delete_at_deadline(self, case: Case) -> None:
        """Delete the pod once its notice has run out, and write down why."""
        assert case.admission is not None
        admission, below = case.admission, below_of(case)
        left = (admission.deadline or 0.0) - self._clock()
        if left > 0:
            self._later(case.key, left)
            return
        await self._annotate_ending(case, {EVICTED: admission.why})
        if below.metadata.deletion_timestamp is None:
            await self._delete(case, grace=_capped(below.spec.termination_grace_period_seconds, admission.grace))

    async def keep_logs(self, case: Case) -> None:
        """Keep the last lines of the logs of a pod that somebody else deletes, while it still has them."""
        await self._annotate_ending(case, {})

    async def _annotate_ending(self, case: Case, annotations: Mapping[str, str]) -> None:
        """Annotate a pod that the tenant did not delete, with the last lines of its logs as well; one write at most."""
        below = below_of(case)
        wanted = dict(annotations)
        if LOG_TAILS not in below.metadata.annotations and (tails := await read_tails(case.link.client, below)):
            wanted[LOG_TAILS] = encode(tails).decode()
        if wanted.items() - below.metadata.annotations.items():
            await self._patch_metadata(case, {"uid": below.metadata.uid, "annotations": wanted})

    async def take_back(self, case: Case) -> None:
        """Remove a pod that no node took: it never ran, and is placed anew; nothing of it is told above.

        Should a node take it at this very moment, that is a conflict, and it stays: see `delete_stale`.
        """
        below = below_of(case).metadata
        metadata: Object = {"uid": below.uid, "resourceVersion": below.resource_version}
        marked = await self._patch_metadata(case, {**metadata, "annotations": {RETAKEN: "true"}})
        if marked is not None:
            await self._delete(case, grace=None, version=marked.resource_version)

    async def _patch_metadata(self, case: Case, metadata: Object) -> Meta | None:
        """Patch the compute pod's metadata, and return what it is then; None where the pod is gone."""
        below = below_of(case).metadata
        try:
            answer = await case.link.client.patch(
                resources.PODS, below.name, {"metadata": metadata}, namespace=below.namespace, metadata_only=True
            )
        except errors.NotFound:
            return None
        return decode_object(answer).metadata


def _capped(grace: int | None, most: float | None) -> int | None:
    """The pod's own grace, or the most that it is given, in seconds; None: its own."""
    return grace if most is None or grace is None else min(grace, int(most))


def _deadline(metadata: Meta) -> float | None:
    return times.parse(metadata.deletion_timestamp).timestamp() if metadata.deletion_timestamp else None

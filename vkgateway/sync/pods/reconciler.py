"""Brings one tenant's pods, above and below, to where the table says they belong; one pod a call."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Protocol

import structlog

from vkgateway.arbiter.limits import Admission, Limits
from vkgateway.kube import errors
from vkgateway.model import times
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import compute_namespace
from vkgateway.model.objects import Object
from vkgateway.model.requests import Milli
from vkgateway.sync.compute.everywhere import everywhere
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.copies import Copies, Reference
from vkgateway.sync.pods import table
from vkgateway.sync.pods.case import (
    Case,
    Plan,
    above_of,
    admission_state,
    below_of,
    compute_state,
    decode,
    dependency_state,
    digest,
    in_the_way,
    is_taken,
    make_plan,
    tenant_state,
)
from vkgateway.sync.pods.downward import OutdatedPlanError
from vkgateway.sync.pods.hands import Hands
from vkgateway.sync.pods.record import ComputePod, Instruction, Record, TenantPod
from vkgateway.sync.pods.room import Room
from vkgateway.sync.pods.upward import FailureDelayedError, cleaned
from vkgateway.sync.pods.views import TenantPodView
from vkgateway.sync.refusals import lacks_rights
from vkgateway.sync.shared import Shared
from vkgateway.sync.storage.users import Users
from vkgateway.sync.tokens import Tokens
from vkgateway.translate.context import TenantContext
from vkgateway.translate.machines import rejection

log = structlog.get_logger(__name__)

_KUBELET_SECONDS: Final = 60.0
"""How long a pod deleted by force below waits for its kubelet to tell how it ended; a lost node's never tells."""
_OF_MACHINES: Final = re.compile(r"\w://|\bdial\b|\d{1,3}(?:\.\d{1,3}){3}|\bx509\b")
"""Words of a server about its own troubles: addresses of webhooks and of machines."""
_LOOK_AGAIN: Final = 0.2
"""Seconds until a pod is looked at anew that changed while it was looked at."""
_LATE: Final = 5.0
"""Seconds until a pod is looked at anyway of which the watch has not shown yet what was written."""
_TELL_AFTER: Final = 60.0
"""Seconds of trouble after which the tenant is told (design contract: transient failures are visible)."""
_TELL_WITHIN: Final = 5.0


class Arbiter(Protocol):
    """What is asked about pods that start only when the arbiter says so."""

    def note(self, pod: Object, view: TenantPodView, *, governed: bool) -> None:
        """The whole of a pod that is bound was read."""

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Whether a pod starts without the arbiter though it carries the mark of a gang."""

    def below_changed(self, key: Key) -> None:
        """What stands for a pod below came, changed or went, or is not waited for any more."""

    def ask(self, case: Case) -> Admission:
        """What is said of a pod that is not below yet."""

    def ask_running(self, case: Case) -> Admission:
        """What is said of one that is."""


class PodReconciler:
    """One tenant's pods; copies that they refer to are freshened, and left when nobody refers to them."""

    def __init__(
        self,
        tenant: TenantContext,
        shared: Shared,
        *,
        hands: Hands,
        copies: Copies,
        tokens: Tokens,
        claims: Users,
        arbiter: Arbiter,
    ) -> None:
        self.tenant = tenant
        self.pods = shared.holdings.pods
        self.links = shared.links
        self.bindings = shared.bindings
        self.hands = hands
        self.copies = copies
        self.tokens = tokens
        self._claims = claims
        self._arbiter = arbiter
        self._agenda = shared.agenda
        self._room = Room(tenant.name, Limits(), wake=self._agenda.pod)
        self._clock = shared.clock
        self._plans: dict[Key, Plan] = {}
        self._outdated: set[Key] = set()
        self._trouble: dict[Key, float] = {}
        self.waiting: dict[Reference, set[Key]] = {}
        """Pods that wait for an object which is not there yet."""

    def forget_plans(self) -> None:
        """Work plans out anew before anything is created by them: the tenant's policy has changed.

        Pods that are below already keep theirs, of which only what forbids a pod can have changed.
        """
        self._outdated = set(self._plans)

    def set_limit(self, pool: str, limit: Milli) -> list[Key]:
        """Set what may be used of a pool; returns the pods that were held there."""
        return self._room.set_limit(pool, limit)

    def _pool_of(self, node: str) -> str:
        """Return the name of the pool that a virtual node belongs to."""
        binding = self.bindings.get(node)
        return binding.pool.pool_name if binding is not None else node

    async def reconcile(self, key: Key) -> None:
        """Look at one pod and do what follows; raises `errors.ApiError` where that must be tried again."""
        view = self.pods.items.get(key)
        known = self._plans.get(key)
        if known is not None and (view is None or view.metadata.uid != known.uid):
            await self._forget(key, known)
        created = self.hands.downward.created
        left = self._room.settle(key, view, self.links.values(), created=created, now=self._clock())
        if left is not None:
            self._agenda.pod(key, left)
        if view is None:
            self._arbiter.below_changed(key)

        async def settle(case: Case) -> None:
            try:
                await self._settle(case)
            except (errors.ApiError, ConflictError, UnavailableError) as error:
                await self._troubled(case, error)
                raise

        await everywhere(self._cases(key, view), settle)
        self._trouble.pop(key, None)

    def _cases(self, key: Key, view: TenantPodView | None) -> Iterable[Case]:
        """The pod in the cluster where it belongs, and whatever else stands under its name in the others."""
        binding = self.bindings.get(view.spec.node_name) if view is not None else None
        for link in list(self.links.values()):
            below = link.pods.find(self.tenant.name, key)
            bound_here = binding is not None and binding.link is link
            is_its = below is not None and view is not None and below.tenant_uid == view.metadata.uid
            if bound_here or is_its:
                yield Case(key=key, link=link, tenant=view, compute=below, binding=binding)
            elif below is not None:
                yield Case(key=key, link=link, tenant=None, compute=below, binding=None)

    async def _settle(self, case: Case) -> None:
        record = await self._observe(case)
        refused: errors.ApiError | None = None
        for instruction in table.decide(record):
            try:
                await self.hands.carry_out(instruction, case)
            except OutdatedPlanError:
                self._outdated.add(case.key)
                self._agenda.pod(case.key, _LOOK_AGAIN)
                return
            except FailureDelayedError:
                return
            except errors.ApiError as error:
                # The tenant's own webhooks may refuse a status. What goes down does not wait for that.
                if instruction is not Instruction.STATUS_UP or error.transient:
                    raise
                refused = error
        if case.resize_refused:
            self._keep_size(case)
        if refused is not None:
            raise refused

    def _keep_size(self, case: Case) -> None:
        """Count the pod with what it has below, which it keeps."""
        above, requests = above_of(case), below_of(case).requests
        if requests is not None:
            self._room.resize(above.metadata.uid, self._pool_of(above.spec.node_name), requests)

    async def _observe(self, case: Case) -> Record:
        """Reduce a case to its record; what a state does not need is not looked up."""
        above, below = tenant_state(case.tenant), self._compute_state(case)
        if above is TenantPod.BOUND and below in (ComputePod.ABSENT, ComputePod.LIVE):
            await self._prepare(case, absent=below is ComputePod.ABSENT)
            if case.claims.early:
                below = ComputePod.UNKNOWN
        return Record(
            tenant=above,
            compute=below,
            dependencies=dependency_state(case),
            admission=admission_state(case),
            ran=case.tenant is not None and case.tenant.ran,
            taken=is_taken(case.tenant),
            in_the_way=in_the_way(case.tenant),
            list_complete=self.pods.complete,
        )

    def _compute_state(self, case: Case) -> ComputePod:
        """What the stores show, and what we know beyond them: pods created a moment ago, and names that are taken."""
        state = compute_state(case)
        if state is ComputePod.DELETING and self._given_up(case):
            state = ComputePod.TERMINAL_DELETING
        if case.tenant is None:
            return state
        uid = case.tenant.metadata.uid
        if state is not ComputePod.ABSENT:
            self.hands.downward.created.pop(uid, None)
            return state
        if self.hands.upward.is_late(case.tenant.metadata):
            # It may have ended, and that was told; the watch has it looked at again.
            self._agenda.pod(case.key, _LATE)
            return ComputePod.UNKNOWN
        now = self._clock()
        if self.hands.downward.created.get(uid, 0.0) > now:
            return ComputePod.UNKNOWN
        if self.hands.downward.taken.get(uid, 0.0) > now:
            return ComputePod.FOREIGN
        return state

    def _given_up(self, case: Case) -> bool:
        """Whether a pod was deleted by force below and no kubelet has ended it since: only our finalizer holds it."""
        metadata = below_of(case).metadata
        if metadata.deletion_grace_period_seconds != 0 or metadata.deletion_timestamp is None:
            return False
        left = times.parse(metadata.deletion_timestamp).timestamp() + _KUBELET_SECONDS - self._clock()
        if left > 0:
            self._agenda.pod(case.key, left)
        return left <= 0

    async def _prepare(self, case: Case, *, absent: bool) -> None:
        """Work out the pod's plan, what it misses and whether it is admitted."""
        assert case.tenant is not None
        uid = case.tenant.metadata.uid
        plan = case.plan = self._plans.get(case.key)
        if plan is None or (absent and case.key in self._outdated) or self._is_changed(case, plan, absent=absent):
            old, plan = plan, await self._make_plan(case)
            case.plan = plan
            if absent and old is not None and old.requests != plan.requests:
                self._room.withdraw(case.key, uid)
        if plan.governed and self._arbiter.is_ordinary(case.tenant):
            case.plan = plan = replace(plan, governed=False)
        if not absent:
            pool = self._pool_of(case.tenant.spec.node_name)
            self._room.running(case.key, uid=uid, pool=pool, requests=plan.requests)
            if below_of(case).forwarded != case.tenant.fingerprint:
                case.resize = self._room.resize(uid, pool, plan.requests)
            if plan.governed:
                case.admission = self._arbiter.ask_running(case)
            return
        case.missing = [reference for reference in plan.mandatory if not self.copies.exists(reference)]
        for reference in case.missing:
            self.waiting.setdefault(reference, set()).add(case.key)
        if plan.refusals or case.missing:
            return
        case.claims = self._claims.find(case.key, plan.claims, case.link)
        if case.claims.lacking:
            return
        case.admission = self._admit(case, plan)

    def _admit(self, case: Case, plan: Plan) -> Admission:
        """What is said of a pod that is not below yet: by its tenant's limits, and by the arbiter if it governs it."""
        above = above_of(case)
        uid, pool, requests = above.metadata.uid, self._pool_of(above.spec.node_name), plan.requests
        # Before the compute nodes are known, nobody can say what a virtual node lacks.
        by_hand = not plan.scheduled and case.link.nodes.complete
        if (by_hand or not plan.governed) and (too_large := _too_large(case, plan)) is not None:
            self._room.withdraw(case.key, uid)
            return too_large
        if not plan.governed:
            return self._room.ask(case.key, case.link, uid=uid, pool=pool, requests=requests, by_hand=by_hand)
        if by_hand:
            rejected = self._room.stand(case.key, case.link, uid=uid, pool=pool, requests=requests)
            if rejected is not None:
                return rejected
        admission = self._arbiter.ask(case)
        if admission.verdict == "admitted":
            self._room.running(case.key, uid=uid, pool=pool, requests=requests)
        return admission

    @staticmethod
    def _is_changed(case: Case, plan: Plan, *, absent: bool) -> bool:
        """Whether a pod's spec was changed and that is not below yet: pods can be resized while they wait, too."""
        above = above_of(case)
        return plan.state != above.spec_state and (absent or below_of(case).forwarded != above.fingerprint)

    async def _make_plan(self, case: Case) -> Plan:
        raw = await self.hands.upward.whole(above_of(case))
        whole = decode(raw)
        case.read = raw, whole
        pool = case.binding.pool if case.binding is not None else None
        plan = self._plans[case.key] = make_plan(
            whole, tenant=self.tenant, pool=pool, state=above_of(case).spec_state, source=digest(raw)
        )
        self._arbiter.note(whole, above_of(case), governed=plan.governed)
        self._outdated.discard(case.key)
        # What a refused pod refers to stays above; one that is below already keeps what it has.
        referred = () if plan.refusals and case.compute is None else plan.references
        self.copies.refer(case.key, referred)
        if case.compute is not None:
            self.copies.place(case.key, case.link)
        for reference in referred:
            self._agenda.copy(reference)
        return plan

    async def _forget(self, key: Key, plan: Plan) -> None:
        """The pod is gone above: drop what was made for it alone."""
        self._plans.pop(key, None)
        self._claims.forget(key)
        self._outdated.discard(key)
        for reference in plan.mandatory:
            waiting = self.waiting.get(reference, set())
            waiting.discard(key)
            if not waiting:
                self.waiting.pop(reference, None)
        for reference in self.copies.forget(key):
            self._agenda.unused_copy(reference)
        if plan.tokens:
            for link in list(self.links.values()):
                await self.tokens.remove(link, key, plan.uid)

    async def _troubled(self, case: Case, error: Exception) -> None:
        """Note trouble with a pod; once it has lasted, tell the tenant of it."""
        since = self._trouble.setdefault(case.key, self._clock())
        waited = self._clock() - since >= _TELL_AFTER
        if case.tenant is None or case.tenant.terminal or not waited:
            return
        try:
            said = cleaned(case, _sentence(error), namespace=compute_namespace(self.tenant.name, case.key[0]))
            # Where it is the tenant's own server that does not answer, telling it must not hold the worker as well.
            async with asyncio.timeout(_TELL_WITHIN):
                await self.hands.upward.report(case, "ForwardingDelayed", said)
        except (errors.ApiError, TimeoutError) as second:
            log.warning("cannot tell of a delay", tenant=self.tenant.name, pod="/".join(case.key), error=str(second))


def _too_large(case: Case, plan: Plan) -> Admission | None:
    """Return the rejection of a pod that no machine of its pool can take: it must not hold the virtual node's sums."""
    nodes = case.link.nodes
    if case.binding is None or not nodes.complete:
        return None
    found = rejection(plan.requests, nodes.behind(case.binding.pool).machines)
    return Admission("rejected", *found) if found is not None else None


def _sentence(error: Exception) -> str:
    """What a tenant may know of trouble: not which server was asked for what."""
    if isinstance(error, errors.Unreachable):
        return "a server does not answer; it is tried again"
    if isinstance(error, errors.ServerError) and _OF_MACHINES.search(error.words):
        return f"a server failed ({error.status}); it is tried again"
    if lacks_rights(error):
        return "a server does not let the gateway do that now; it is tried again"
    return error.words if isinstance(error, errors.ApiError) else str(error)

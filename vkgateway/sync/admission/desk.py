"""All that concerns admission of one tenant's pods, wired; what its watches and reconcilers speak to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from vkgateway.arbiter.facts import Quota
from vkgateway.arbiter.limits import Admission
from vkgateway.model.names import COMPUTE_NODE_ANNOTATION
from vkgateway.model.objects import Object
from vkgateway.sync.admission.beside import Beside
from vkgateway.sync.admission.done import DoneRecords
from vkgateway.sync.admission.gates import Gates, is_gated
from vkgateway.sync.admission.machines import Machines
from vkgateway.sync.admission.notices import Notices
from vkgateway.sync.admission.tenant import Service, TenantAdmission
from vkgateway.sync.compute.ownership import Key
from vkgateway.sync.pods.case import Case, above_of, below_of
from vkgateway.sync.pods.views import TenantPodView
from vkgateway.sync.shared import Shared
from vkgateway.translate.gangs import Kind, Reference
from vkgateway.translate.governed import VirtualNode

RETAKEN: Final = Admission("retaken")


class ArbiterService(Service, Protocol):
    """The arbitration, as one tenant's part sees it."""

    @property
    def clock(self) -> Callable[[], float]:
        """The time by which notices run, in seconds since the epoch."""

    @property
    def bind_seconds(self) -> float:
        """Seconds after which a compute pod that its node has not taken is taken back."""

    def add(self, tenant: TenantAdmission) -> None:
        """Arbitrate for a tenant from now on."""

    def remove(self, name: str) -> None:
        """Do so no longer."""

    def avoid(self, cluster: str, node: str) -> bool:
        """Leave a node alone for a while; False: too many are already."""


class Desk:
    """One tenant's. `whole`, `places` and `refuse` are as `Gates` has them, `sent` as `TenantAdmission`."""

    def __init__(
        self,
        name: str,
        shared: Shared,
        *,
        service: ArbiterService,
        sent: Mapping[str, float],
        whole: Callable[[TenantPodView], Awaitable[bytes]],
        places: Callable[[Object], Sequence[Sequence[Object]]],
        refuse: Callable[[TenantPodView, Object], Awaitable[bool]],
    ) -> None:
        client, links, bindings, events = shared.client, shared.links, shared.bindings, shared.events
        self._name = name
        self._pods = pods = shared.holdings.pods
        self._service = service
        self._agenda = shared.agenda
        self._clock = clock = shared.clock
        self._unbound: dict[str, tuple[str, float]] = {}
        """Compute pods that no node has taken, by the uid of whom they stand for, and since when that is seen."""
        self._nodes: dict[str, VirtualNode] = {}
        """The tenant's virtual nodes as its API server shows them."""
        self.beside = Beside(name, client, changed=self._beside_changed, kind_changed=self._kind_changed)
        self.machines = Machines(name, client, bindings=bindings, nodes=self._nodes, changed=self._machines_changed)
        self.notices = Notices(client, events=events, clock=clock)
        self.done = DoneRecords(name, links, who=lambda: self.admission)
        self.admission = TenantAdmission(
            name,
            pods,
            links=links,
            bindings=bindings,
            service=service,
            sent=sent,
            look=self._look,
            clock=clock,
            memory=self.done,
            settled=lambda: self.gates.settled,
            followed=lambda: shared.holdings.complete,
        )
        self.gates = Gates(
            self.admission,
            client,
            pods,
            bindings=bindings,
            nodes=self._nodes,
            beside=self.beside,
            events=events,
            whole=whole,
            places=places,
            refuse=refuse,
            machines=self.machines.judge,
            later=self._agenda.gate,
            go_on=self._agenda.pod,
            clock=clock,
            monotonic=shared.monotonic,
        )

    async def run(self) -> None:
        """Take part in the arbitration until cancelled."""
        self._service.add(self.admission)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.beside.run(), name=f"tenant/{self._name}/beside")
                group.create_task(self.done.run(), name=f"tenant/{self._name}/done")
                group.create_task(self.machines.run(), name=f"tenant/{self._name}/machines")
        finally:
            self._service.remove(self._name)

    def rebound(self, quotas: Iterable[Quota]) -> None:
        """The tenant's pools, or what it may use of them, changed: pods may reach others now."""
        self.admission.rebound(quotas)
        self.machines.rebound()
        self._reach_changed()

    def node_changed(self, name: str, node: VirtualNode) -> None:
        """A virtual node's labels or taints are others now, or it was cordoned or uncordoned: pods may reach others."""
        if self._nodes.get(name) != node:
            self._nodes[name] = node
            self._reach_changed()

    def volumes_changed(self) -> None:
        """Volumes may be elsewhere than was known: pods that use any may fit on other nodes."""
        for key in self.gates.volumes_changed():
            self._agenda.gate(key)

    def _reach_changed(self) -> None:
        self.gates.pools_changed()
        for member in self.admission.gangs:
            self._agenda.gate(member.key)
        self._machines_changed()

    def _machines_changed(self) -> None:
        """Look again at the pods that are held by their size, or whose size could not be judged yet."""
        for key, view in self._pods.items.items():
            if is_gated(view) and not self.admission.places(view.metadata.uid):
                self._agenda.gate(key)

    def listed(self) -> None:
        """Everything that the tenant has is known: what was not read yet is read, looks that were put off are made."""
        self.admission.unread.intersection_update(self._pods.items)
        for key, view in self._pods.items.items():
            if self.gates.wants(view):
                self._read(key)
            elif is_gated(view):
                self._agenda.gate(key)
        self.admission.listed()

    def pod_changed(self, old: TenantPodView | None, new: TenantPodView | None) -> None:
        """A pod came, changed or went above."""
        view = new or old
        assert view is not None
        key = view.metadata.key
        if new is None:
            self.gates.gone(view.metadata.uid)
        elif self.gates.wants(new):
            self._read(key)
        self.below_changed(key)

    def below_changed(self, key: Key) -> None:
        """What stands for a pod below came, changed or went."""
        for member in self.admission.changed(key):
            self.gates.forget(member)
            self._unbound.pop(member.uid, None)
        if self.gates.below_changed(key):
            self._read(key)

    # What the pods' reconciler asks.

    def note(self, pod: Object, view: TenantPodView, *, governed: bool) -> None:
        """The whole of a pod that is bound was read. One of which the tenant's server must be asked waits for that."""
        if governed and self.gates.wants_now(view) and not self.gates.ordinary.must_ask(pod):
            self.gates.note(pod, view.fingerprint)

    def is_ordinary(self, view: TenantPodView) -> bool:
        """Whether a pod starts without the arbiter though it carries a mark: its tenant has no such kind."""
        return self.gates.ordinary.knows(view)

    def ask(self, case: Case) -> Admission:
        """What is said of a pod that is not below yet."""
        above = above_of(case)
        return self.admission.ask(above.metadata.uid, above.spec.node_name)

    def ask_running(self, case: Case) -> Admission:
        """What is said of one that is; where no node has taken it in time, that it is to be taken back."""
        below = below_of(case)
        node = below.metadata.annotations.get(COMPUTE_NODE_ANNOTATION, "")
        uid = above_of(case).metadata.uid
        if below.spec.node_name:
            self._unbound.pop(uid, None)
            self.admission.keep(uid, below.metadata.uid)
        elif node:
            left = self._since(uid, below.metadata.uid) + self._service.bind_seconds - self._clock()
            if left <= 0 and self._service.avoid(case.link.name, node):
                self.admission.retake(uid, below.metadata.uid)
                return RETAKEN
            self._agenda.pod(case.key, left if left > 0 else self._service.bind_seconds)
        return self.admission.ask_running(uid)

    def _since(self, uid: str, compute_uid: str) -> float:
        """Since when a compute pod is seen without a node, by our own clock: the compute cluster's may be another."""
        known = self._unbound.get(uid)
        if known is None or known[0] != compute_uid:
            known = self._unbound[uid] = compute_uid, self._clock()
        return known[1]

    async def tell_held(self, case: Case) -> None:
        """Tell a pod that is held at the gateway why it waits."""
        view = above_of(case)
        member = self.admission.gangs.member(view.metadata.uid)
        if member is not None:
            await self.gates.tell(view, member)

    def _read(self, key: Key) -> None:
        self.admission.unread.add(key)
        self._agenda.gate(key)

    def _look(self, key: Key) -> None:
        """Something new is said of a pod: whoever has it in hands looks at it."""
        view = self._pods.items.get(key)
        if view is not None and view.spec.node_name:
            self._agenda.pod(key)
        else:
            self._agenda.gate(key)

    def _beside_changed(self, reference: Reference) -> None:
        for key in self.gates.beside_changed(reference):
            self._read(key)

    def _kind_changed(self, kind: Kind) -> None:
        for key in self.gates.kind_changed(kind):
            self._read(key)

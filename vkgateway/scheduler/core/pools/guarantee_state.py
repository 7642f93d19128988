"""Guaranteed pods of a pool: the pods inside their tenants' guarantees, and the gangs that may enter them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkgateway.scheduler.core.capacity.expected_ends import ExpectedEnds
from vkgateway.scheduler.core.capacity.node_fit import BoolArray
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.guarantees.guarantee_reservation import GuaranteeReservation
from vkgateway.scheduler.core.guarantees.guarantee_sums import may_hold
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees, use_for_pods
from vkgateway.scheduler.core.guarantees.usage import GuaranteeUsage
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.pools.gang_index import GangIndex
from vkgateway.scheduler.core.pools.reservations import PoolReservations
from vkgateway.scheduler.core.pools.victims import PoolVictims
from vkgateway.scheduler.core.queueing.gang_rank import is_ranked_after
from vkgateway.scheduler.core.queueing.tenant_usage import TenantUsage
from vkgateway.scheduler.core.snapshot import GUARANTEED, Gang, Pod


class GuaranteeState:
    """Use of the guarantees of one pool during a cycle."""

    def __init__(
        self,
        usage: GuaranteeUsage,
        *,
        tenant_usage: TenantUsage,
        gang_index: GangIndex,
        victims: PoolVictims,
        reservations: PoolReservations,
        expected_ends: ExpectedEnds,
        journal: Journal,
    ) -> None:
        self._journal = journal
        self.usage = usage
        self._tenant_usage, self._gang_index, self._victims = tenant_usage, gang_index, victims
        self._reservations, self._expected_ends = reservations, expected_ends
        self._now = 0.0
        self._node_resources: NodeResources | None = None
        self._unused_nodes: BoolArray | None = None

    def begin_round(self, now: float, node_resources: NodeResources) -> None:
        """Count the guarantees again if nodes or quotas have changed."""
        self._now, self._node_resources = now, node_resources
        self._unused_nodes = None
        for name in self.usage.recount(self._tenant_usage.quotas.values(), self._gang_index.gangs):
            self._victims.mark_changed(name)

    @property
    def guarantees(self) -> PoolGuarantees:
        """The tenants' guarantees."""
        return self.usage.guarantees

    @property
    def unused_nodes(self) -> BoolArray:
        """Mask of the nodes without guaranteed pods, as of the first read in this round."""
        if self._unused_nodes is None:
            assert self._node_resources is not None
            self._unused_nodes = ~self.guarantees.used_nodes()[self._node_resources.nodes.pool_order]
        return self._unused_nodes

    def is_guaranteed(self, uid: str) -> bool:
        """Return whether a placed pod is inside its tenant's guarantee."""
        return uid in self.usage.pods.uids

    def has_no_borrower(self, running: Iterable[Pod]) -> bool:
        """Return whether all these running min members are inside the guarantee. If some borrow, no other may enter it
        alone: it would stay when they are evicted, as half a gang.
        """
        unit = self.usage.pool.unit_resource
        return all(self.is_guaranteed(pod.uid) for pod in running if pod.shape.amount_of(unit))

    def borrowing_gangs(self) -> list[Gang]:
        """Return the gangs of the guaranteed band with running pods that borrow, by name."""
        gangs = self._gang_index.gangs
        names = sorted(self._gang_index.borrowing | self.usage.demoted_gangs())
        return [gang for name in names if (gang := gangs[name]).band is GUARANTEED]

    def entered_gangs(self) -> list[Gang]:
        """Return the running gangs whose pods entered guarantees in this cycle, by name."""
        gangs = self._gang_index.gangs
        return [gangs[name] for name in sorted(self.usage.pods.entered_gangs) if name in gangs]

    def promote_pods(self, gang: Gang, placed: Sequence[tuple[Pod, str]]) -> bool:
        """Count placed pods of a gang as guaranteed, if the guarantee holds all of them on their nodes."""
        pods = [pod for pod, _ in placed]
        if not self.may_use_guarantee(gang, pods):
            return False
        if not use_for_pods(self.guarantees, gang.tenant, self.usage.pool.unit_resource, placed):
            return False
        self.mark_guaranteed(gang.tenant, pods, gang=gang.id)
        return True

    def mark_guaranteed(self, tenant: str, pods: Iterable[Pod], *, gang: str) -> None:
        """Count pods as guaranteed for which the guarantee is used already."""
        for pod in pods:
            self.usage.pods.enter_pod(tenant, pod, gang=gang)
        if gang in self._gang_index.gangs:
            self._victims.mark_changed(gang)
            self._journal.record(self._victims.mark_changed, gang)

    def demote_pods(self, tenant: str, pods: Iterable[Pod]) -> None:
        """Count a tenant's guaranteed pods among these as borrowing: a gang of higher rank takes their part of it."""
        for pod in pods:
            if self.is_guaranteed(pod.uid):
                self.usage.demote_pod(tenant, pod)

    def may_use_guarantee(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Return whether the guarantee, by its sums alone, has enough left for a gang; a necessary condition.

        It has not while a part is reserved for a gang that comes first; `has_guarantee_left` ignores reservations.
        """
        return self.reserved_ahead(gang) is None and self.has_guarantee_left(gang, pods)

    def reserved_ahead(self, gang: Gang) -> GuaranteeReservation | None:
        """Return what is reserved for a gang that comes first; None if this gang ends before that starts."""
        reservation = self._reservations.guarantees.get(gang.tenant)
        if reservation is None or gang.short or not is_ranked_after(gang, reservation.gang):
            return None
        run = self._expected_ends.expected_run_time(gang)
        ends_before = reservation.start is not None and run is not None and self._now + run <= reservation.start
        return None if ends_before else reservation

    def has_guarantee_left(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Return whether the guarantee, by its sums alone, has enough left, reserved parts included."""
        quota = self._tenant_usage.quotas.get(gang.tenant)
        return quota is not None and may_hold(self.usage, quota, gang, pods)

"""Guaranteed pods of a pool: the pods in their tenants' cells, and the gangs that may enter them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vkgateway.arbiter.capacity.expected_ends import ExpectedEnds
from vkgateway.arbiter.capacity.node_fit import BoolArray
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.guarantees.cell_placement import allocate_placed
from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.guarantees.derived_bindings import allocate_with_rebinding
from vkgateway.arbiter.guarantees.guarantee_sums import may_hold
from vkgateway.arbiter.guarantees.reserved_cells import CellReservation
from vkgateway.arbiter.guarantees.usage import GuaranteeUsage
from vkgateway.arbiter.pools.gang_index import GangIndex
from vkgateway.arbiter.pools.reservations import PoolReservations
from vkgateway.arbiter.pools.victims import PoolVictims
from vkgateway.arbiter.queueing.gang_rank import is_ranked_after
from vkgateway.arbiter.queueing.tenant_usage import TenantUsage
from vkgateway.arbiter.snapshot import GUARANTEED, Gang, Pod


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
    ) -> None:
        self.usage = usage
        self.rebind_count = 0
        """Gangs in this round for which the cells of all tenants were bound again."""
        self._tenant_usage, self._gang_index, self._victims = tenant_usage, gang_index, victims
        self._reservations, self._expected_ends = reservations, expected_ends
        self._now = 0.0
        self._node_resources: NodeResources | None = None
        self._unbound_nodes: BoolArray | None = None
        self._nodes_without_spare: BoolArray | None = None

    def begin_round(self, now: float, node_resources: NodeResources) -> None:
        """Count the cells again if their pods have changed."""
        self._now, self._node_resources = now, node_resources
        self._unbound_nodes = self._nodes_without_spare = None
        self.rebind_count = 0
        for name in self.usage.recount_cells(self._tenant_usage.quotas.values(), self._gang_index.gangs):
            self._victims.mark_changed(name)

    @property
    def cells(self) -> PoolCells:
        """The tenants' cells."""
        return self.usage.cells

    @property
    def unbound_nodes(self) -> BoolArray:
        """Mask of the nodes to which no cell was bound at the first read in this round."""
        if self._unbound_nodes is None:
            assert self._node_resources is not None
            self._unbound_nodes = ~self._node_resources.nodes.mask_of(self.cells.bound_nodes())
        return self._unbound_nodes

    @property
    def nodes_without_spare(self) -> BoolArray:
        """Mask of the nodes on which no bound cell had spare units at the first read in this round."""
        if self._nodes_without_spare is None:
            cells, resources = self.cells, self._node_resources
            assert resources is not None
            spare = [
                name
                for tenant in self._tenant_usage.quotas
                for name in cells.bound_cells(tenant)
                if name in resources.nodes and cells.spare_amount(tenant, name) > 0
            ]
            self._nodes_without_spare = ~resources.nodes.mask_of(spare)
        return self._nodes_without_spare

    def is_guaranteed(self, uid: str) -> bool:
        """Return whether a placed pod is in its tenant's cells."""
        return uid in self.usage.pods.uids

    def borrowing_gangs(self) -> list[Gang]:
        """Return the gangs of the guaranteed band with running pods that borrow, by name."""
        gangs = self._gang_index.gangs
        names = sorted(self._gang_index.borrowing | self.usage.demoted_gangs())
        return [gang for name in names if (gang := gangs[name]).band is GUARANTEED]

    def entered_gangs(self) -> list[Gang]:
        """Return the running gangs whose pods entered cells in this cycle, by name."""
        gangs = self._gang_index.gangs
        return [gangs[name] for name in sorted(self.usage.pods.entered_gangs) if name in gangs]

    def promote_pods(self, gang: Gang, placed: Sequence[tuple[Pod, str]]) -> bool:
        """Count placed pods of a gang as guaranteed, if cells hold all of them on their nodes."""
        pods = [pod for pod, _ in placed]
        if not self.may_use_guarantee(gang, pods):
            return False
        if not allocate_placed(self.cells, gang.tenant, self.usage.pool.unit_resource, placed):
            return False
        self.mark_guaranteed(gang.tenant, pods, gang=gang.id)
        return True

    def mark_guaranteed(self, tenant: str, pods: Iterable[Pod], *, gang: str) -> None:
        """Count pods as guaranteed whose cells are allocated already."""
        for pod in pods:
            self.usage.pods.enter_pod(tenant, pod, gang=gang)
        if gang in self._gang_index.gangs:
            self._victims.mark_changed(gang)

    def demote_pods(self, tenant: str, pods: Iterable[Pod]) -> None:
        """Count a tenant's guaranteed pods among these as borrowing: a gang of higher rank takes their cells."""
        for pod in pods:
            if self.is_guaranteed(pod.uid):
                self.usage.demote_pod(tenant, pod)

    def may_use_guarantee(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Return whether the guarantee, by its sums alone, has enough left for a gang; a necessary condition.

        It has not while cells are reserved for a gang that comes first; `has_guarantee_left` ignores reservations.
        """
        return self.cells_reserved_ahead(gang) is None and self.has_guarantee_left(gang, pods)

    def cells_reserved_ahead(self, gang: Gang) -> CellReservation | None:
        """Return the cells that are reserved for a gang that comes first; None if this gang ends before that starts."""
        reservation = self._reservations.cells.get(gang.tenant)
        if reservation is None or not is_ranked_after(gang, reservation.gang):
            return None
        run = self._expected_ends.expected_run_time(gang)
        ends_before = reservation.start is not None and run is not None and self._now + run <= reservation.start
        return None if ends_before else reservation

    def has_guarantee_left(self, gang: Gang, pods: Sequence[Pod]) -> bool:
        """Return whether the guarantee, by its sums alone, has enough left, reserved cells included."""
        quota = self._tenant_usage.quotas.get(gang.tenant)
        return quota is not None and may_hold(self.usage, quota, gang, pods)

    def allocate_with_rebinding(self, tenant: str, amounts: Mapping[str, int]) -> bool:
        """Allocate amounts by node in a tenant's cells, with the cells of all tenants bound again.

        False: that is not possible, and nothing has changed.
        """
        self.rebind_count += 1
        return allocate_with_rebinding(self.cells.bindings, tenant, amounts)

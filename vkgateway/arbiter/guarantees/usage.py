"""Usage of a pool's guarantees by placed pods and by plans, and the cells derived from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vkgateway.arbiter.guarantees.cells import PoolCells
from vkgateway.arbiter.guarantees.guaranteed_pods import GuaranteedPods
from vkgateway.arbiter.guarantees.guaranteed_pods import Mark as PodsMark
from vkgateway.arbiter.guarantees.planned_usage import PlannedUsage
from vkgateway.arbiter.snapshot import Gang, Pod, Pool, Quota

Mark = tuple[int, PodsMark]


class GuaranteeUsage:
    """Usage of guarantees across cycles; the cells are derived again when the pods inside change."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.pods = GuaranteedPods()
        self.plans = PlannedUsage()
        self._units: dict[tuple[str, str], int] = {}
        """Thousandths of the unit by tenant and node."""
        self._cells: PoolCells | None = None
        self._demoted: list[tuple[Gang, Pod]] = []
        self._changed_gangs: set[str] = set()
        """Gangs with pods that entered or left cells since the last derivation."""

    @property
    def cells(self) -> PoolCells:
        """Current cells; available after `recount_cells`."""
        if self._cells is None:
            raise AssertionError("cells are asked for before they were counted")
        return self._cells

    # Between cycles

    def add_pod(self, tenant: str, pod: Pod) -> None:
        """Add a placed pod inside cells."""
        self.reset_cells()
        self.pods.add_pod(tenant, pod)
        amount = pod.shape.amount_of(self.pool.unit_resource)
        if amount:
            self._units[tenant, pod.node] = self._units.get((tenant, pod.node), 0) + amount

    def remove_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod that was inside cells and ended."""
        self.reset_cells()
        self.pods.remove_pod(tenant, pod)
        key, amount = (tenant, pod.node), pod.shape.amount_of(self.pool.unit_resource)
        if not amount:
            return
        self._units[key] -= amount
        if not self._units[key]:
            del self._units[key]

    def set_plan(self, gang: Gang) -> None:
        """Record what a gang's plan nominates inside cells, or that it no longer does."""
        if self.plans.set_plan(gang, self.pool):
            self.reset_cells()

    def remove_plan(self, gang: str) -> None:
        """Remove the plan of a gang that no longer exists."""
        if self.plans.remove_plan(gang):
            self.reset_cells()

    def replace_pool(self, pool: Pool) -> None:
        """Replace the pool after its nodes changed."""
        self.reset_cells()
        self.pool = pool

    def reset_cells(self) -> None:
        """Drop the cells: what they were derived from changes."""
        if self._cells is not None:
            self._cells = None
            for gang, pod in self._demoted:
                self.pods.add_pod(gang.tenant, pod)
                self._changed_gangs.add(gang.id)
            self._demoted.clear()

    def recount_cells(self, quotas: Iterable[Quota], gangs: Mapping[str, Gang]) -> set[str]:
        """Derive the cells again if anything changed; return the gangs whose pods inside changed because of it."""
        self.pods.entered_gangs.clear()
        if self._cells is not None:
            return set()
        placed = [(tenant, node, units) for (tenant, node), units in sorted(self._units.items())]
        self._cells = self.plans.derive_cells(self.pool, list(quotas), placed)
        self._demote_excess(gangs)
        other, self._changed_gangs = self._changed_gangs, set()
        return other

    def _demote_excess(self, gangs: Mapping[str, Gang]) -> None:
        """Make whole gangs borrow where the cells no longer hold them, for example after nodes failed."""
        unit, guaranteed = self.pool.unit_resource, self.pods.uids
        for tenant in sorted({tenant for tenant, _ in self._units}):
            while excess := self.cells.excess_by_node(tenant):
                node = next(iter(excess))
                candidates = [
                    gang
                    for gang in gangs.values()
                    if gang.tenant == tenant
                    and any(
                        pod.node == node and pod.uid in guaranteed and pod.shape.amount_of(unit) for pod in gang.pods
                    )
                ]
                gang = min(candidates, key=lambda gang: (gang.priority, -gang.created, gang.id))
                self._changed_gangs.add(gang.id)
                for pod in gang.pods:
                    if pod.uid in guaranteed:
                        self.pods.remove_pod(tenant, pod)
                        self._demoted.append((gang, pod))
                        self.cells.release_cells(tenant, pod.node, pod.shape.amount_of(unit))

    def demoted_gangs(self) -> set[str]:
        """Return the gangs with pods that were inside before cells were lost."""
        return {gang.id for gang, _ in self._demoted}

    # In a cycle

    def demote_pod(self, tenant: str, pod: Pod) -> None:
        """Make a placed pod borrow: a gang of a higher rank uses its cells."""
        self.cells.release_cells(tenant, pod.node, pod.shape.amount_of(self.pool.unit_resource))
        self.pods.leave_pod(tenant, pod)

    def release_plan(self, gang: str) -> None:
        """Release the cells of a dropped plan that holds them since the cycle began."""
        for tenant, node, amount in self.plans.amounts_of(gang):
            self.cells.release_cells(tenant, node, amount)

    def mark(self) -> Mark:
        """Return a mark for `undo`."""
        return self.cells.bindings.mark(), self.pods.mark()

    def undo(self, mark: Mark) -> list[str]:
        """Undo all changes since the mark; return the gangs whose pods had entered the guarantee."""
        cells, pods = mark
        self.cells.bindings.undo(cells)
        return self.pods.undo(pods)

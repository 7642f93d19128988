"""Placed pods of a pool that are inside their tenants' cells, and these cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vkgateway.arbiter.guarantees.cells import PlacedAmount, PoolCells
from vkgateway.arbiter.snapshot import Gang, Pod, PodState, Pool, Quota
from vkgateway.model.requests import MilliResources

Mark = tuple[int, int]


class GuaranteeUsage:
    """Usage of guarantees across cycles; the cells are derived again when the pods inside change."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.pods: set[str] = set()
        """UIDs of the placed pods inside cells."""
        self.entered_gangs: dict[str, None] = {}
        """Gangs with pods that entered the guarantee since the cycle began."""
        self._used: dict[str, MilliResources] = {}
        self._units: dict[tuple[str, str], int] = {}
        """Thousandths of the unit by tenant and node."""
        self._plans: dict[str, list[PlacedAmount]] = {}
        """Usage that plans of earlier cycles nominate inside cells, by gang."""
        self.planned: set[str] = set()
        """Gangs whose plan holds cells since the cycle began."""
        self._cells: PoolCells | None = None
        self._demoted: list[tuple[Gang, Pod]] = []
        self._changed_gangs: set[str] = set()
        """Gangs with pods that entered or left cells since the last derivation."""
        self._journal: list[tuple[str, Pod, bool]] = []
        """Pods that entered (True) or left (False) the guarantee since the cycle began."""
        self._left_by_tenant: dict[str, tuple[int, int]] = {}

    @property
    def cells(self) -> PoolCells:
        """Current cells; available after `recount_cells`."""
        if self._cells is None:
            raise AssertionError("cells are asked for before they were counted")
        return self._cells

    # Between cycles

    def add_pod(self, tenant: str, pod: Pod) -> None:
        """Add a placed pod inside cells."""
        self._invalidate_cells()
        self._add_usage(tenant, pod)
        amount = pod.shape.amount_of(self.pool.unit_resource)
        if amount:
            self._units[tenant, pod.node] = self._units.get((tenant, pod.node), 0) + amount

    def remove_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod that was inside cells and ended."""
        self._invalidate_cells()
        self._remove_usage(tenant, pod)
        key, amount = (tenant, pod.node), pod.shape.amount_of(self.pool.unit_resource)
        if not amount:
            return
        self._units[key] -= amount
        if not self._units[key]:
            del self._units[key]

    def set_plan(self, gang: Gang) -> None:
        """Record what a gang's plan nominates inside cells, or that it no longer does."""
        plan = gang.plan
        if plan is None and gang.id not in self._plans:
            return
        placed = []
        if plan is not None and not plan.borrowed and plan.pool == self.pool.key:
            waiting = (pod for pod in gang.pods if pod.state is PodState.WAITING and pod.uid in plan.nodes)
            placed = [(gang.tenant, plan.nodes[pod.uid], self._units_of(pod)) for pod in waiting]
        self._replace_plan(gang.id, placed)

    def remove_plan(self, gang: str) -> None:
        """Remove the plan of a gang that no longer exists."""
        if gang in self._plans:
            self._replace_plan(gang, [])

    def _replace_plan(self, gang: str, placed: list[PlacedAmount]) -> None:
        if placed != self._plans.get(gang, []):
            self._invalidate_cells()
            if placed:
                self._plans[gang] = placed
            else:
                del self._plans[gang]

    def replace_pool(self, pool: Pool) -> None:
        """Replace the pool after its nodes changed."""
        self._invalidate_cells()
        self.pool = pool

    def reset_cells(self) -> None:
        """Invalidate the cells after quotas changed."""
        self._invalidate_cells()

    def _invalidate_cells(self) -> None:
        if self._cells is not None:
            self._cells = None
            for gang, pod in self._demoted:
                self._add_usage(gang.tenant, pod)
                self._changed_gangs.add(gang.id)
            self._demoted.clear()

    def recount_cells(self, quotas: Iterable[Quota], gangs: Mapping[str, Gang]) -> set[str]:
        """Derive the cells again if anything changed; return the gangs whose pods inside changed because of it."""
        self.entered_gangs.clear()
        if self._cells is not None:
            return set()
        self._cells = self._build_cells(list(quotas))
        self._left_by_tenant.clear()
        self._demote_excess(gangs)
        other, self._changed_gangs = self._changed_gangs, set()
        return other

    def _build_cells(self, quotas: Sequence[Quota]) -> PoolCells:
        """Return the cells with plans counted as running, if that fits, so that no other gang takes their cells.

        Plans on nodes that accept no pods are dropped and hold no cells.
        """
        placed = [(tenant, node, units) for (tenant, node), units in sorted(self._units.items())]
        usable = {node.name for node in self.pool.nodes if node.usable} if self._plans else set()
        self.planned = {gang for gang, held in self._plans.items() if all(node in usable for _, node, _ in held)}
        if self.planned:
            plans = [each for gang in sorted(self.planned) for each in self._plans[gang] if each[2]]
            cells = PoolCells(self.pool, quotas, [*placed, *plans])
            tenants = {tenant for tenant, _, _ in (*placed, *plans)}
            if not cells.guarantee_losses() and not any(cells.excess_by_node(tenant) for tenant in tenants):
                return cells
            self.planned = set()
        return PoolCells(self.pool, quotas, placed)

    def release_plan(self, gang: str) -> None:
        """Release the cells of a dropped plan that holds them since the cycle began."""
        for tenant, node, amount in self._plans[gang]:
            self.cells.release_cells(tenant, node, amount)

    def _demote_excess(self, gangs: Mapping[str, Gang]) -> None:
        """Make whole gangs borrow where the cells no longer hold them, for example after nodes failed."""
        for tenant in sorted({tenant for tenant, _ in self._units}):
            while excess := self.cells.excess_by_node(tenant):
                node = next(iter(excess))
                candidates = [
                    gang
                    for gang in gangs.values()
                    if gang.tenant == tenant
                    and any(pod.node == node and pod.uid in self.pods and self._units_of(pod) for pod in gang.pods)
                ]
                gang = min(candidates, key=lambda gang: (gang.priority, -gang.created, gang.id))
                self._changed_gangs.add(gang.id)
                for pod in gang.pods:
                    if pod.uid in self.pods:
                        self._remove_usage(tenant, pod)
                        self._demoted.append((gang, pod))
                        self.cells.release_cells(tenant, pod.node, self._units_of(pod))

    def demoted_gangs(self) -> set[str]:
        """Return the gangs with pods that were inside before cells were lost."""
        return {gang.id for gang, _ in self._demoted}

    def _units_of(self, pod: Pod) -> int:
        return pod.shape.amount_of(self.pool.unit_resource)

    # In a cycle

    def mark(self) -> Mark:
        """Return a mark for `undo`."""
        return self.cells.mark(), len(self._journal)

    def undo(self, mark: Mark) -> list[str]:
        """Undo all changes since the mark; return the gangs whose pods had entered the guarantee."""
        cells, journal = mark
        self.cells.undo(cells)
        while len(self._journal) > journal:
            tenant, pod, is_entry = self._journal.pop()
            (self._remove_usage if is_entry else self._add_usage)(tenant, pod)
        entered = list(self.entered_gangs)
        self.entered_gangs.clear()
        self._left_by_tenant.clear()
        return entered

    def restore_mark(self, mark: Mark, entered: Mapping[str, None]) -> list[str]:
        """Undo all changes since the mark and restore the gangs that had entered by then; return the current ones."""
        version = self.undo(mark)
        self.entered_gangs.update(entered)
        return version

    def enter_pod(self, tenant: str, pod: Pod, *, gang: str) -> None:
        """Count a pod as inside; its cells are already allocated."""
        self._add_usage(tenant, pod)
        self._journal.append((tenant, pod, True))
        self.entered_gangs[gang] = None

    def revert_entry(self, tenant: str, pod: Pod) -> None:
        """Revert the entry of a pod in this cycle; its cells are already released."""
        self._journal.remove((tenant, pod, True))
        self._remove_usage(tenant, pod)

    def demote_pod(self, tenant: str, pod: Pod) -> None:
        """Make a placed pod borrow: a gang of a higher rank uses its cells."""
        self.cells.release_cells(tenant, pod.node, self._units_of(pod))
        self._journal.append((tenant, pod, False))
        self._remove_usage(tenant, pod)

    def may_hold(
        self, quota: Quota, gang: Gang, pods: Sequence[Pod], *, freed: Mapping[str, int] | None = None
    ) -> bool:
        """Return whether the sums of a guarantee allow these pods of a gang; a necessary condition.

        `freed` is the part of the used guarantee that counts as free. Cells decide for the unit. Pods without devices
        follow the pods of their gang with devices. For a gang without devices, the other resources of the guarantee
        decide, mostly CPU and memory.
        """
        judged, named = self._judged_pods(quota, gang, pods)
        if not judged:
            return bool(pods) and any(
                pod.uid in self.pods and self.pool.requests_devices(pod.shape) for pod in gang.pods
            )
        if not all(self._units_of(pod) or any(pod.shape.amount_of(name) for name in named) for pod in judged):
            return False
        used = self._used.get(quota.tenant, {})
        for name in named:
            held = used.get(name, 0) - (freed or {}).get(name, 0)
            if held + sum(pod.shape.amount_of(name) for pod in judged) > quota.guarantee[name]:
                return False
        return sum(self._units_of(pod) for pod in judged) <= self.units_left(quota.tenant)

    def _judged_pods(self, quota: Quota, gang: Gang, pods: Sequence[Pod]) -> tuple[Sequence[Pod], list[str]]:
        """Return the pods that the guarantee must hold, and the resources whose sums count besides the unit's cells."""
        devices = self.pool.governed
        judged = [pod for pod in pods if self.pool.requests_devices(pod.shape)]
        if judged or any(self.pool.requests_devices(pod.shape) for pod in gang.pods):
            return judged, [name for name in devices if name in quota.guarantee and name != self.pool.unit_resource]
        return pods, [name for name in quota.guarantee if name not in devices]

    def has_room(self, tenant: str, gang: Gang) -> bool:
        """Return whether a gang's pods may enter the guarantee at all; a cheap test before `may_hold`."""
        return self.units_left(tenant) > 0 or not any(self.pool.requests_devices(pod.shape) for pod in gang.pods)

    def units_left(self, tenant: str) -> int:
        """Return the thousandths of the unit that the tenant's cells can still take, bound or not."""
        version = self.cells.tenant_version(tenant)
        cached = self._left_by_tenant.get(tenant)
        if cached is None or cached[0] != version:
            unused = sum(size * number for size, number in self.cells.unused_cells(tenant).items()) * 1000
            spare = sum(self.cells.spare_amount(tenant, node) for node in self.cells.bound_cells(tenant))
            cached = self._left_by_tenant[tenant] = version, unused + spare
        return cached[1]

    def _add_usage(self, tenant: str, pod: Pod) -> None:
        self.pods.add(pod.uid)
        self._count_usage(tenant, pod, 1)

    def _remove_usage(self, tenant: str, pod: Pod) -> None:
        self.pods.discard(pod.uid)
        self._count_usage(tenant, pod, -1)

    def _count_usage(self, tenant: str, pod: Pod, times: int) -> None:
        used = self._used.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            used[name] = used.get(name, 0) + amount * times

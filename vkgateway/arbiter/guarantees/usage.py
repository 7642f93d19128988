"""Which placed pods of a pool are inside their tenants' cells, and the cells that hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vkgateway.arbiter.guarantees.cells import PlacedAmount, PoolCells
from vkgateway.arbiter.snapshot import Gang, Pod, PodState, Pool, Quota
from vkgateway.model.requests import MilliResources

Mark = tuple[int, int]


class GuaranteeUsage:
    """Kept from cycle to cycle; cells are counted anew when what is inside them has changed."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.pods: set[str] = set()
        """Uids of the placed pods that are inside."""
        self.entered_gangs: dict[str, None] = {}
        """Gangs of which pods were moved in since the cycle began."""
        self._used: dict[str, MilliResources] = {}
        self._units: dict[tuple[str, str], int] = {}
        """Thousandths of the unit by tenant and node."""
        self._plans: dict[str, list[PlacedAmount]] = {}
        """By gang what was planned for it inside cells in earlier cycles."""
        self.planned: set[str] = set()
        """Gangs of which the plan's cells are held since the cycle began."""
        self._cells: PoolCells | None = None
        self._demoted: list[tuple[Gang, Pod]] = []
        self._changed_gangs: set[str] = set()
        """Gangs of which, since cells were counted last, pods are inside that were not, or the other way round."""
        self._journal: list[tuple[str, Pod, bool]] = []
        """Pods that were moved in (True) or out since the cycle began."""
        self._left_by_tenant: dict[str, tuple[int, int]] = {}

    @property
    def cells(self) -> PoolCells:
        """As they are now; to be asked for after `recount_cells`."""
        if self._cells is None:
            raise AssertionError("cells are asked for before they were counted")
        return self._cells

    # Between cycles

    def add_pod(self, tenant: str, pod: Pod) -> None:
        """A placed pod is inside."""
        self._invalidate_cells()
        self._add_usage(tenant, pod)
        amount = pod.shape.amount_of(self.pool.unit_resource)
        if amount:
            self._units[tenant, pod.node] = self._units.get((tenant, pod.node), 0) + amount

    def remove_pod(self, tenant: str, pod: Pod) -> None:
        """A pod that was inside has gone."""
        self._invalidate_cells()
        self._remove_usage(tenant, pod)
        key, amount = (tenant, pod.node), pod.shape.amount_of(self.pool.unit_resource)
        if not amount:
            return
        self._units[key] -= amount
        if not self._units[key]:
            del self._units[key]

    def set_plan(self, gang: Gang) -> None:
        """Take in what is planned for a gang inside cells, or that nothing is any more."""
        plan = gang.plan
        if plan is None and gang.id not in self._plans:
            return
        wanted = []
        if plan is not None and not plan.borrowed and plan.pool == self.pool.key:
            waiting = (pod for pod in gang.pods if pod.state is PodState.WAITING and pod.uid in plan.nodes)
            wanted = [(gang.tenant, plan.nodes[pod.uid], self._units_of(pod)) for pod in waiting]
        self._replace_plan(gang.id, wanted)

    def remove_plan(self, gang: str) -> None:
        """A gang has gone."""
        if gang in self._plans:
            self._replace_plan(gang, [])

    def _replace_plan(self, gang: str, wanted: list[PlacedAmount]) -> None:
        if wanted != self._plans.get(gang, []):
            self._invalidate_cells()
            if wanted:
                self._plans[gang] = wanted
            else:
                del self._plans[gang]

    def replace_pool(self, pool: Pool) -> None:
        """The pool's nodes have changed."""
        self._invalidate_cells()
        self.pool = pool

    def reset_cells(self) -> None:
        """Guarantees have changed."""
        self._invalidate_cells()

    def _invalidate_cells(self) -> None:
        if self._cells is not None:
            self._cells = None
            for gang, pod in self._demoted:
                self._add_usage(gang.tenant, pod)
                self._changed_gangs.add(gang.id)
            self._demoted.clear()

    def recount_cells(self, quotas: Iterable[Quota], gangs: Mapping[str, Gang]) -> set[str]:
        """Count the cells, where anything has changed; returns the gangs of which other pods are inside by that."""
        self.entered_gangs.clear()
        if self._cells is not None:
            return set()
        self._cells = self._build_cells(list(quotas))
        self._left_by_tenant.clear()
        self._demote_excess(gangs)
        other, self._changed_gangs = self._changed_gangs, set()
        return other

    def _build_cells(self, quotas: Sequence[Quota]) -> PoolCells:
        """With what is planned as if it ran, if that fits: what has been found for one is not taken by another then.

        Plans on nodes that take nobody now are not kept, and hold no cells.
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
        """A plan whose cells are held since the cycle began is not kept."""
        for tenant, node, amount in self._plans[gang]:
            self.cells.release_cells(tenant, node, amount)

    def _demote_excess(self, gangs: Mapping[str, Gang]) -> None:
        """Where cells do not hold all that they did (nodes have gone), whole gangs borrow from now on."""
        for tenant in sorted({tenant for tenant, _ in self._units}):
            while over := self.cells.excess_by_node(tenant):
                node = next(iter(over))
                there = [
                    gang
                    for gang in gangs.values()
                    if gang.tenant == tenant
                    and any(pod.node == node and pod.uid in self.pods and self._units_of(pod) for pod in gang.pods)
                ]
                gang = min(there, key=lambda gang: (gang.priority, -gang.created, gang.id))
                self._changed_gangs.add(gang.id)
                for pod in gang.pods:
                    if pod.uid in self.pods:
                        self._remove_usage(tenant, pod)
                        self._demoted.append((gang, pod))
                        self.cells.release_cells(tenant, pod.node, self._units_of(pod))

    def demoted_gangs(self) -> set[str]:
        """Gangs of which pods were inside before nodes went."""
        return {gang.id for gang, _ in self._demoted}

    def _units_of(self, pod: Pod) -> int:
        return pod.shape.amount_of(self.pool.unit_resource)

    # In a cycle

    def mark(self) -> Mark:
        """A state to go back to."""
        return self.cells.mark(), len(self._journal)

    def undo(self, mark: Mark) -> list[str]:
        """Back to the mark; returns the gangs of which pods had been moved in."""
        cells, journal = mark
        self.cells.undo(cells)
        while len(self._journal) > journal:
            tenant, pod, moved_in = self._journal.pop()
            (self._remove_usage if moved_in else self._add_usage)(tenant, pod)
        moved = list(self.entered_gangs)
        self.entered_gangs.clear()
        self._left_by_tenant.clear()
        return moved

    def restore_mark(self, mark: Mark, moved: Mapping[str, None]) -> list[str]:
        """Undo what was done since the mark, when these gangs had been moved in; return those of now."""
        now = self.undo(mark)
        self.entered_gangs.update(moved)
        return now

    def enter_pod(self, tenant: str, pod: Pod, *, gang: str) -> None:
        """A pod is inside from now on; its cells are held already."""
        self._add_usage(tenant, pod)
        self._journal.append((tenant, pod, True))
        self.entered_gangs[gang] = None

    def revert_entry(self, tenant: str, pod: Pod) -> None:
        """A pod that was moved in since the cycle began is not inside after all; its cells are let go already."""
        self._journal.remove((tenant, pod, True))
        self._remove_usage(tenant, pod)

    def demote_pod(self, tenant: str, pod: Pod) -> None:
        """A placed pod that is inside borrows from now on: its cells are for a gang of a higher rank."""
        self.cells.release_cells(tenant, pod.node, self._units_of(pod))
        self._journal.append((tenant, pod, False))
        self._remove_usage(tenant, pod)

    def may_hold(self, quota: Quota, gang: Gang, pods: Sequence[Pod], *, gone: Mapping[str, int] | None = None) -> bool:
        """Return whether the sums of a guarantee have room for these pods of a gang; a necessary condition.

        `gone` is the part of the guarantee in use that counts as free. The unit is judged by cells. Pods without
        devices follow those of their gang that ask for devices; a gang without any is judged by the other resources of
        the guarantee, cpu and memory in most cases.
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
            held = used.get(name, 0) - (gone or {}).get(name, 0)
            if held + sum(pod.shape.amount_of(name) for pod in judged) > quota.guarantee[name]:
                return False
        return sum(self._units_of(pod) for pod in judged) <= self.units_left(quota.tenant)

    def _judged_pods(self, quota: Quota, gang: Gang, pods: Sequence[Pod]) -> tuple[Sequence[Pod], list[str]]:
        """Return the pods that the guarantee must hold, and the resources whose sums count beside the unit's cells."""
        devices = self.pool.governed
        judged = [pod for pod in pods if self.pool.requests_devices(pod.shape)]
        if judged or any(self.pool.requests_devices(pod.shape) for pod in gang.pods):
            return judged, [name for name in devices if name in quota.guarantee and name != self.pool.unit_resource]
        return pods, [name for name in quota.guarantee if name not in devices]

    def has_room(self, tenant: str, gang: Gang) -> bool:
        """Return whether pods of a gang may move into the guarantee at all; a cheap test before `may_hold`."""
        return self.units_left(tenant) > 0 or not any(self.pool.requests_devices(pod.shape) for pod in gang.pods)

    def units_left(self, tenant: str) -> int:
        """Thousandths of the unit that the tenant's cells still hold, bound or not."""
        now = self.cells.tenant_version(tenant)
        known = self._left_by_tenant.get(tenant)
        if known is None or known[0] != now:
            unused = sum(size * number for size, number in self.cells.unused_cells(tenant).items()) * 1000
            spare = sum(self.cells.spare_amount(tenant, node) for node in self.cells.bound_cells(tenant))
            known = self._left_by_tenant[tenant] = now, unused + spare
        return known[1]

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

"""Usage of a pool's guarantees by placed pods, across cycles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.journal import Journal
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Quota


class GuaranteeUsage:
    """Usage of guarantees, which follows the pods inside. They are counted again when nodes or quotas change."""

    def __init__(self, pool: Pool, journal: Journal | None = None) -> None:
        self.pool = pool
        self._journal = journal or Journal()
        self.pods = GuaranteedPods(self._journal)
        self._units: dict[tuple[str, str], int] = {}
        """Thousandths of the unit by tenant and node."""
        self._guarantees: PoolGuarantees | None = None
        self._demoted: list[tuple[Gang, Pod]] = []
        self._changed_gangs: set[str] = set()
        """Gangs with pods that were demoted, or are inside again, since the last count."""

    @property
    def guarantees(self) -> PoolGuarantees:
        """Current guarantees; available after `recount`."""
        if self._guarantees is None:
            raise AssertionError("guarantees are asked for before they were counted")
        return self._guarantees

    # Between cycles

    def add_pod(self, tenant: str, pod: Pod) -> None:
        """Add a placed pod inside its tenant's guarantee."""
        self.pods.add_pod(tenant, pod)
        self._add_units(tenant, pod.node, pod.shape.amount_of(self.pool.unit_resource))

    def remove_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod that was inside and ended."""
        self.pods.remove_pod(tenant, pod)
        self._add_units(tenant, pod.node, -pod.shape.amount_of(self.pool.unit_resource))

    def _add_units(self, tenant: str, node: str, amount: int) -> None:
        if self._demoted or (self._guarantees is not None and not self._guarantees.is_usable(node)):
            self.reset()
        if not amount:
            return
        left = self._units.get((tenant, node), 0) + amount
        if left:
            self._units[tenant, node] = left
        else:
            del self._units[tenant, node]
        if self._guarantees is not None:
            self._guarantees.add_use(tenant, node, amount)

    def replace_pool(self, pool: Pool) -> None:
        """Replace the pool after its nodes changed."""
        self.reset()
        self.pool = pool

    def reset(self) -> None:
        """Drop the guarantees: what they were counted from changes."""
        if self._guarantees is not None:
            self._guarantees = None
            for gang, pod in self._demoted:
                self.pods.add_pod(gang.tenant, pod)
                self._changed_gangs.add(gang.id)
            self._demoted.clear()

    def recount(self, quotas: Iterable[Quota], gangs: Mapping[str, Gang]) -> set[str]:
        """Count the guarantees if necessary; return the gangs whose pods inside changed because of it."""
        self.pods.entered_gangs.clear()
        if self._guarantees is None:
            placed = [(tenant, node, units) for (tenant, node), units in sorted(self._units.items())]
            self._guarantees = PoolGuarantees(self.pool, list(quotas), placed, self._journal)
        self._demote_excess(self._guarantees, gangs)
        changed, self._changed_gangs = self._changed_gangs, set()
        return changed

    def _demote_excess(self, guarantees: PoolGuarantees, gangs: Mapping[str, Gang]) -> None:
        """Make whole gangs borrow where the guarantees no longer hold them, for example after nodes failed."""
        unit, inside = self.pool.unit_resource, self.pods.uids
        for tenant in guarantees.overused_tenants():
            own = [
                gang
                for gang in gangs.values()
                if gang.tenant == tenant and any(pod.uid in inside and pod.shape.amount_of(unit) for pod in gang.pods)
            ]
            own.sort(key=lambda gang: (-gang.priority, gang.created, gang.id))
            while guarantees.units_left(tenant) < 0:
                gang = own.pop()
                self._changed_gangs.add(gang.id)
                for pod in gang.pods:
                    if pod.uid in inside:
                        self.pods.remove_pod(tenant, pod)
                        self._demoted.append((gang, pod))
                        guarantees.add_use(tenant, pod.node, -pod.shape.amount_of(unit))

    def demoted_gangs(self) -> set[str]:
        """Return the gangs with pods that were inside before guarantees were lost."""
        return {gang.id for gang, _ in self._demoted}

    # In a cycle

    def demote_pod(self, tenant: str, pod: Pod) -> None:
        """Make a placed pod borrow: a gang of a higher rank uses its part of the guarantee."""
        self.guarantees.release(tenant, pod.node, pod.shape.amount_of(self.pool.unit_resource))
        self.pods.leave_pod(tenant, pod)


class GuaranteedPods:
    """Pods inside guarantees."""

    def __init__(self, journal: Journal | None = None) -> None:
        self._journal = journal or Journal()
        self.uids: set[str] = set()
        self.entered_gangs: dict[str, None] = {}
        """Gangs with pods that entered the guarantee since the cycle began."""
        self._used: dict[str, MilliResources] = {}

    def used_amounts(self, tenant: str) -> Mapping[str, int]:
        """Return what the tenant's pods request, in thousandths by resource."""
        return self._used.get(tenant, {})

    def add_pod(self, tenant: str, pod: Pod) -> None:
        """Add a pod. The journal does not record it."""
        self.uids.add(pod.uid)
        self._count_requests(tenant, pod, 1)

    def remove_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod. The journal does not record it."""
        self.uids.discard(pod.uid)
        self._count_requests(tenant, pod, -1)

    def enter_pod(self, tenant: str, pod: Pod, *, gang: str) -> None:
        """Add a pod for which the guarantee is already used."""
        self.add_pod(tenant, pod)
        self._journal.record(self.remove_pod, tenant, pod)
        if gang not in self.entered_gangs:
            self.entered_gangs[gang] = None
            self._journal.record(self.entered_gangs.pop, gang, None)

    def leave_pod(self, tenant: str, pod: Pod) -> None:
        """Remove a pod whose part is already released."""
        self.remove_pod(tenant, pod)
        self._journal.record(self.add_pod, tenant, pod)

    def _count_requests(self, tenant: str, pod: Pod, times: int) -> None:
        used = self._used.setdefault(tenant, {})
        for name, amount in pod.shape.requests:
            used[name] = used.get(name, 0) + amount * times

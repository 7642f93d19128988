"""What would let a waiting gang start: the numbers of its tenant's limit or guarantee, and what changes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.scheduler.core.guarantees.cell_sizes import (
    MILLI_PER_UNIT,
    count_cells,
    guaranteed_units,
    list_sizes,
    round_up_units,
)
from vkgateway.scheduler.core.guarantees.guarantee_sums import judged_pods, may_hold
from vkgateway.scheduler.core.guarantees.guaranteed_placement import GuaranteedPlacement
from vkgateway.scheduler.core.guarantees.pool_guarantees import PoolGuarantees
from vkgateway.scheduler.core.phases.gang_placement import allowed_nodes
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang
from vkgateway.scheduler.core.queueing.tenant_usage import sum_requests
from vkgateway.scheduler.core.reasons.message_texts import pools_text
from vkgateway.scheduler.core.snapshot import GUARANTEED, PLACED, Gang, Pod, PoolKey, Quota

_MAX_SEARCHES: Final = 4
"""Searches in a cycle for a guarantee that suffices: each counts the guarantees of a pool again."""
_MAX_TRIALS: Final = 4
"""Sizes of a guarantee, or gangs of a tenant, that one search tries."""


class Remedy(NamedTuple):
    """Numbers that decide, and what would change them."""

    text: str = ""
    """Continuation of a message; empty: nothing to add."""
    ends: str = ""
    """Gang of the same tenant that the text names: its end suffices."""
    numbers: Mapping[str, float] = {}


class Remedies:
    """Remedies for the gangs that wait in a cycle."""

    def __init__(self, *, search: bool) -> None:
        """Create it; `search`: also search for a guarantee that suffices, and for a gang whose end does."""
        self._searches_left = _MAX_SEARCHES if search else 0
        self._gangs_by_tenant: dict[PoolKey, Mapping[str, Sequence[Gang]]] = {}

    def of_limit(self, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod]) -> Remedy:
        """Return the limit that allows these pods, which exceed their tenant's, and the gang whose end allows them."""
        usage, tenant = pool_state.tenant_usage, pending.tenant
        excess, wanted = usage.excess_over_limit(tenant, pods), sum_requests(pods)
        if not excess:
            return Remedy()
        used = usage.usage.get(tenant, {})
        enough = render_milli({name: used.get(name, 0) + wanted[name] for name in excess})

        def covers(gang: Gang) -> bool:
            held = sum_requests(pool_state.gang_index.placed_pods(gang))
            return all(held.get(name, 0) >= amount for name, amount in excess.items())

        ends = next((gang for gang in self._running_gangs(pool_state, pending, excess) if covers(gang)), None)
        return Remedy(_remedy_text(f"a limit of {enough}", ends), ends.whole_id if ends is not None else "")

    def of_guarantee(
        self, pool_state: PoolState, pending: PendingGang, pods: Sequence[Pod], *, only_there: bool = False
    ) -> Remedy:
        """Return how much of the guarantee is used, and what would let these pods start inside it.

        Empty: the gang uses no guarantee, or it fits and waits for something else. `only_there`: also empty if the
        tenant has no guarantee in the pool.
        """
        quota = pool_state.tenant_usage.quotas.get(pending.tenant)
        if pending.gang.band is not GUARANTEED or quota is None:
            return Remedy()
        search = _GuaranteeSearch(pool_state, pending, quota, pods)
        has_any = any(quota.guarantee.get(name, 0) for name in search.names)
        if not search.names or (only_there and not has_any) or search.is_held():
            return Remedy()
        numbers = {
            f"{what} {name}": amounts.get(name, 0) / MILLI_PER_UNIT
            for name in search.names
            for what, amounts in (("needed", search.wanted), ("inside", search.used), ("guarantee", quota.guarantee))
        }
        where = pools_text([pool_state.pool.key])
        amounts = ", ".join(
            f"{render_milli({name: search.used.get(name, 0)})} of {numbers[f'guarantee {name}']:.10g}"
            for name in search.names
        )
        text = f"; in use of the guarantee in {where}: {amounts}" if has_any else f"; no guarantee in {where}"
        held = pool_state.reservations.held.get(pending.tenant)
        if held is not None and held.whole_id != pending.gang.whole_id:
            text += f", a part of it held for lost pods of {held.whole_id.removeprefix(f'{held.tenant}/')}"
        if not self._searches_left:
            return Remedy(text, numbers=numbers)
        self._searches_left -= 1
        enough = search.sufficient_guarantee()
        running = self._running_gangs(pool_state, pending, search.names)
        ends = search.sufficient_end(gang for gang in running if search.guaranteed_pods(gang))
        larger = f"a guarantee of {enough}" if enough else ""
        return Remedy(text + _remedy_text(larger, ends), ends.whole_id if ends is not None else "", numbers)

    def _running_gangs(self, pool_state: PoolState, pending: PendingGang, names: Iterable[str]) -> list[Gang]:
        """Return other gangs of the tenant with running pods in the pool, those that request the least first."""
        by_tenant = self._gangs_by_tenant.get(pool_state.pool.key)
        if by_tenant is None:
            by_tenant = self._gangs_by_tenant[pool_state.pool.key] = _group_by_tenant(pool_state)
        names = list(names)
        return sorted(
            (gang for gang in by_tenant.get(pending.tenant, ()) if gang.whole_id != pending.gang.whole_id),
            key=lambda gang: (sum(pod.shape.amount_of(name) for pod in gang.pods for name in names), gang.id),
        )


def _group_by_tenant(pool_state: PoolState) -> Mapping[str, Sequence[Gang]]:
    found: dict[str, list[Gang]] = defaultdict(list)
    for gang in pool_state.gangs.values():
        # The end of one part of a gang in several pools is the end of all: only its whole is named.
        if gang.part_info is None and all(pod.state is PLACED for pod in pool_state.gang_index.placed_pods(gang)):
            found[gang.tenant].append(gang)
    return found


def _remedy_text(larger: str, ends: Gang | None) -> str:
    end = f"the end of {ends.whole_id.removeprefix(f'{ends.tenant}/')}" if ends is not None else ""
    what = " or ".join(filter(None, (larger, end)))
    return f"; {what} is enough" if what else ""


class _GuaranteeSearch:
    """Search for what lets pods of a gang start inside a guarantee that cannot hold them now.

    Capacity counts as free: for pods inside a guarantee, the arbiter evicts borrowing pods.
    """

    def __init__(self, pool_state: PoolState, pending: PendingGang, quota: Quota, pods: Sequence[Pod]) -> None:
        self._pool_state, self._pending, self._quota, self._pods = pool_state, pending, quota, pods
        pool, self._unit = pool_state.pool, pool_state.pool.unit_resource
        self._judged, named = judged_pods(pool, quota, pending.gang, pods)
        self.wanted = sum_requests(self._judged)
        self.names = [name for name in (self._unit, *named) if self.wanted.get(name)]
        """Resources in which the guarantee must hold the pods."""
        inside = dict(pool_state.guarantee.usage.pods.used_amounts(quota.tenant))
        self.used: MilliResources = inside | {self._unit: pool_state.guarantees.used_amount(quota.tenant)}

    def is_held(self) -> bool:
        """Return whether the guarantee can hold the pods now."""
        return self._may_hold() and self._is_placeable(self._pool_state.guarantees)

    def sufficient_guarantee(self) -> str:
        """Return a guarantee that holds the pods besides those inside it; empty: none was found."""
        quota, unit = self._quota, self._unit
        sums = {name: self.used.get(name, 0) + self.wanted[name] for name in self.names if name != unit}
        enough = {name: amount for name, amount in sums.items() if amount > quota.guarantee.get(name, 0)}
        cells = ""
        if unit in self.names and not self._is_placeable(self._pool_state.guarantees):
            larger = next((each for each in self._larger_quotas() if self._suffices(each)), None)
            if larger is None:
                return ""
            enough[unit] = larger.guarantee[unit]
            cells = f" in cells of {', '.join(map(str, sorted(larger.cells, reverse=True)))}" if larger.cells else ""
        if any(amount > quota.limit.get(name, amount) for name, amount in enough.items()):
            return ""
        return render_milli(enough) + cells

    def sufficient_end(self, gangs: Iterable[Gang]) -> Gang | None:
        """Return the first of these gangs whose end leaves enough of the guarantee; None: no single one does."""
        missing = {
            name: self.used.get(name, 0) + self.wanted[name] - self._quota.guarantee.get(name, 0) for name in self.names
        }
        trials = 0
        for gang in gangs:
            freed = sum_requests(self.guaranteed_pods(gang))
            if any(freed.get(name, 0) < amount for name, amount in missing.items()):
                continue
            trials += 1
            if trials > _MAX_TRIALS:
                break
            if self._suffices_without(gang, freed):
                return gang
        return None

    def guaranteed_pods(self, gang: Gang) -> list[Pod]:
        """Return the gang's pods inside the guarantee, without those that start in this round."""
        return [pod for pod in gang.pods if pod.node and self._pool_state.guarantee.is_guaranteed(pod.uid)]

    def _suffices_without(self, gang: Gang, freed: MilliResources) -> bool:
        guarantees = self._pool_state.guarantees
        with guarantees.trial():
            for pod in self.guaranteed_pods(gang):
                guarantees.release(gang.tenant, pod.node, pod.shape.amount_of(self._unit))
            ended = [pod for pod in self._pool_state.gang_index.placed_pods(gang) if self._is_staying(pod)]
            return self._may_hold(freed) and self._is_placeable(guarantees, ended)

    def _is_staying(self, pod: Pod) -> bool:
        return self._pool_state.guarantee.is_guaranteed(pod.uid) and pod.uid not in self._pool_state.terminating_pods

    def _may_hold(self, freed: MilliResources | None = None) -> bool:
        usage = self._pool_state.guarantee.usage
        return may_hold(usage, self._quota, self._pending.gang, self._pods, freed=freed)

    def _is_placeable(self, guarantees: PoolGuarantees, ended: Iterable[Pod] = ()) -> bool:
        """Return whether the guarantees hold the pods somewhere once borrowing pods, and others, have ended."""
        placement = GuaranteedPlacement(
            guarantees,
            self._quota.tenant,
            self._judged,
            required_level=self._pending.gang.required_level,
            among=allowed_nodes(self._pool_state, self._pending),
        )
        with self._pool_state.trial():
            self._pool_state.remove_evictable()
            self._pool_state.remove_pods(ended)
            return placement(self._pool_state.node_resources) is not None

    def _larger_quotas(self) -> Iterator[Quota]:
        """Yield quotas with a larger guarantee: the sum of what is used and wanted, then whole cells for it."""
        quota, unit, levels = self._quota, self._unit, self._pool_state.guarantees.levels
        now = guaranteed_units(quota, unit)
        least = max(now + 1, round_up_units(self.used[unit] + self.wanted[unit]))
        rounded = {-(-least // size) * size for size in levels}
        for units in sorted({least, *rounded, max(rounded) + levels[0]})[:_MAX_TRIALS]:
            more = list_sizes(count_cells(units - now, levels), levels) if quota.cells else ()
            guarantee = {**quota.guarantee, unit: units * MILLI_PER_UNIT}
            yield replace(quota, guarantee=guarantee, cells=(*quota.cells, *more))

    def _suffices(self, larger: Quota) -> bool:
        """Return whether the pool's nodes hold a larger guarantee, next to all others, with the pods inside it."""
        state, now = self._pool_state, self._pool_state.guarantees
        quotas = [larger if each.tenant == larger.tenant else each for each in state.tenant_usage.quotas.values()]
        guarantees = PoolGuarantees(state.pool, quotas, now.placed_amounts())
        return (
            guarantees.losses == now.losses
            and not guarantees.overused_tenants()
            and guarantees.broken_promises() <= now.broken_promises()
            and self._is_placeable(guarantees)
        )

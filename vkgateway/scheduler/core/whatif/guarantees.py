"""Answer to a guarantee: whether it fits next to the others, where its cells bind, and evictions (pure)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.api.errors import InputError
from vkgateway.api.names import validate_tenant_name
from vkgateway.api.requests import render_milli
from vkgateway.scheduler.core.capacity.run_limits import expected_end, run_start
from vkgateway.scheduler.core.guarantees.cell_sizes import MILLI_PER_UNIT
from vkgateway.scheduler.core.guarantees.pool_guarantees import PlacedAmount, PoolGuarantees
from vkgateway.scheduler.core.guarantees.refusals import deferral_reason, displaces_pods, refusal_reasons
from vkgateway.scheduler.core.reasons.message_texts import count_text
from vkgateway.scheduler.core.snapshot import (
    ENDING,
    NOTIFIED,
    WAITING,
    Gang,
    Pod,
    Policy,
    Pool,
    Quota,
    Snapshot,
    node_name,
)
from vkgateway.scheduler.core.whatif.answers import Answer, Cell, Eviction, Outcome, Verdict
from vkgateway.scheduler.core.whatif.difference import Difference, OutcomeLookup, build_answer
from vkgateway.scheduler.core.whatif.gangs import pod_shape
from vkgateway.scheduler.core.whatif.growth import commonest_node, with_nodes
from vkgateway.scheduler.core.whatif.lookup import check_offered, find_pool, read_amounts
from vkgateway.scheduler.core.whatif.questions import MOST_CELLS, GuaranteeQuestion
from vkgateway.scheduler.core.whatif.simulation import DecidedSnapshot, Simulation, with_gangs
from vkgateway.scheduler.pending_message import render_expected_start

_NAMED = 8
_MOST_MORE = 1024
"""Highest number of additional nodes that a remedy names."""
_IN_A_CELL = "A cell's start is that of a pod of the guaranteed band that fills it and requests no other resource."
_NOW = "The cells are those that the nodes could hold now."
_SUMS = (
    "A guarantee of cpu or memory is a sum without cells; pods that the arbiter does not place use it first, and "
    "are not counted here."
)


def answer_guarantee(question: GuaranteeQuestion, simulation: Simulation) -> Answer:
    """Answer a guarantee question. Raises NotFoundError, InputError."""
    pool = find_pool(simulation.snapshot, question.pool)
    existing = next((each for each in simulation.snapshot.quotas if _is_asked_quota(each, question, pool)), None)
    new_quota = _asked_quota(question, pool, simulation, existing)
    others = [each for each in simulation.snapshot.quotas if each.pool == pool.key and each.tenant != new_quota.tenant]
    is_larger = existing is None or not _is_within(new_quota, existing)
    refusals = [*_sum_faults(pool, others, new_quota), *refusal_reasons(pool, others, new_quota)] if is_larger else []
    if refusals:
        return _refused_answer(question, simulation, refusals, _remedies(pool, others, new_quota))
    changed = simulation.decide_about(simulation.with_quota(new_quota))
    placed = placed_inside(simulation.snapshot, pool)
    deferral = deferral_reason(pool, others, new_quota, placed) if is_larger else ""
    difference = Difference(simulation, changed)
    cell_fill = fill_cells(simulation, changed, pool, new_quota.tenant)
    notes = [_IN_A_CELL] if cell_fill.cells else []
    notes += [_SUMS] if any(name not in pool.governed for name in new_quota.guarantee) else []
    notes += [f"{deferral}.", _earliest_text(simulation, pool, others, new_quota), _NOW] if deferral else []
    return build_answer(
        question,
        simulation,
        difference,
        verdict=Verdict.ACCEPTED_LATER if deferral else Verdict.ACCEPTED,
        summary=_guarantee_summary(cell_fill, deferral=bool(deferral)),
        cells=cell_fill.cells,
        evictions=(*difference.new_evictions(), *cell_fill.evictions),
        notes=tuple(notes),
    )


def _is_asked_quota(quota: Quota, question: GuaranteeQuestion, pool: Pool) -> bool:
    return (quota.tenant, quota.pool) == (question.tenant, pool.key)


def _asked_quota(question: GuaranteeQuestion, pool: Pool, simulation: Simulation, existing: Quota | None) -> Quota:
    """Return the quota in question. Raises InputError."""
    validate_tenant_name(question.tenant)
    guarantee = read_amounts("guarantee", question.guarantee, zero=True)
    check_offered(guarantee, [pool])
    _check_cells(question.cells)
    old = existing or Quota(tenant=question.tenant, pool=pool.key)
    limit = read_amounts("limit", question.limit, zero=True) if question.limit is not None else old.limit
    weight = question.weight if question.weight is not None else old.weight
    if not 0 < weight < math.inf:
        raise InputError(f"weight: {weight} is not more than 0", hint="Weights are numbers like 1 or 2.5.")
    for name, amount in guarantee.items():
        if amount > limit.get(name, amount):
            least, most = _amount_text(name, amount), render_milli({name: limit[name]})
            raise InputError(
                f"limit: {most} is less than the guarantee of {least}",
                hint="Raise the limit, or lower the guarantee.",
            )
    granted = existing.granted if existing is not None else simulation.now
    return replace(old, guarantee=guarantee, limit=limit, weight=weight, cells=question.cells, granted=granted)


def _amount_text(name: str, amount: int) -> str:
    return render_milli({name: amount}).removeprefix(f"{name} ")


def _check_cells(cells: Sequence[int]) -> None:
    if len(cells) > MOST_CELLS:
        raise InputError(f"cells: {len(cells)} are more than {MOST_CELLS}", hint="Ask about larger or fewer cells.")
    for cell in cells:
        if cell < 1:
            raise InputError(f"cells: {cell} is not 1 or more", hint="A cell holds 1 unit of the pool or more.")


def _is_within(new_quota: Quota, existing: Quota) -> bool:
    """Return whether the quota guarantees no more than the tenant has: that is accepted in any case."""
    if any(amount > existing.guarantee.get(name, 0) for name, amount in new_quota.guarantee.items()):
        return False
    if not new_quota.cells and not existing.cells:
        return True
    pairs = zip(sorted(new_quota.cells, reverse=True), sorted(existing.cells, reverse=True), strict=False)
    return 0 < len(new_quota.cells) <= len(existing.cells) and all(new <= old for new, old in pairs)


def _sum_faults(pool: Pool, others: Sequence[Quota], new_quota: Quota) -> Iterator[str]:
    """Yield the resources without cells (CPU, memory) of which the pool has too little."""
    usable = [node for node in pool.nodes if node.usable]
    for name, amount in new_quota.guarantee.items():
        held = sum(node.allocatable.get(name, 0) for node in usable)
        taken = sum(quota.guarantee.get(name, 0) for quota in others)
        if name not in pool.governed and amount > held - taken:
            yield (
                f"{render_milli({name: amount})} requested, but pool {node_name(pool.key)} has "
                f"{_amount_text(name, held)}, of which {_amount_text(name, taken)} are guaranteed to other "
                f"tenants; request at "
                f"most {_amount_text(name, max(0, held - taken))}"
            )


def _refused_answer(
    question: GuaranteeQuestion, simulation: Simulation, refusals: Sequence[str], remedies: Iterable[str]
) -> Answer:
    return build_answer(
        question,
        simulation,
        Difference(simulation, simulation.unchanged),
        verdict=Verdict.REFUSED,
        summary=f"The gateway refuses it: {'; '.join(refusals)}.",
        notes=tuple(remedies),
    )


def _remedies(pool: Pool, others: Sequence[Quota], new_quota: Quota) -> Iterator[str]:
    """Yield the nodes that would hold the guarantee, and the existing guarantees."""
    model = commonest_node(pool)
    numbers = range(1, _MOST_MORE + 1)

    def holds(number: int) -> bool:
        return model is not None and _would_fit(with_nodes(pool, model, number), others, new_quota)

    first = bisect_left(numbers, True, key=holds)
    if model is None or first == len(numbers):
        return
    nodes = count_text(numbers[first], "more node")
    yield f"{nodes} like {model.name} would hold it: see `vkgateway whatif grow {node_name(pool.key)}`."
    held = [(quota.tenant, quota.guarantee.get(pool.unit_resource, 0) // MILLI_PER_UNIT) for quota in others]
    listed = sorted((each for each in held if each[1]), key=lambda each: (-each[1], each[0]))
    if listed:
        text = ", ".join(f"{tenant} {units}" for tenant, units in listed[:_NAMED])
        suffix = f" and {len(listed) - _NAMED} more tenants" if len(listed) > _NAMED else ""
        yield (
            f"{pool.unit_resource} is guaranteed to: {text}{suffix}. "
            "A smaller guarantee of one of them frees capacity, too."
        )


def _would_fit(pool: Pool, others: Sequence[Quota], new_quota: Quota) -> bool:
    return not any(_sum_faults(pool, others, new_quota)) and not refusal_reasons(pool, others, new_quota)


def _earliest_text(simulation: Simulation, pool: Pool, others: Sequence[Quota], new_quota: Quota) -> str:
    """Return when enough of the conflicting pods have ended, as far as known; each end can only help."""
    held = [(gang, pod) for gang in simulation.snapshot.gangs for pod in gang.pods if is_inside(pod, pool)]
    ends = {pod.uid: _expected_end(gang, pod, pool, simulation.snapshot.policy) for gang, pod in held}
    times = sorted({end for end in ends.values() if end is not None})

    def in_the_way(time: float) -> bool:
        left = [
            (gang.tenant, pod.node, pod.shape.amount_of(pool.unit_resource))
            for gang, pod in held
            if (end := ends[pod.uid]) is None or end > time
        ]
        return displaces_pods(pool, others, new_quota, left)

    if not times or in_the_way(times[-1]):
        return "No known end makes it fit: only guaranteed gangs with a run limit have a known end."
    first = bisect_left(times, True, key=lambda time: not in_the_way(time))
    when = render_expected_start(times[first], times[first], now=simulation.now)
    return f"By the known ends, enough have ended {when}."


def _expected_end(gang: Gang, pod: Pod, pool: Pool, policy: Policy) -> float | None:
    """Return when a pod ends; None: unknown."""
    if pod.state in (ENDING, NOTIFIED):
        return pod.deadline + (gang.grace if pod.state is NOTIFIED else 0.0)
    start = run_start(gang)
    return expected_end(gang, pool, policy, since=pod.since, start=pod.since if start is None else start)


def _guarantee_summary(cell_fill: CellFill, *, deferral: bool) -> str:
    fits = (
        "Its cells fit into empty nodes, but guaranteed pods block them: the gateway accepts it later."
        if deferral
        else "It fits next to the existing guarantees."
    )
    if not cell_fill.cells:
        return fits
    verdicts = Counter(cell.verdict for cell in cell_fill.cells if not cell.in_use)
    used = sum(cell.in_use for cell in cell_fill.cells)
    evicted = sum(each.pods for each in cell_fill.evictions)
    parts = {
        "in use": used,
        "free now": verdicts[Verdict.STARTS],
        f"after evictions of {count_text(evicted, 'pod')}" if evicted else "after terminating pods": verdicts[
            Verdict.STARTS_AFTER_EVICTION
        ],
        "not tried": cell_fill.untried,
        "must wait": verdicts[Verdict.WAITS] + verdicts[Verdict.NEVER],
    }
    text = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
    return f"{fits} Of its {count_text(len(cell_fill.cells) + cell_fill.untried, 'cell')}, used at once: {text}."


_MOST_TRIED: Final = 64
"""Number of cells that are filled, the largest first: the arbiter's time grows with the square of their number."""


@dataclass(frozen=True, slots=True)
class CellFill:
    """State of each cell, and the evictions for them."""

    cells: tuple[Cell, ...] = ()
    evictions: tuple[Eviction, ...] = ()
    untried: int = 0
    """Number of unused cells that were not filled because it would take too long."""


def fill_cells(simulation: Simulation, changed: DecidedSnapshot, pool: Pool, tenant: str) -> CellFill:
    """Fill each unused cell of a tenant with a single pod, and let the arbiter decide.

    `changed` is the case with the guarantee; its decisions are carried out first.
    """
    if not pool.unit_resource:
        return CellFill()
    after = changed.apply_decisions(simulation.now)
    guarantees = PoolGuarantees(pool, after.quotas, placed_inside(after, pool))
    in_use = [
        Cell(size=size, in_use=True, node=node, verdict=Verdict.STARTS)
        for node, sizes in guarantees.cells_in_use(tenant).items()
        for size in sizes
    ]
    unused = [size for size, number in guarantees.unused_cells(tenant).items() for _ in range(number)]
    tried = sorted(unused, reverse=True)[:_MOST_TRIED]
    gangs = [
        _filling_gang(name, tenant, size, pool, simulation.now)
        for name, size in zip(simulation.unused_gang_ids(tenant, len(tried)), tried, strict=True)
    ]
    used = simulation.decide_about(with_gangs(after, gangs))
    outcomes = OutcomeLookup(used.decisions, simulation.now, simulation.names)
    difference = Difference(simulation, used, before=simulation.decide_about(after), about=[gang.id for gang in gangs])
    found = [_filled_cell(size, outcomes.outcome_of(gang, gang.pods)) for gang, size in zip(gangs, tried, strict=True)]
    return CellFill((*in_use, *found), tuple(difference.new_evictions()), len(unused) - len(tried))


def placed_inside(snapshot: Snapshot, pool: Pool) -> list[PlacedAmount]:
    """Return the pods that run inside guarantees in a pool, for `PoolGuarantees`."""
    return [
        (gang.tenant, pod.node, pod.shape.amount_of(pool.unit_resource))
        for gang in snapshot.gangs
        for pod in gang.pods
        if is_inside(pod, pool)
    ]


def is_inside(pod: Pod, pool: Pool) -> bool:
    """Return whether a pod runs in a pool, inside its tenant's guarantee."""
    return pod.state is not WAITING and pod.pool == pool.key and not pod.borrowed


def _filling_gang(name: str, tenant: str, size: int, pool: Pool, now: float) -> Gang:
    shape = pod_shape({pool.unit_resource: size * MILLI_PER_UNIT}, [pool])
    return Gang(id=name, tenant=tenant, pods=(Pod(uid=name, shape=shape),), pools=(pool.key,), created=now)


def _filled_cell(size: int, outcome: Outcome) -> Cell:
    return Cell(
        size=size,
        in_use=False,
        node=outcome.placements[0].node if outcome.placements else "",
        verdict=outcome.verdict,
        borrowed=outcome.borrowed,
        message=outcome.message,
        expected=outcome.expected,
    )

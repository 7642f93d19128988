"""The question of a guarantee: does it fit beside the others, which cells could bind, who would be evicted (pure)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from vkgateway.arbiter.guarantees.cell_sizes import MILLI_PER_UNIT
from vkgateway.arbiter.guarantees.refusals import deferral_reason, displaces_pods, refusal_reasons
from vkgateway.arbiter.reasons.pending_reasons import count_text
from vkgateway.arbiter.snapshot import ENDING, NOTIFIED, Gang, Pod, Policy, Pool, Quota, node_name
from vkgateway.arbiter.whatif.answers import Answer, Verdict
from vkgateway.arbiter.whatif.cellfill import CellFill, fill_cells, is_inside, placed_inside
from vkgateway.arbiter.whatif.difference import Difference, build_answer
from vkgateway.arbiter.whatif.growth import commonest_node, with_nodes
from vkgateway.arbiter.whatif.lookup import check_offered, find_pool, read_amounts
from vkgateway.arbiter.whatif.questions import MOST_CELLS, GuaranteeQuestion
from vkgateway.arbiter.whatif.simulation import Simulation
from vkgateway.model.errors import InputError
from vkgateway.model.names import validate_tenant_name
from vkgateway.model.requests import render_milli
from vkgateway.translate.pending_message import render_expected_start

_NAMED = 8
_MOST_MORE = 1024
"""More nodes that are named as a way out at most."""
_IN_A_CELL = "A cell's start is that of a pod of the guaranteed band that fills it and asks for nothing else."
_NOW = "The cells are those that the nodes could hold of it now."
_SUMS = (
    "A guarantee of cpu or memory is a sum without cells; pods that the arbiter does not place use it up first, and "
    "are not counted here."
)


def answer_guarantee(question: GuaranteeQuestion, trial: Simulation) -> Answer:
    """Answer it. Raises NotFoundError, InputError."""
    pool = find_pool(trial.snapshot, question.pool)
    had = next((each for each in trial.snapshot.quotas if _is_asked_quota(each, question, pool)), None)
    mine = _asked_quota(question, pool, trial, had)
    others = [each for each in trial.snapshot.quotas if each.pool == pool.key and each.tenant != mine.tenant]
    new = had is None or not _is_within(mine, had)
    refused = [*_sum_faults(pool, others, mine), *refusal_reasons(pool, others, mine)] if new else []
    if refused:
        return _refused_answer(question, trial, refused, _remedies(pool, others, mine))
    changed = trial.decide_about(trial.with_quota(mine))
    placed = placed_inside(trial.snapshot, pool)
    later = deferral_reason(pool, others, mine, placed) if new else ""
    difference = Difference(trial, changed)
    used = fill_cells(trial, changed, pool, mine.tenant)
    notes = [_IN_A_CELL] if used.cells else []
    notes += [_SUMS] if any(name not in pool.governed for name in mine.guarantee) else []
    notes += [f"{later}.", _earliest_text(trial, pool, others, mine), _NOW] if later else []
    return build_answer(
        question,
        trial,
        difference,
        verdict=Verdict.ACCEPTED_LATER if later else Verdict.ACCEPTED,
        summary=_guarantee_summary(used, later=bool(later)),
        cells=used.cells,
        evictions=(*difference.new_evictions(), *used.evictions),
        notes=tuple(notes),
    )


def _is_asked_quota(quota: Quota, question: GuaranteeQuestion, pool: Pool) -> bool:
    return (quota.tenant, quota.pool) == (question.tenant, pool.key)


def _asked_quota(question: GuaranteeQuestion, pool: Pool, trial: Simulation, had: Quota | None) -> Quota:
    """Return the quota that is asked about. Raises InputError."""
    validate_tenant_name(question.tenant)
    guarantee = read_amounts("guarantee", question.guarantee, zero=True)
    check_offered(guarantee, [pool])
    _check_cells(question.cells)
    old = had or Quota(tenant=question.tenant, pool=pool.key)
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
    granted = had.granted if had is not None else trial.now
    return replace(old, guarantee=guarantee, limit=limit, weight=weight, cells=question.cells, granted=granted)


def _amount_text(name: str, amount: int) -> str:
    return render_milli({name: amount}).removeprefix(f"{name} ")


def _check_cells(cells: Sequence[int]) -> None:
    if len(cells) > MOST_CELLS:
        raise InputError(f"cells: {len(cells)} are more than {MOST_CELLS}", hint="Ask about larger or fewer cells.")
    for cell in cells:
        if cell < 1:
            raise InputError(f"cells: {cell} is not 1 or more", hint="A cell holds 1 unit of the pool or more.")


def _is_within(mine: Quota, had: Quota) -> bool:
    """Whether nothing is guaranteed beyond what the tenant has: that is accepted in any case."""
    if any(amount > had.guarantee.get(name, 0) for name, amount in mine.guarantee.items()):
        return False
    if not mine.cells and not had.cells:
        return True
    pairs = zip(sorted(mine.cells, reverse=True), sorted(had.cells, reverse=True), strict=False)
    return 0 < len(mine.cells) <= len(had.cells) and all(new <= old for new, old in pairs)


def _sum_faults(pool: Pool, others: Sequence[Quota], mine: Quota) -> Iterator[str]:
    """Say of cpu, memory and the like, which are in no cells, where the pool does not have what is asked for."""
    usable = [node for node in pool.nodes if node.usable]
    for name, amount in mine.guarantee.items():
        held = sum(node.allocatable.get(name, 0) for node in usable)
        taken = sum(quota.guarantee.get(name, 0) for quota in others)
        if name not in pool.governed and amount > held - taken:
            yield (
                f"{render_milli({name: amount})} asked for, but pool {node_name(pool.key)} holds "
                f"{_amount_text(name, held)}, of which {_amount_text(name, taken)} are guaranteed to other "
                f"tenants; ask for at "
                f"most {_amount_text(name, max(0, held - taken))}"
            )


def _refused_answer(
    question: GuaranteeQuestion, trial: Simulation, refused: Sequence[str], ways_out: Iterable[str]
) -> Answer:
    return build_answer(
        question,
        trial,
        Difference(trial, trial.unchanged),
        verdict=Verdict.REFUSED,
        summary=f"The gateway refuses it: {'; '.join(refused)}.",
        notes=tuple(ways_out),
    )


def _remedies(pool: Pool, others: Sequence[Quota], mine: Quota) -> Iterator[str]:
    """Say which nodes would hold it, and to whom the pool is guaranteed."""
    model = commonest_node(pool)
    numbers = range(1, _MOST_MORE + 1)

    def holds(number: int) -> bool:
        return model is not None and _would_fit(with_nodes(pool, model, number), others, mine)

    first = bisect_left(numbers, True, key=holds)
    if model is None or first == len(numbers):
        return
    nodes = count_text(numbers[first], "more node")
    yield f"{nodes} like {model.name} would hold it: see `vkgateway whatif grow {node_name(pool.key)}`."
    held = [(quota.tenant, quota.guarantee.get(pool.unit_resource, 0) // MILLI_PER_UNIT) for quota in others]
    listed = sorted((each for each in held if each[1]), key=lambda each: (-each[1], each[0]))
    if listed:
        told = ", ".join(f"{tenant} {units}" for tenant, units in listed[:_NAMED])
        more = f" and {len(listed) - _NAMED} more tenants" if len(listed) > _NAMED else ""
        yield (
            f"{pool.unit_resource} is guaranteed to: {told}{more}. A smaller guarantee of one of them makes room, too."
        )


def _would_fit(pool: Pool, others: Sequence[Quota], mine: Quota) -> bool:
    return not any(_sum_faults(pool, others, mine)) and not refusal_reasons(pool, others, mine)


def _earliest_text(trial: Simulation, pool: Pool, others: Sequence[Quota], mine: Quota) -> str:
    """Say when enough of the pods in the way have ended, as far as that is known: with each end it is easier."""
    held = [(gang, pod) for gang in trial.snapshot.gangs for pod in gang.pods if is_inside(pod, pool)]
    ends = {pod.uid: _expected_end(gang, pod, trial.snapshot.policy) for gang, pod in held}
    times = sorted({end for end in ends.values() if end is not None})

    def in_the_way(time: float) -> bool:
        left = [
            (gang.tenant, pod.node, pod.shape.amount_of(pool.unit_resource))
            for gang, pod in held
            if (end := ends[pod.uid]) is None or end > time
        ]
        return displaces_pods(pool, others, mine, left)

    if not times or in_the_way(times[-1]):
        return "No known end lets it in: gangs inside guarantees that declare a run limit have a known end."
    first = bisect_left(times, True, key=lambda time: not in_the_way(time))
    when = render_expected_start(times[first], times[first], now=trial.now)
    return f"By the ends that are known, enough have ended {when}."


def _expected_end(gang: Gang, pod: Pod, policy: Policy) -> float | None:
    """Return when a pod will have ended, as far as that is known."""
    if pod.state in (ENDING, NOTIFIED):
        return pod.deadline + (gang.grace if pod.state is NOTIFIED else 0.0)
    if gang.run_limit is not None:
        return pod.since + gang.run_limit
    return pod.since + gang.expected_run * policy.run_margin if gang.expected_run is not None else None


def _guarantee_summary(used: CellFill, *, later: bool) -> str:
    fits = (
        "Its cells fit into empty nodes, but pods inside guarantees are in the way: the gateway accepts it later."
        if later
        else "It fits next to the existing guarantees."
    )
    if not used.cells:
        return fits
    verdicts = Counter(cell.verdict for cell in used.cells if not cell.bound)
    bound = sum(cell.bound for cell in used.cells)
    evicted = sum(each.pods for each in used.evictions)
    parts = {
        "in use": bound,
        "free now": verdicts[Verdict.STARTS],
        f"after evictions of {count_text(evicted, 'pod')}" if evicted else "after pods that leave already": verdicts[
            Verdict.STARTS_AFTER_EVICTION
        ],
        "not tried": used.untried,
        "must wait": verdicts[Verdict.WAITS] + verdicts[Verdict.NEVER],
    }
    told = ", ".join(f"{number} {what}" for what, number in parts.items() if number)
    return f"{fits} Of its {count_text(len(used.cells) + used.untried, 'cell')}, used at once: {told}."

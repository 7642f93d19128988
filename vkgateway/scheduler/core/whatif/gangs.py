"""Answer to a new gang: whether it starts, where, and which pods are evicted; otherwise when (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from vkgateway.api.errors import InputError
from vkgateway.api.requests import MilliResources, is_extended
from vkgateway.scheduler.core.reasons.message_texts import count_text
from vkgateway.scheduler.core.snapshot import Band, Gang, Pod, Pool, Shape
from vkgateway.scheduler.core.whatif.answers import Answer, Outcome, Verdict
from vkgateway.scheduler.core.whatif.difference import Difference, OutcomeLookup, build_answer
from vkgateway.scheduler.core.whatif.lookup import check_offered, read_amounts, select_pools
from vkgateway.scheduler.core.whatif.questions import MOST_PODS, GangQuestion
from vkgateway.scheduler.core.whatif.simulation import Simulation, with_gangs


def answer_gang(question: GangQuestion, simulation: Simulation) -> Answer:
    """Answer a gang question. Raises NotFoundError, InputError."""
    gang = _build_gang(question, simulation)
    changed = simulation.decide_about(with_gangs(simulation.snapshot, [gang]))
    outcome = OutcomeLookup(changed.decisions, simulation.now, simulation.names).outcome_of(gang, gang.pods)
    difference = Difference(simulation, changed, about=[gang.id])
    evictions = difference.new_evictions()
    return build_answer(
        question,
        simulation,
        difference,
        verdict=outcome.verdict,
        summary=_gang_summary(outcome, evicted=sum(each.pods for each in evictions)),
        gangs=(outcome,),
    )


def _build_gang(question: GangQuestion, simulation: Simulation) -> Gang:
    """Return the gang that the gateway would form from such pods."""
    requests = _check_question(question)
    keys = select_pools(simulation.snapshot, question.tenant, question.pools)
    pools = [pool for pool in simulation.snapshot.pools if pool.key in keys]
    check_offered(requests, pools)
    _check_level(question.within, pools)
    shape = pod_shape(requests, pools)
    [name] = simulation.unused_gang_ids(question.tenant, 1)
    minimum = question.minimum or question.pods
    return Gang(
        id=name,
        tenant=question.tenant,
        pods=tuple(Pod(uid=f"{name}-{rank}", shape=shape, rank=rank) for rank in range(question.pods)),
        pools=keys,
        band=Band(question.band),
        priority=question.priority,
        created=simulation.now,
        minimum=minimum,
        elastic=minimum < question.pods,
        required_level=question.within,
        run_limit=question.run_limit,
    )


def pod_shape(requests: MilliResources, pools: Iterable[Pool]) -> Shape:
    """Return the shape of a pod with these requests; it uses one of a node's pods, where nodes count them."""
    counted = any("pods" in node.allocatable for pool in pools for node in pool.nodes)
    return Shape.from_requests({**requests, "pods": 1000} if counted else requests)


def _check_question(question: GangQuestion) -> MilliResources:
    """Return the requests of each pod. Raises InputError."""
    if not 1 <= question.pods <= MOST_PODS:
        raise InputError(
            f"pods: {question.pods} is not between 1 and {MOST_PODS}", hint="Ask about a gang of another size."
        )
    if question.minimum is not None and not 1 <= question.minimum <= question.pods:
        raise InputError(
            f"minimum: {question.minimum} is not between 1 and {question.pods}",
            hint="At most all pods of the gang start together.",
        )
    if question.band not in tuple(Band):
        raise InputError(f"band: {question.band!r} does not exist", hint=f"Bands: {', '.join(Band)}.")
    if question.run_limit is not None and not question.run_limit > 0:
        raise InputError(
            f"run limit: {question.run_limit:g} s is not more than 0", hint="Declare a longer one, or none."
        )
    if not question.requests:
        raise InputError("requests: the pods request nothing", hint="Name the requests of each, like nvidia.com/gpu 8.")
    requests = read_amounts("request", question.requests)
    if question.pods == 1 and not any(map(is_extended, requests)):
        raise InputError(
            "requests: the arbiter does not schedule a single pod without devices: it starts as in any cluster",
            hint="Ask about a device such as nvidia.com/gpu, or about a gang of several pods.",
        )
    return requests


def _check_level(level: str, pools: list[Pool]) -> None:
    if level and not any(level in node.labels for pool in pools for node in pool.nodes):
        known = sorted({name for pool in pools for name in pool.levels})
        hint = f"Labels of the network here: {', '.join(known)}." if known else "Omit it."
        raise InputError(f"within: no node of these pools has the label {level!r}", hint=hint)


def _gang_summary(outcome: Outcome, *, evicted: int) -> str:
    where = "outside the tenant's guarantee" if outcome.borrowed else "inside the tenant's guarantee"
    if outcome.verdict is Verdict.STARTS:
        part = "" if outcome.starting == outcome.pods else f" with {outcome.starting} of {outcome.pods} pods"
        return f"It starts now{part}, {where}."
    if outcome.verdict is Verdict.STARTS_AFTER_EVICTION:
        if not evicted:
            return f"It starts, {where}, when terminating pods have terminated."
        return f"It starts, {where}, once the arbiter has evicted {count_text(evicted, 'pod')}."
    if outcome.verdict is Verdict.NEVER:
        return "It never starts unchanged."
    return "It waits."

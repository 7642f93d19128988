"""Answer to a drain: nodes are closed, and their pods are deleted and re-created (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from vkgateway.api.errors import InputError
from vkgateway.api.requests import render_milli
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.reasons.message_texts import count_text
from vkgateway.scheduler.core.snapshot import (
    NOTIFIED,
    PLACED,
    WAITING,
    Gang,
    Pod,
    Pool,
    PoolKey,
    Shape,
    Snapshot,
    node_name,
)
from vkgateway.scheduler.core.whatif.answers import Answer, Outcome, Verdict
from vkgateway.scheduler.core.whatif.difference import Difference, OutcomeLookup, build_answer
from vkgateway.scheduler.core.whatif.lookup import find_nodes
from vkgateway.scheduler.core.whatif.questions import MOST_NODES, DrainQuestion
from vkgateway.scheduler.core.whatif.simulation import DecidedSnapshot, Simulation, with_gangs

_NAMED = 8
_ANY_PART = (
    "Drained pods count as free to restart in every part of their pool: whether they themselves select one, such "
    "as a zone, is unknown."
)
_Closed = frozenset[tuple[str, str]]
"""Compute clusters and nodes."""


def answer_drain(question: DrainQuestion, simulation: Simulation) -> Answer:
    """Answer a drain question. Raises NotFoundError, InputError."""
    closed = _closed_nodes(question, simulation.snapshot)
    gangs = [gang for gang in simulation.snapshot.gangs if any(_is_on_closed_node(pod, closed) for pod in gang.pods)]
    restart_shapes = RestartShapes(simulation.observed.part_labels)
    drained = {gang.id: _drained_gang(gang, closed, restart_shapes, simulation.now) for gang in gangs}
    moved = {
        gang.id: {pod.uid for pod in gang.pods if pod.state is PLACED and _is_on_closed_node(pod, closed)}
        for gang in gangs
    }
    after = _drained_snapshot(simulation.snapshot, closed, drained)
    changed = simulation.decide_about(after)
    found = _moved_outcomes(simulation, changed, [gang for gang in drained.values() if gang is not None], moved)
    difference = Difference(simulation, changed, about=[outcome.gang.id for outcome in found])
    return build_answer(
        question,
        simulation,
        difference,
        verdict=_drain_verdict(found),
        summary=_drain_summary(found, evicted=sum(each.pods for each in difference.new_evictions())),
        gangs=found,
        notes=(
            *_drain_notes(simulation.snapshot, closed, gangs),
            *([_ANY_PART] if restart_shapes.has_relaxed else []),
            *_other_pool_notes(simulation, after, found, moved),
        ),
    )


def _moved_outcomes(
    simulation: Simulation, case: DecidedSnapshot, gangs: Iterable[Gang], moved: Mapping[str, Collection[str]]
) -> tuple[Outcome, ...]:
    """Return the outcomes of the pods that move, by gang id."""
    outcomes = OutcomeLookup(case.decisions, simulation.now, simulation.names)
    return tuple(
        outcomes.outcome_of(gang, [pod for pod in gang.pods if pod.uid in moved[gang.id]])
        for gang in gangs
        if moved[gang.id]
    )


def _other_pool_notes(
    simulation: Simulation, after: Snapshot, found: Iterable[Outcome], moved: Mapping[str, Collection[str]]
) -> Iterator[str]:
    """Yield a note on waiting gangs that would restart in another pool of their tenants.

    Running pods are bound to one pool; this does not show whether their owner selected it.
    """
    waiting = {
        outcome.gang.id
        for outcome in found
        if outcome.verdict in (Verdict.WAITS, Verdict.NEVER) and not outcome.running
    }
    wider = [replace(gang, pools=_all_pools(gang, after)) for gang in after.gangs if gang.id in waiting]
    wider = [gang for gang in wider if len(gang.pools) > 1 and not any(pod.pools for pod in gang.pods)]
    if not wider:
        return
    restarting = [
        outcome
        for outcome in _moved_outcomes(simulation, simulation.decide_about(with_gangs(after, wider)), wider, moved)
        if outcome.verdict in (Verdict.STARTS, Verdict.STARTS_AFTER_EVICTION)
    ]
    if restarting:
        named = ", ".join(
            f"{outcome.gang.tenant} {outcome.gang.name} in {outcome.placements[0].pool}"
            for outcome in restarting[:_NAMED]
        )
        more = f" and {len(restarting) - _NAMED} more" if len(restarting) > _NAMED else ""
        yield f"Of the waiting gangs, these restart if their pods select no pool: {named}{more}."


def _all_pools(gang: Gang, snapshot: Snapshot) -> tuple[PoolKey, ...]:
    others = (quota.pool for quota in snapshot.quotas if quota.tenant == gang.tenant)
    return tuple(dict.fromkeys([*gang.pools, *others]))


def _closed_nodes(question: DrainQuestion, snapshot: Snapshot) -> _Closed:
    if not 1 <= len(question.nodes) <= MOST_NODES:
        raise InputError(
            f"nodes: {len(question.nodes)} are named, not 1 to {MOST_NODES}", hint="Name the nodes to drain."
        )
    return frozenset((pool.key[0], node.name) for name in question.nodes for pool, node in find_nodes(snapshot, name))


def _is_on_closed_node(pod: Pod, closed: _Closed) -> bool:
    return pod.pool is not None and (pod.pool[0], pod.node) in closed


class RestartShapes:
    """Shapes of pods that may restart in every part of a pool that is divided into virtual nodes.

    A running pod requests nodes of the part to which it was admitted.
    """

    def __init__(self, divided: Mapping[PoolKey, frozenset[str]]) -> None:
        self._divided = divided
        self._known: dict[tuple[Shape, frozenset[str]], Shape] = {}
        self.has_relaxed = False
        """Whether a shape requested a part."""

    def shape_of(self, pod: Pod) -> Shape:
        """Return the shape of the pod after its re-creation."""
        labels = self._divided.get(pod.pool) if pod.pool is not None else None
        if labels is None or not any(each.key in labels for term in pod.shape.terms for each in term):
            return pod.shape
        self.has_relaxed = True
        key = pod.shape, labels
        if key not in self._known:
            terms = [tuple(each for each in term if each.key not in labels) for term in pod.shape.terms]
            self._known[key] = replace(pod.shape, terms=tuple(dict.fromkeys(terms)) if all(terms) else ())
        return self._known[key]


def _drained_gang(gang: Gang, closed: _Closed, restart_shapes: RestartShapes, now: float) -> Gang | None:
    """Return the gang with its pods on these nodes re-created; None: no pod is left.

    Terminating pods count as deleted: their successors would come without the drain, too.
    """
    pods = tuple(
        Pod(uid=pod.uid, shape=restart_shapes.shape_of(pod), rank=pod.rank, role=pod.role, pools=pod.pools)
        if _is_on_closed_node(pod, closed)
        else pod
        for pod in gang.pods
        if not _is_on_closed_node(pod, closed) or pod.state is PLACED
    )
    if not pods:
        return None
    # As in the gateway, a gang of one is as old as its pod, and a running gang that lost members keeps its age.
    is_recreated = all(pod.state is WAITING for pod in pods) and all(pod.state is not WAITING for pod in gang.pods)
    ran, runs = (has_min_members(gang, [pod for pod in each if pod.state is PLACED]) for each in (gang.pods, pods))
    short = gang.short or (len(gang.pods) > 1 and ran and not runs)
    return replace(gang, pods=pods, created=now if is_recreated and not short else gang.created, short=short)


def _drained_snapshot(snapshot: Snapshot, closed: _Closed, drained: Mapping[str, Gang | None]) -> Snapshot:
    remaining = replace(
        snapshot,
        pools=tuple(_close_nodes(pool, closed) for pool in snapshot.pools),
        gangs=tuple(gang for gang in snapshot.gangs if drained.get(gang.id, gang) is not None),
    )
    return with_gangs(remaining, (gang for gang in drained.values() if gang is not None))


def _close_nodes(pool: Pool, closed: _Closed) -> Pool:
    if not any((pool.key[0], node.name) in closed for node in pool.nodes):
        return pool
    nodes = (replace(node, usable=False) if (pool.key[0], node.name) in closed else node for node in pool.nodes)
    return replace(pool, nodes=tuple(nodes))


def _drain_verdict(found: tuple[Outcome, ...]) -> Verdict:
    if not found:
        return Verdict.UNUSED
    started = (Verdict.STARTS, Verdict.STARTS_AFTER_EVICTION)
    whole = all(outcome.verdict in started and outcome.starting == outcome.pods for outcome in found)
    return Verdict.RESTARTS if whole else Verdict.SOME_WAIT


def _drain_summary(found: tuple[Outcome, ...], *, evicted: int) -> str:
    if not found:
        return "No gang's pods run there: nothing must move."
    verdicts = Counter(outcome.verdict for outcome in found)
    after = f"after evictions of {count_text(evicted, 'pod')}" if evicted else "after terminating pods"
    counts = ", ".join(
        f"{count_text(verdicts[verdict], 'gang')} {outcome if verdicts[verdict] == 1 else more}"
        for verdict, outcome, more in (
            (Verdict.STARTS, "restarts at once", "restart at once"),
            (Verdict.STARTS_AFTER_EVICTION, f"restarts {after}", f"restart {after}"),
            (Verdict.WAITS, "waits", "wait"),
            (Verdict.NEVER, "never restarts unchanged", "never restart unchanged"),
        )
        if verdicts[verdict]
    )
    return f"{count_text(sum(outcome.pods for outcome in found), 'pod')} must move: {counts}."


def _drain_notes(snapshot: Snapshot, closed: _Closed, gangs: list[Gang]) -> Iterator[str]:
    for pool in snapshot.pools:
        closed_nodes = [node for node in pool.nodes if (pool.key[0], node.name) in closed]
        unusable = sorted(node.name for node in closed_nodes if not node.usable)
        if unusable:
            yield f"{', '.join(unusable)} of {node_name(pool.key)}: already closed, or not ready."
        for name in pool.governed:
            held = sum(node.used.get(name, 0) for node in closed_nodes)
            if held:
                amount = render_milli({name: held})
                yield f"Unmanaged pods use {amount} there; where they will run is unknown."
    if gangs:
        yield "Drained pods count as re-created immediately, with the same requests; a controller may take longer."
    if any(pod.state is NOTIFIED and _is_on_closed_node(pod, closed) for gang in gangs for pod in gang.pods):
        yield "Pods there that were notified of an eviction are omitted: they terminate anyway."

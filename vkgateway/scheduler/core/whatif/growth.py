"""Answer to more nodes: the gangs that start, or start earlier, if a pool had them now (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from vkgateway.api.errors import InputError
from vkgateway.api.requests import MilliResources, render_milli
from vkgateway.scheduler.core.guarantees.refusals import largest_free_guarantee
from vkgateway.scheduler.core.reasons.message_texts import count_text
from vkgateway.scheduler.core.snapshot import Node, Pool, node_name
from vkgateway.scheduler.core.whatif.answers import Answer, Effect, EffectKind, GuaranteeChange, Verdict
from vkgateway.scheduler.core.whatif.difference import Difference, build_answer
from vkgateway.scheduler.core.whatif.lookup import find_nodes, find_pool
from vkgateway.scheduler.core.whatif.questions import MOST_NODES, GrowQuestion
from vkgateway.scheduler.core.whatif.simulation import DecidedSnapshot, Simulation

_HOSTNAME = "kubernetes.io/hostname"
_GAINS = {
    EffectKind.STARTS: ("starts now", "start now"),
    EffectKind.STARTS_AFTER_EVICTION: ("starts after evictions", "start after evictions"),
    EffectKind.EARLIER: ("starts earlier", "start earlier"),
    EffectKind.SPARED: ("is not evicted", "are not evicted"),
    EffectKind.INSIDE_GUARANTEE: ("is inside its guarantee", "are inside their guarantees"),
}


def answer_growth(question: GrowQuestion, simulation: Simulation) -> Answer:
    """Answer a growth question. Raises NotFoundError, InputError."""
    if not 1 <= question.nodes <= MOST_NODES:
        raise InputError(f"nodes: {question.nodes} is not between 1 and {MOST_NODES}", hint="Ask about more nodes.")
    pool = find_pool(simulation.snapshot, question.pool)
    model = _model_node(question, simulation, pool)
    larger = with_nodes(pool, model, question.nodes)
    changed = simulation.decide_about(
        replace(
            simulation.snapshot, pools=tuple(larger if each is pool else each for each in simulation.snapshot.pools)
        )
    )
    difference = Difference(simulation, changed)
    effects, guarantees = difference.other_effects(), difference.changed_guarantees()
    helps = bool(guarantees) or any(effect.what in _GAINS for effect in effects)
    return build_answer(
        question,
        simulation,
        difference,
        verdict=Verdict.HELPS if helps else Verdict.NO_EFFECT,
        summary=_growth_summary(effects, guarantees),
        notes=tuple(_growth_notes(model, pool, larger, changed)),
    )


def _model_node(question: GrowQuestion, simulation: Simulation, pool: Pool) -> Node:
    """Return the node that the new nodes copy. Raises NotFoundError, InputError."""
    if question.like:
        return find_nodes(simulation.snapshot, question.like)[0][1]
    model = commonest_node(pool)
    if model is None:
        raise InputError(
            f"pool {node_name(pool.key)} has no node to copy",
            hint="Name a node of any pool that the new nodes copy.",
        )
    return model


def commonest_node(pool: Pool) -> Node | None:
    """Return a node of the most common kind in a pool; None: the pool has no node."""
    usable = [node for node in pool.nodes if node.usable] or list(pool.nodes)
    kinds = Counter(map(_node_kind, usable))
    commonest = max(kinds, key=lambda kind: (kinds[kind], kind), default=None)
    return next((node for node in usable if _node_kind(node) == commonest), None)


def with_nodes(pool: Pool, model: Node, number: int) -> Pool:
    """Return the pool with this number of additional copies of the model."""
    return replace(pool, nodes=(*pool.nodes, *_copy_nodes(model, pool, number)))


def _node_kind(node: Node) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(node.allocatable.items()))


def _copy_nodes(model: Node, pool: Pool, number: int) -> Iterator[Node]:
    """Yield ready copies of the model, with the usage that all nodes of its kind have: pods of DaemonSets."""
    same_kind = [node for node in pool.nodes if node.usable and _node_kind(node) == _node_kind(model)]
    used: MilliResources = {
        name: min(node.used.get(name, 0) for node in same_kind) for name in (same_kind[0].used if same_kind else ())
    }
    topology = model.topology
    if topology is not None:
        zones = tuple(replace(zone, available=zone.allocatable) for zone in topology.zones)
        topology = replace(topology, zones=zones, counted=frozenset(), used={}, gone={})
    taken = {node.name for node in pool.nodes}
    names = (name for index in range(1, number + len(taken) + 1) if (name := f"new-{index}") not in taken)
    for _, name in zip(range(number), names, strict=False):
        labels = {**model.labels, _HOSTNAME: name} if _HOSTNAME in model.labels else model.labels
        yield replace(model, name=name, used=used, labels=labels, usable=True, images=frozenset(), topology=topology)


def _growth_summary(effects: list[Effect], guarantees: list[GuaranteeChange]) -> str:
    counts = Counter(effect.what for effect in effects)
    gains = [
        f"{count_text(counts[what], 'gang')} {one if counts[what] == 1 else more}"
        for what, (one, more) in _GAINS.items()
        if counts[what]
    ]
    if guarantees:
        gains.append(f"the nodes hold more of {count_text(len(guarantees), 'guarantee')}")
    return f"With these nodes, {', '.join(gains)}." if gains else "No waiting gang starts, or starts earlier."


def _growth_notes(model: Node, pool: Pool, larger: Pool, changed: DecidedSnapshot) -> Iterator[str]:
    offered = {name: model.allocatable[name] for name in (*pool.governed, "cpu", "memory") if name in model.allocatable}
    yield f"The new nodes are like {model.name}: {render_milli(offered)}, with its labels, ready now."
    if pool.unit_resource:
        before, after = (largest_free_guarantee(each, changed.snapshot.quotas) for each in (pool, larger))
        yield (f"The largest guarantee for one more tenant grows from {pool.unit_resource} {before} to {after}.")

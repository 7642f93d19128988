"""Outcome of decisions: the gangs after them, and the decisions of several rounds as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict, Promote, Reprieve, merge_admits
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members
from vkgateway.scheduler.core.snapshot import Gang, PartGang, Pod, PodState, PreemptionPlan, Snapshot

_Changes = dict[str, dict[str, Pod]]
"""By gang and uid, changed pods."""


def apply_decisions(snapshot: Snapshot, decisions: Decisions, now: float) -> Snapshot:
    """Return the snapshot after the decisions. Unchanged gangs are the same objects."""
    gangs = {gang.id: gang for gang in snapshot.gangs}
    planned = [gang.id for gang in snapshot.gangs if gang.plan is not None]
    after = changed_gangs(decisions, gangs, planned, now)
    return replace(snapshot, gangs=tuple(after.get(gang.id, gang) for gang in snapshot.gangs))


def changed_gangs(
    decisions: Decisions, gangs: Mapping[str, Gang], planned: Iterable[str], now: float
) -> dict[str, Gang]:
    """Return the gangs that the decisions change, by name; `planned`: the gangs that have a plan now."""
    changes: _Changes = {}
    for admit in decisions.admits:
        for uid, node in admit.nodes.items():
            _change_pods(
                changes,
                gangs[admit.gang],
                [uid],
                state=PodState.PLACED,
                pool=admit.pool,
                node=node,
                borrowed=admit.borrowed,
                behind=admit.behind,
                since=now,
            )
    for evict in decisions.evicts:
        _change_pods(changes, gangs[evict.gang], evict.pods, **evicted_fields(evict))
    for reprieve in decisions.reprieves:
        stays = {"state": PodState.PLACED, "deadline": 0.0, "evicted_for": ""}
        _change_pods(changes, gangs[reprieve.gang], reprieve.pods, **stays)
    for promote in decisions.promotes:
        _change_pods(changes, gangs[promote.gang], promote.pods, borrowed=False)
    names = sorted({*changes, *decisions.plans, *planned})
    after = {name: _changed_gang(gangs[name], changes, decisions.plans) for name in names}
    return {name: gang for name, gang in after.items() if gang is not gangs[name]}


def evicted_fields(evict: Evict) -> dict[str, object]:
    """Return the fields of pods that an eviction changes."""
    fields = {"state": PodState.NOTIFIED, "deadline": evict.deadline, "evicted_for": evict.makes_room_for}
    return fields | ({"limit_reached": True} if evict.reached_limit else {"borrowed": True})


def gangs_at_limits(
    evicts: Iterable[Evict], gangs: Mapping[str, Gang], parts: Mapping[str, tuple[str, ...]]
) -> dict[str, Gang]:
    """Return the gangs, or their parts, whose pods are evicted at run limits; plans of the gangs stay."""
    changed: dict[str, Gang] = {}
    for evict in evicts:
        uids, fields = frozenset(evict.pods), evicted_fields(evict)
        for name in parts.get(evict.gang, (evict.gang,)):
            gang = changed.get(name, gangs[name])
            pods = tuple(replace(pod, **fields) if pod.uid in uids else pod for pod in gang.pods)  # type: ignore[arg-type]
            if isinstance(gang, PartGang):
                changed[name] = replace(gang, pods=pods, own_part=replace(gang.own_part, run_ends=True))
            else:
                changed[name] = replace(gang, pods=pods)
    return changed


def without_starts(gangs: Iterable[Gang], uids: Set[str]) -> dict[str, Gang]:
    """Return the gangs, by name, with these starting pods pending again."""
    waits = {"state": PodState.WAITING, "pool": None, "node": "", "borrowed": False, "behind": "", "since": 0.0}
    return {
        gang.id: replace(
            gang,
            pods=tuple(replace(pod, **waits) if pod.uid in uids else pod for pod in gang.pods),  # type: ignore[arg-type]
        )
        for gang in gangs
    }


def find_broken_starts(
    found: Decisions, before: Decisions | None, admitted: Mapping[str, str], gangs: Mapping[str, Gang]
) -> set[str]:
    """Return the uids of starting pods, now or in earlier rounds, whose gang loses min members in the same cycle.
    `admitted`: gangs of the pods that started in earlier rounds, by uid.
    """
    evicted = {evict.gang for each in (found, before) if each is not None for evict in each.evicts}
    if not evicted:
        return set()
    starts = {**admitted, **{uid: admit.gang for admit in found.admits for uid in admit.nodes}}
    names = {name for name in starts.values() if not evicted.isdisjoint(gangs[name].part_ids)}
    gone = {uid for evict in found.evicts for uid in evict.pods}
    stays = {uid for reprieve in found.reprieves for uid in reprieve.pods}
    broken: set[str] = set()
    for name in sorted(names):
        if not all(_keeps_min_members(gangs[part], starts.keys() | stays, gone) for part in gangs[name].part_ids):
            broken |= {uid for uid, gang in starts.items() if gang == name}
    return broken


def _keeps_min_members(gang: Gang, there: Set[str], gone: Set[str]) -> bool:
    pods = (pod for pod in gang.pods if pod.uid not in gone)
    return has_min_members(gang, [pod for pod in pods if pod.state is PodState.PLACED or pod.uid in there])


def remove_starts(decisions: Decisions, uids: Set[str]) -> Decisions:
    """Return the decisions without the start of these pods."""
    admits = []
    for admit in decisions.admits:
        nodes = {uid: node for uid, node in admit.nodes.items() if uid not in uids}
        if nodes:
            admits.append(admit if len(nodes) == len(admit.nodes) else replace(admit, nodes=nodes))
    return replace(decisions, admits=tuple(admits))


def _change_pods(changes: _Changes, gang: Gang, uids: Iterable[str], **fields: object) -> None:
    mine = changes.setdefault(gang.id, {})
    pods = {pod.uid: pod for pod in gang.pods}
    for uid in uids:
        mine[uid] = replace(mine.get(uid, pods[uid]), **fields)  # type: ignore[arg-type]


def _changed_gang(gang: Gang, changes: Mapping[str, Mapping[str, Pod]], plans: Mapping[str, PreemptionPlan]) -> Gang:
    plan, mine = plans.get(gang.id), changes.get(gang.id)
    if mine is None:
        return gang if gang.plan == plan else replace(gang, plan=plan)
    return replace(gang, plan=plan, pods=tuple(mine.get(pod.uid, pod) for pod in gang.pods))


def merge_decisions(first: Decisions, then: Decisions, *, notified: frozenset[str]) -> Decisions:
    """Return the decisions of two rounds as one; `notified`: uids of the pods that were notified before the first."""
    again = {uid for evict in then.evicts for uid in evict.pods}
    stays = {uid for reprieve in then.reprieves for uid in reprieve.pods}
    evicts = [*_filter_evicts(first.evicts, without=again | stays), *then.evicts]
    reprieves = [
        *_filter_reprieves(first.reprieves, only=notified - again),
        *_filter_reprieves(then.reprieves, only=notified),
    ]
    admits = [*first.admits, *then.admits]
    # What was only about to start inside a guarantee is not promoted: it starts there.
    promoted = {uid for promote in then.promotes for uid in promote.pods} & {
        uid for each in admits for uid in each.nodes
    }
    admits = [part for admit in admits for part in _split_promoted(admit, promoted)]
    return Decisions(
        admits=tuple(merge_admits(admits)),
        evicts=tuple(evicts),
        reprieves=tuple(sorted(reprieves, key=lambda each: each.gang)),
        promotes=tuple(_merge_promotes([*first.promotes, *then.promotes], without=again | promoted)),
        holds=then.holds,
        plans=then.plans,
        losses=then.losses,
    )


def _filter_evicts(evicts: Iterable[Evict], *, without: set[str]) -> Iterable[Evict]:
    for evict in evicts:
        pods = tuple(uid for uid in evict.pods if uid not in without)
        if pods:
            yield (
                evict
                if pods == evict.pods
                else replace(evict, pods=pods, lost=evict.lost * len(pods) / len(evict.pods))
            )


def _filter_reprieves(reprieves: Iterable[Reprieve], *, only: Iterable[str]) -> Iterable[Reprieve]:
    for reprieve in reprieves:
        pods = tuple(uid for uid in reprieve.pods if uid in only)
        if pods:
            yield Reprieve(gang=reprieve.gang, pods=pods)


def _merge_promotes(promotes: Iterable[Promote], *, without: set[str]) -> Iterable[Promote]:
    by_gang: dict[str, tuple[str, ...]] = {}
    for promote in promotes:
        pods = tuple(uid for uid in promote.pods if uid not in without)
        by_gang[promote.gang] = by_gang.get(promote.gang, ()) + pods
    for gang, pods in sorted(by_gang.items()):
        if pods:
            yield Promote(gang=gang, pods=pods)


def _split_promoted(admit: Admit, promoted: Set[str]) -> Iterable[Admit]:
    """Yield the admission in two: of the pods that are guaranteed after all, and of the others."""
    if promoted.isdisjoint(admit.nodes):
        yield admit
        return
    rest = {uid: node for uid, node in admit.nodes.items() if uid not in promoted}
    if rest:
        yield replace(admit, nodes=rest)
    yield replace(
        admit, nodes={uid: admit.nodes[uid] for uid in admit.nodes if uid in promoted}, borrowed=False, behind=""
    )

"""Merge of decisions about parts of gangs into decisions about gangs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vkgateway.scheduler.core.decisions import Decisions, Evict, Promote, Reprieve, merge_admits
from vkgateway.scheduler.core.snapshot import PreemptionPlan


def merge_part_decisions(found: Decisions, parts: Mapping[str, tuple[str, ...]]) -> Decisions:
    """Return the decisions with gangs in place of their parts; `parts`: the parts of each gang that has any."""
    if not parts:
        return found
    wholes = {part: whole for whole, names in parts.items() for part in names}
    return replace(
        found,
        admits=tuple(merge_admits(replace(each, gang=wholes.get(each.gang, each.gang)) for each in found.admits)),
        evicts=tuple(_merge_evicts(found.evicts, wholes)),
        reprieves=tuple(
            Reprieve(gang=gang, pods=pods)
            for gang, pods in _merge_pods(((each.gang, each.pods) for each in found.reprieves), wholes).items()
        ),
        promotes=tuple(
            Promote(gang=gang, pods=pods)
            for gang, pods in _merge_pods(((each.gang, each.pods) for each in found.promotes), wholes).items()
        ),
        plans=_merge_plans(found.plans, wholes),
    )


def _merge_evicts(evicts: Iterable[Evict], wholes: Mapping[str, str]) -> Iterable[Evict]:
    """Join the evictions of a gang's parts with one deadline and one beneficiary, in the order of the first."""
    known: dict[tuple[str, float, str, str], Evict] = {}
    for evict in evicts:
        gang = wholes.get(evict.gang)
        if gang is None:
            known[evict.gang, evict.deadline, evict.makes_room_for, "\n".join(evict.pods)] = evict
            continue
        key = gang, evict.deadline, evict.makes_room_for, ""
        before = known.get(key)
        known[key] = replace(evict, gang=gang) if before is None else _join_evicts(before, evict)
    return known.values()


def _join_evicts(before: Evict, evict: Evict) -> Evict:
    return replace(
        before,
        pods=(*before.pods, *evict.pods),
        whole=before.whole or evict.whole,
        lost=before.lost + evict.lost,
        saved=max(before.saved, evict.saved),
    )


def _merge_pods(each: Iterable[tuple[str, tuple[str, ...]]], wholes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for part, pods in each:
        gang = wholes.get(part, part)
        found[gang] = found.get(gang, ()) + pods
    return found


def _merge_plans(plans: Mapping[str, PreemptionPlan], wholes: Mapping[str, str]) -> dict[str, PreemptionPlan]:
    found: dict[str, PreemptionPlan] = {}
    for part, plan in sorted(plans.items()) if wholes else plans.items():
        gang = wholes.get(part, part)
        before = found.get(gang)
        found[gang] = plan if before is None else replace(before, also=(*before.also, plan))
    return found

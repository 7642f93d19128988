"""Split of a gang whose pods name different pools into parts: pods that may run in the same pools."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.core.preemption.eviction_units import has_min_members, select_min_members
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, make_equivalence_key, read_pending_gang
from vkgateway.scheduler.core.snapshot import (
    NOTIFIED,
    PLACED,
    WAITING,
    Gang,
    GangPart,
    PartGang,
    Pod,
    PoolKey,
    node_name,
)

_GANG_FIELDS = tuple(field.name for field in fields(Gang))


@dataclass(frozen=True, slots=True)
class SplitGang:
    """The gangs that are scheduled in place of one; `report`: why no pending pod of them can start yet."""

    gangs: tuple[Gang, ...]
    report: PendingReport | None = None


def has_pod_pools(gang: Gang) -> bool:
    """Return whether the gang's pods name pools themselves."""
    for pod in gang.pods:  # noqa: SIM110 - called for each gang that has changed, and a loop is far quicker than `any`
        if pod.pools:
            return True
    return False


def split_gang(gang: Gang) -> SplitGang:
    """Return the parts of a gang whose pods name pools, or the gang itself where they can all run in one pool. Pending
    pods that cannot be scheduled are left out; the report then says why.
    """
    reach = _pools_by_pod(gang)
    stays = [reach[pod.uid] for pod in gang.pods if pod.state in (PLACED, NOTIFIED, WAITING)]
    common = tuple(key for key in stays[0] if all(key in other for other in stays)) if stays else ()
    if common or not stays:
        pods = tuple(replace(pod, pools=()) for pod in gang.pods)
        return SplitGang((replace(gang, pods=pods, pools=common or gang.pools),))
    fault = _cluster_conflict(gang)
    found = (
        read_pending_gang(gang) if not fault else PendingReport(gang=gang.id, code=PendingReason.INVALID, message=fault)
    )
    pending = found if isinstance(found, PendingGang) else None
    groups: dict[frozenset[PoolKey], list[Pod]] = {}
    for pod in gang.pods:
        if pending is not None or pod.state is not WAITING:
            groups.setdefault(frozenset(reach[pod.uid]), []).append(pod)
    pools = [reach[pods[0].uid] for pods in groups.values()]
    return SplitGang(
        _build_parts(gang, pending, pools, list(groups.values())),
        found if isinstance(found, PendingReport) else None,
    )


def _pools_by_pod(gang: Gang) -> dict[str, tuple[PoolKey, ...]]:
    """Return by uid where each pod may run: where it is placed, or where the gang's placed pods allow it."""
    there = [pod for pod in gang.pods if pod.state in (PLACED, NOTIFIED) and pod.pool is not None]
    by_role: dict[str, set[PoolKey]] = {}
    for pod in there:
        if pod.pool is not None:
            by_role.setdefault(pod.role, set()).add(pod.pool)
    clusters = {key[0] for keys in by_role.values() for key in keys} or _common_clusters(gang)
    found: dict[str, tuple[PoolKey, ...]] = {}
    for pod in gang.pods:
        own = (pod.pool,) if pod.pool is not None else pod.pools or gang.pools
        if pod.pool is None:
            own = tuple(key for key in own if key[0] in clusters) or own
            own = narrow_to_gang(own, pod.role, by_role)
        found[pod.uid] = own
    return found


def narrow_to_gang(
    pools: tuple[PoolKey, ...], role: str, there: Mapping[str, Collection[PoolKey]]
) -> tuple[PoolKey, ...]:
    """Return those of a pending pod's pools in which its gang has pods, preferably pods of its role. `there` are the
    gang's pools by role. All pools of the pod, where the gang is in none of them.
    """
    everywhere = {key for keys in there.values() for key in keys}
    for narrower in (everywhere, there.get(role, ())):
        pools = tuple(key for key in pools if key in narrower) or pools
    return pools


def _common_clusters(gang: Gang) -> set[str]:
    """Return the compute clusters in which all the gang's pods may run."""
    reach = [{key[0] for key in pod.pools or gang.pools} for pod in gang.pods]
    return set.intersection(*reach) if reach else set()


def _cluster_conflict(gang: Gang) -> str:
    """Return what is wrong with pods that select pools of different compute clusters; empty: nothing."""
    there = {pod.pool[0] for pod in gang.pods if pod.state in (PLACED, NOTIFIED) and pod.pool is not None}
    waiting = [{key[0] for key in pod.pools or gang.pools} for pod in gang.pods if pod.state is WAITING]
    reach = [*({cluster} for cluster in sorted(there)), *waiting]
    if set.intersection(*reach):
        return ""
    pools = sorted({key for pod in gang.pods for key in ((pod.pool,) if pod.pool else pod.pools or gang.pools)})
    by_cluster: dict[str, list[PoolKey]] = {}
    for key in pools:
        by_cluster.setdefault(key[0], []).append(key)
    named = " and ".join(
        f"{', '.join(map(node_name, keys))} in compute cluster {cluster}" for cluster, keys in by_cluster.items()
    )
    return (
        f"its pods select pools of different compute clusters: {named}; a gang runs in one compute cluster:"
        " have all its pods select pools of the same one"
    )


def _build_parts(
    gang: Gang, pending: PendingGang | None, pools: Sequence[tuple[PoolKey, ...]], groups: Sequence[Sequence[Pod]]
) -> tuple[Gang, ...]:
    running = [pod for pod in gang.pods if pod.state is PLACED]
    needed = _needed_uids(gang, pending, running)
    names = tuple(f"{gang.id} in {'/'.join(map(node_name, sorted(keys)))}" for keys in pools)
    alike = _equivalence_key(gang, pending, pools, groups)
    plans = (gang.plan, *gang.plan.also) if gang.plan is not None else ()
    given = {name: getattr(gang, name) for name in _GANG_FIELDS}
    parts = []
    for number, pods in enumerate(groups):
        core = [pod for pod in pods if pod.uid in needed]
        mine = {pod.uid for pod in pods}
        fields_of_part = given | {
            "id": names[number],
            "pods": tuple(pods),
            "pools": pools[number],
            "minimum": len(core),
            "role_minimum": _count_by_role(core, gang.role_minimum),
            "maximum": _part_maximum(gang, pending, pods, core),
            "plan": next((replace(plan, also=()) for plan in plans if mine >= plan.nodes.keys()), None),
            "lost": gang.lost if number == 0 else (),
        }
        its_part = GangPart(
            whole_id=gang.id,
            number=number,
            part_ids=names,
            pools=tuple(pools),
            pods_elsewhere=tuple(pod for pod in running if pod.uid not in mine),
            equivalence_key=alike,
        )
        parts.append(PartGang(**fields_of_part, own_part=its_part))
    return tuple(parts)


def _needed_uids(gang: Gang, pending: PendingGang | None, running: Sequence[Pod]) -> set[str]:
    """Return the uids of the pods without which the gang does not run; notified pods may be reprieved."""
    may_run = running
    if not has_min_members(gang, running):
        may_run = [*running, *(pod for pod in gang.pods if pod.state is NOTIFIED)]
    # By rank alone: which part a gang can do without must not change when pods of it come to be inside a guarantee.
    core = select_min_members(gang, may_run, inside_first=False)
    return {pod.uid for pod in (*core, *(pending.min_members if pending is not None else ()))}


def _count_by_role(core: Iterable[Pod], roles: Mapping[str, int]) -> dict[str, int]:
    return dict(Counter(pod.role for pod in core if pod.role in roles))


def _part_maximum(gang: Gang, pending: PendingGang | None, pods: Sequence[Pod], core: Sequence[Pod]) -> int | None:
    """Return how many of a part's pods may run, so that the whole gang keeps to its maximum."""
    if gang.maximum is None:
        return None
    there = sum(pod.state is not WAITING for pod in pods)
    waiting = sum(pod.state is WAITING for pod in core)
    rest = {pod.uid for pod in pending.surplus} if pending is not None else set()
    return there + waiting + sum(pod.uid in rest for pod in pods)


def _equivalence_key(
    gang: Gang, pending: PendingGang | None, pools: Sequence[tuple[PoolKey, ...]], groups: Sequence[Sequence[Pod]]
) -> Hashable:
    """Return a key that is equal for equivalent gangs; None where pods of the gang are placed, or were."""
    if pending is None or pending.placed_pods or gang.short:
        return None
    chosen = {pod.uid for pod in pending.min_members}
    return tuple(
        make_equivalence_key(gang, [pod for pod in pods if pod.uid in chosen], keys)
        for keys, pods in zip(pools, groups, strict=True)
    )

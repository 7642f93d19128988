"""Changes between two snapshots of the arbiter, which the decision log stores instead of full snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypedDict

import msgspec

from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import Gang, Node, Policy, Pool, PoolKey, Quota, Snapshot
from vkgateway.scheduler.core.snapshot_diff import diff_gangs


class SnapshotChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changed parts of a snapshot; unchanged parts are left out."""

    gangs: tuple[Gang, ...] = ()
    """New and changed gangs."""
    gone: tuple[str, ...] = ()
    """IDs of removed gangs."""
    nodes: tuple[tuple[PoolKey, tuple[Node, ...]], ...] = ()
    """Changed nodes by pool, if the pools have the same nodes as before."""
    pools: tuple[Pool, ...] | None = None
    """All pools, if a pool's set of nodes changed."""
    quotas: tuple[Quota, ...] | None = None
    policy: Policy | None = None
    past_shares: tuple[PastShare, ...] = ()
    """New and changed past shares."""
    gone_past_shares: tuple[tuple[str, PoolKey], ...] = ()
    """Tenants and pools of removed past shares."""


class _PastShareChanges(TypedDict, total=False):
    past_shares: tuple[PastShare, ...]
    gone_past_shares: tuple[tuple[str, PoolKey], ...]


def diff_snapshots(before: Snapshot, after: Snapshot) -> SnapshotChanges:
    """Return the changes from one snapshot to a later one. Unchanged parts are recognized by object identity."""
    changed, removed = diff_gangs(before.gangs, after.gangs)
    changed_ids = {gang.id for gang in changed}
    same_pools = len(before.pools) == len(after.pools) and all(map(_has_same_nodes, before.pools, after.pools))
    nodes = (
        (new.key, tuple(_changed_nodes(old, new))) for old, new in zip(before.pools, after.pools, strict=same_pools)
    )
    return SnapshotChanges(
        gangs=tuple(changed),
        gone=tuple(gang.id for gang in removed if gang.id not in changed_ids),
        nodes=tuple(pool for pool in nodes if pool[1]) if same_pools else (),
        pools=None if same_pools else after.pools,
        quotas=after.quotas if after.quotas is not before.quotas and after.quotas != before.quotas else None,
        policy=after.policy if after.policy != before.policy else None,
        **_diff_past_shares(before, after),
    )


def _diff_past_shares(before: Snapshot, after: Snapshot) -> _PastShareChanges:
    if before.past_shares is after.past_shares:
        return {}
    olds, news = _past_shares_by_key(before.past_shares), _past_shares_by_key(after.past_shares)
    return {
        "past_shares": tuple(each for key, each in news.items() if olds.get(key) != each),
        "gone_past_shares": tuple(key for key in olds if key not in news),
    }


def _past_shares_by_key(shares: Iterable[PastShare]) -> dict[tuple[str, PoolKey], PastShare]:
    return {(each.tenant, each.pool): each for each in shares}


def apply_changes(before: Snapshot, changes: SnapshotChanges) -> Snapshot:
    """Return the later snapshot, with gangs in the order of their IDs."""
    gangs = {gang.id: gang for gang in before.gangs} | {gang.id: gang for gang in changes.gangs}
    for name in changes.gone:
        gangs.pop(name, None)
    nodes = {key: {node.name: node for node in new} for key, new in changes.nodes}
    pools = changes.pools if changes.pools is not None else before.pools
    return Snapshot(
        pools=tuple(_replace_nodes(pool, nodes[pool.key]) if pool.key in nodes else pool for pool in pools),
        quotas=changes.quotas if changes.quotas is not None else before.quotas,
        gangs=tuple(gangs[name] for name in sorted(gangs)),
        policy=changes.policy if changes.policy is not None else before.policy,
        past_shares=_apply_past_shares(before.past_shares, changes),
    )


def _apply_past_shares(before: tuple[PastShare, ...], changes: SnapshotChanges) -> tuple[PastShare, ...]:
    """Return the later past shares, by tenant and pool."""
    shares = _past_shares_by_key(before) | _past_shares_by_key(changes.past_shares)
    return tuple(shares[key] for key in sorted(shares) if key not in changes.gone_past_shares)


def _has_same_nodes(old: Pool, new: Pool) -> bool:
    """Return whether two pools differ at most in their nodes' states: same node names, without duplicates."""
    if old is new:
        return True
    names = [node.name for node in new.nodes]
    same = len(set(names)) == len(names) == len(old.nodes) and all(
        node.name == name for node, name in zip(old.nodes, names, strict=True)
    )
    return same and replace(old, nodes=()) == replace(new, nodes=())


def _changed_nodes(old: Pool, new: Pool) -> Iterator[Node]:
    if old is not new:
        for before, after in zip(old.nodes, new.nodes, strict=True):
            if before is not after and before != after:
                yield after


def _replace_nodes(pool: Pool, nodes: dict[str, Node]) -> Pool:
    return replace(pool, nodes=tuple(nodes.get(node.name, node) for node in pool.nodes))

"""How what the arbiter is told differs from what it was told before: written down in place of all of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from vkgateway.arbiter.snapshot import Gang, Node, Policy, Pool, PoolKey, Quota, Snapshot
from vkgateway.arbiter.snapshot_diff import diff_gangs


class SnapshotChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is other than before; all else is as it was."""

    gangs: tuple[Gang, ...] = ()
    """New ones, and those that have changed."""
    gone: tuple[str, ...] = ()
    """Names of gangs that are not there any more."""
    nodes: tuple[tuple[PoolKey, tuple[Node, ...]], ...] = ()
    """By pool the nodes that have changed, where pools have the same nodes as before."""
    pools: tuple[Pool, ...] | None = None
    """All pools, where they have not."""
    quotas: tuple[Quota, ...] | None = None
    policy: Policy | None = None


def diff_snapshots(before: Snapshot, after: Snapshot) -> SnapshotChanges:
    """What is other in a later snapshot. What has not changed is known by being the same object."""
    came, left = diff_gangs(before.gangs, after.gangs)
    there = {gang.id for gang in came}
    same_pools = len(before.pools) == len(after.pools) and all(map(_has_same_nodes, before.pools, after.pools))
    nodes = (
        (new.key, tuple(_changed_nodes(old, new))) for old, new in zip(before.pools, after.pools, strict=same_pools)
    )
    return SnapshotChanges(
        gangs=tuple(came),
        gone=tuple(gang.id for gang in left if gang.id not in there),
        nodes=tuple(each for each in nodes if each[1]) if same_pools else (),
        pools=None if same_pools else after.pools,
        quotas=after.quotas if after.quotas is not before.quotas and after.quotas != before.quotas else None,
        policy=after.policy if after.policy != before.policy else None,
    )


def apply_changes(before: Snapshot, changed: SnapshotChanges) -> Snapshot:
    """The later snapshot, its gangs in the order of their names."""
    gangs = {gang.id: gang for gang in before.gangs} | {gang.id: gang for gang in changed.gangs}
    for name in changed.gone:
        gangs.pop(name, None)
    nodes = {key: {node.name: node for node in new} for key, new in changed.nodes}
    pools = changed.pools if changed.pools is not None else before.pools
    return Snapshot(
        pools=tuple(_replace_nodes(pool, nodes[pool.key]) if pool.key in nodes else pool for pool in pools),
        quotas=changed.quotas if changed.quotas is not None else before.quotas,
        gangs=tuple(gangs[name] for name in sorted(gangs)),
        policy=changed.policy if changed.policy is not None else before.policy,
    )


def _has_same_nodes(old: Pool, new: Pool) -> bool:
    """Whether it is the same pool with nodes of the same names, each of them once."""
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

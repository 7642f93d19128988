"""Updates of a pool state between cycles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.run_limits import run_start
from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.snapshot import ENDING, Gang, Pod, Pool, Quota, Shape


class PoolUpdates:
    """Follows the changes of one pool's nodes, quotas and gangs."""

    def __init__(self, pool_state: PoolState) -> None:
        self._pool_state = pool_state
        self._published_pods = _published_uids(pool_state.pool)
        """By node, the pods that its published NUMA zones contain."""
        self._usage_changes: dict[tuple[str, int], tuple[Shape, int]] = {}
        """Number of added pods (negative: removed) by tenant and identity of the shape, during `apply_changes`."""

    def apply_changes(self, changes: Iterable[tuple[Gang | None, Gang | None]]) -> None:
        """Replace changed gangs, each given as before (None: it is new) and after (None: it was deleted)."""
        state = self._pool_state
        removed: list[tuple[str, Shape]] = []
        added: list[tuple[str, Shape]] = []
        self._usage_changes.clear()
        for old, new in changes:
            before = state.gang_index.placed_pods(old) if old is not None else ()
            after = state.gang_index.placed_pods(new) if new is not None else ()
            leaving, coming = before, after
            if before and after and old is not None and new is not None and _has_same_accounting(old, new):
                leaving, coming = _without_known(before, after), _without_known(after, before)
            if old is not None:
                for pod in leaving:
                    self._remove_pod(old, pod, removed)
            if new is not None:
                for pod in coming:
                    self._add_pod(new, pod, added)
            self._replace_gang(old, new, after)
        for (tenant, _), (shape, times) in self._usage_changes.items():
            state.tenant_usage.add_usage(tenant, shape, times)
        state.node_resources.remove_many(removed)
        state.node_resources.add_many(added)

    def update_nodes(self, pool: Pool) -> bool:
        """Take over changed nodes. False: more has changed, and a new pool state must be built."""
        state, old = self._pool_state, self._pool_state.pool
        if _rules_of(old) != _rules_of(pool):
            return False
        resources = NodeResources(pool, state.journal)
        if resources.nodes.names != state.node_resources.nodes.names:
            return False
        state.replace_pool(pool, resources)
        gangs, placed_pods = state.gangs.values(), state.gang_index.placed_pods
        placed = ((pod.node, pod.shape) for gang in gangs for pod in placed_pods(gang))
        resources.add_many(each for each in placed if each[0] in resources.nodes)
        self._published_pods = _published_uids(pool)
        for pod in (pod for gang in gangs if self._published_pods for pod in placed_pods(gang)):
            self._count_published(pod, 1)
        return True

    def set_quotas(self, quotas: Iterable[Quota]) -> None:
        """Take over the tenants' quotas."""
        if self._pool_state.tenant_usage.set_quotas(quotas):
            self._pool_state.guarantee_usage.reset()

    def _add_pod(self, gang: Gang, pod: Pod, added: list[tuple[str, Shape]]) -> None:
        state = self._pool_state
        self._note_usage(gang.tenant, pod, 1)
        state.expected_ends.update_pod(gang, pod)
        if pod.node in state.node_resources.nodes:
            added.append((pod.node, pod.shape))
            self._count_published(pod, 1)
        if not pod.borrowed:
            state.guarantee_usage.add_pod(gang.tenant, pod)
        if pod.state is ENDING:
            state.terminating_pods.add_pods(gang.tenant, [pod])

    def _remove_pod(self, gang: Gang, pod: Pod, removed: list[tuple[str, Shape]]) -> None:
        state = self._pool_state
        self._note_usage(gang.tenant, pod, -1)
        state.expected_ends.remove_pod(pod.uid)
        if pod.node in state.node_resources.nodes:
            removed.append((pod.node, pod.shape))
            self._count_published(pod, -1)
        if not pod.borrowed:
            state.guarantee_usage.remove_pod(gang.tenant, pod)
        state.terminating_pods.remove_pod(pod.uid)

    def _note_usage(self, tenant: str, pod: Pod, times: int) -> None:
        # The pod keeps its shape alive, so the identity is unique.
        key, shape = (tenant, id(pod.shape)), pod.shape
        known = self._usage_changes.get(key)
        self._usage_changes[key] = shape, times if known is None else known[1] + times

    def _count_published(self, pod: Pod, count: int) -> None:
        if self._published_pods and pod.uid in self._published_pods.get(pod.node, ()):
            self._pool_state.node_resources.count_published(pod.node, pod.shape, count)

    def _replace_gang(self, old: Gang | None, new: Gang | None, placed: Sequence[Pod]) -> None:
        state = self._pool_state
        state.gang_index.replace_gang(old, new, placed)
        if new is not None:
            state.victims.mark_changed(new.id)
        elif old is not None:
            state.victims.candidates.mark_removed(old.id)


def _rules_of(pool: Pool) -> tuple[object, ...]:
    """Return what the state of a pool depends on apart from its nodes."""
    return pool.governed, pool.levels, pool.low_yields, pool.enforces_limits, pool.default_limits


def _published_uids(pool: Pool) -> dict[str, frozenset[str]]:
    """Return by node the pods that its published zones contain, without those deleted since."""
    topologies = {node.name: node.topology for node in pool.nodes if node.topology is not None}
    return {name: topology.counted - topology.gone.keys() for name, topology in topologies.items()}


def _without_known(pods: tuple[Pod, ...], known: Sequence[Pod]) -> tuple[Pod, ...]:
    """Return the pods that are not the same objects as known ones."""
    if not known:
        return pods
    same = {id(pod) for pod in known}
    return tuple(pod for pod in pods if id(pod) not in same)


def _has_same_accounting(old: Gang, new: Gang) -> bool:
    """Return whether usage and expected end of each pod depend on the pod alone."""
    return (
        old.tenant == new.tenant
        and old.grace == new.grace
        and old.run_limit == new.run_limit
        and old.expected_run == new.expected_run
        and old.band is new.band
        and run_start(old) == run_start(new)
    )

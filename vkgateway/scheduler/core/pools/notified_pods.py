"""Pods that were notified of their eviction before the cycle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vkgateway.scheduler.core.pools.pool_state import PoolState
from vkgateway.scheduler.core.snapshot import NOTIFIED, Gang, Pod, PoolKey


class NotifiedPods:
    """Notified pods with their gangs, by pool and by the gang that they make room for."""

    def __init__(self, pool_states: Mapping[PoolKey, PoolState]) -> None:
        self._by_pool = {key: list(_notified_in(pool_state)) for key, pool_state in pool_states.items()}
        self._by_beneficiary: dict[tuple[str, PoolKey], list[tuple[Gang, Pod]]] = {}
        for key, notified in self._by_pool.items():
            for gang, pod in notified:
                self._by_beneficiary.setdefault((pod.evicted_for, key), []).append((gang, pod))

    def __iter__(self) -> Iterator[tuple[Gang, Pod]]:
        for notified in self._by_pool.values():
            yield from notified

    def in_pool(self, pool_state: PoolState) -> Sequence[tuple[Gang, Pod]]:
        """Return the notified pods of a pool."""
        return self._by_pool.get(pool_state.pool.key, ())

    def for_gang(self, whole_id: str, pool_state: PoolState) -> list[tuple[Gang, Pod]]:
        """Return the pods of a pool that are evicted for a gang (`Gang.whole_id`)."""
        return self._by_beneficiary.get((whole_id, pool_state.pool.key), [])


def _notified_in(pool_state: PoolState) -> Iterator[tuple[Gang, Pod]]:
    for _, gang in sorted(pool_state.gang_index.notified.items()):
        for pod in gang.pods:
            if pod.state is NOTIFIED and pod.pool == pool_state.pool.key:
                yield gang, pod

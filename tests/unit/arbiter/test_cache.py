"""The cache and the order of gangs change no decision."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.unit.arbiter.checked_cluster import CheckedCluster
from tests.unit.arbiter.simulated_cluster import make_gang
from tests.unit.arbiter.stories import StoryMix, random_story
from tests.unit.arbiter.story_invariants import StoryCheck
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Snapshot


class CachedAndUncached(CheckedCluster):
    """Cluster that decides three times: with the cache, without it, and in another order of gangs."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._shuffled, self._random = Cache(), Random(1)

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        assert decisions == decide(before, self.now)
        gangs = list(before.gangs)
        self._random.shuffle(gangs)
        assert decisions == decide(replace(before, gangs=tuple(gangs)), self.now, self._shuffled)
        # Unmanaged pods arrive on a node or leave it.
        nodes = list(self.pool.nodes)
        at = self._random.randrange(4 * len(nodes))
        if at < len(nodes):
            used = {} if nodes[at].used else {"nvidia.com/gpu": 1000}
            nodes[at] = replace(nodes[at], used=used)
            self.pool = replace(self.pool, nodes=tuple(nodes))

    def _check_decisions(self, decisions: Decisions) -> None:
        """Unmanaged pods may take guaranteed capacity."""

    def _check_state(self) -> None:
        """Unmanaged pods may take capacity that gangs hold."""


def cached_and_uncached(random: Random) -> StoryCheck:
    mix = StoryMix(downs=random.random() < 0.3, forgets=random.random() < 0.3, tail=3)
    return random_story(random, mix), lambda each: CachedAndUncached.from_story(each).play_story(each)


@pytest.mark.parametrize("seed", range(20))
def test_cache_and_gang_order_do_not_change_decisions(seed: int) -> None:
    """The property tests check more stories."""
    story, check = cached_and_uncached(Random(seed))
    check(story)


def test_cache_updates_only_changed_gangs() -> None:
    random, carry = Random(1), Cache()
    cluster = {f"g{number}": make_gang(f"g{number}", "a", [1], created=1.0) for number in range(100)}
    for _ in range(60):
        for name in random.sample(sorted(cluster), 5):
            cluster[name] = replace(cluster[name], priority=random.randrange(9))
        for name in random.sample(sorted(cluster), 2):
            del cluster[name]
        new = f"h{random.randrange(1000)}"
        cluster[new] = make_gang(new, "a", [2], created=2.0)
        gangs = [cluster[name] for name in sorted(cluster)]
        if random.random() < 0.5:
            random.shuffle(gangs)
        carry.apply_snapshot(Snapshot(pools=(), quotas=(), gangs=tuple(gangs)), now=10.0)

        assert carry.gangs == cluster
        assert set(carry.pending_gangs) == set(cluster)
        assert carry.pending_table.names == sorted(cluster)
        assert [pending_gang.gang for pending_gang in carry.pending_table.pending_gangs] == [
            cluster[name] for name in sorted(cluster)
        ]

"""Cache of preemption candidates: refreshed on query, without entries of deleted gangs."""

from __future__ import annotations

from tests.unit.arbiter.borrowed_pool import GPU, KEY, running_gang
from vkgateway.scheduler.core.pools.victims import ReclaimCandidates
from vkgateway.scheduler.core.snapshot import Gang, Pool

POOL = Pool(key=KEY, nodes=(), governed=(GPU,))


def test_deleted_gang_is_no_candidate() -> None:
    calling = ReclaimCandidates(POOL)
    gangs = {"g": running_gang("g", ["a"]), "h": running_gang("h", ["a"])}
    for name in gangs:
        calling.mark_changed(name)
    assert sorted(calling.preemption_candidates(gangs, set()).gang_ids()) == ["g", "h"]

    del gangs["g"]
    calling.mark_removed("g")

    assert list(calling.preemption_candidates(gangs, set()).gang_ids()) == ["h"]


def test_gangs_deleted_before_query_leave_no_entry() -> None:
    calling, none = ReclaimCandidates(POOL), dict[str, Gang]()
    for number in range(1000):
        calling.mark_changed(f"g{number}")
        calling.mark_removed(f"g{number}")
    assert not calling.stale_count
    assert list(calling.preemption_candidates(none, set()).gang_ids()) == []

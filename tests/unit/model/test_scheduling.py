"""Scheduling modes of pools: names of queues, errors, the mode in effect."""

from __future__ import annotations

import pytest

from vkgateway.api.scheduling import effective_pools, next_mode, queue_name, scheduling_problems
from vkgateway.api.types import Pool, PoolScheduling, PoolStatus

KUEUE = PoolScheduling(mode="kueue")


def test_queue_names_tenant_and_pool() -> None:
    assert queue_name(KUEUE, tenant="team", pool="a100") == "team.a100"
    assert queue_name(PoolScheduling(queue="all"), tenant="team", pool="a100") == "all"


@pytest.mark.parametrize(
    ("scheduling", "problem"),
    [
        (PoolScheduling(queue="{tenant}.{pool}"), ""),
        (PoolScheduling(queue="gpus", manage_queues=False), ""),
        (PoolScheduling(queue="{tenant}"), "does not name {pool}"),
        (PoolScheduling(queue="gpus"), "does not name {tenant} and {pool}"),
        (PoolScheduling(queue="{tenant}_{pool}"), "lower-case"),
        (PoolScheduling(queue="{tenant}.{pool}.{gang}"), "lower-case"),
        (PoolScheduling(queue="default", manage_queues=False), "choose another name"),
    ],
)
def test_errors_name_the_way_out(scheduling: PoolScheduling, problem: str) -> None:
    found = "; ".join(scheduling_problems(Pool(name="a100", scheduling=scheduling)))
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("current", "has_pods", "mode"),
    [
        ("", False, "kueue"),
        ("", True, "native"),
        ("native", True, "native"),
        ("native", False, "kueue"),
        ("kueue", True, "kueue"),
    ],
)
def test_mode_changes_in_an_empty_pool_only(current: str, has_pods: bool, mode: str) -> None:
    assert next_mode(Pool(name="a100", scheduling=KUEUE), current=current, has_pods=has_pods) == mode


def test_mode_in_effect_replaces_the_requested_mode() -> None:
    pools = (Pool(name="a", scheduling=KUEUE), Pool(name="b"), Pool(name="c", scheduling=KUEUE))
    statuses = [PoolStatus(name="a", scheduling_mode="native"), PoolStatus(name="c")]
    found = effective_pools(pools, statuses)
    assert [pool.scheduling.mode for pool in found] == ["native", "native", "kueue"]
    assert found[1] is pools[1]

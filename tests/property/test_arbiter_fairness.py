"""Fair share of borrowed capacity by weight, for any requests, while every tenant has more work than capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core.snapshot import Quota

BACKLOG = 12
"""Gangs of each tenant that always wait."""
BEGINS, SECONDS = 60, 240
"""Seconds before the measurement, since all gangs start together first, and its duration."""


@pytest.mark.parametrize(
    ("quotas", "work", "fair"),
    [
        pytest.param(
            [make_quota("a"), make_quota("b", weight=2.0), make_quota("c")],
            {"a": ([1], 10), "b": ([1], 10), "c": ([1], 10)},
            {"a": 6, "b": 12, "c": 6},
            id="by weight",
        ),
        pytest.param(
            [make_quota("a"), make_quota("b"), make_quota("c")],
            {"a": ([1], 10), "b": ([4], 30), "c": ([1], 5)},
            {"a": 8, "b": 8, "c": 8},
            id="of any size and length",
        ),
        pytest.param(
            [make_quota("a", 8), make_quota("b", 4), make_quota("c")],
            {"a": ([4], 10), "b": ([2], 15), "c": ([1], 10)},
            {"a": 12, "b": 8, "c": 4},
            id="beyond guarantees",
        ),
    ],
)
def test_borrowed_capacity_follows_weights(
    quotas: Sequence[Quota], work: Mapping[str, tuple[list[int], float]], fair: Mapping[str, float]
) -> None:
    cluster = Cluster([make_node(f"n{at}") for at in range(3)], quotas)
    used, number = dict.fromkeys(work, 0), 0
    for second in range(BEGINS + SECONDS):
        for tenant, (sizes, run) in work.items():
            waiting = sum(one.tenant == tenant and not cluster.placed_nodes(one.id) for one in cluster.gangs.values())
            for _ in range(BACKLOG - waiting):
                number += 1
                cluster.add(make_gang(f"{tenant}{number:05}", tenant, sizes))
                # The gangs do not all end at the same moment.
                cluster.run_times[f"{tenant}{number:05}"] = run + number % 5
        cluster.cycle()
        if second >= BEGINS:
            for one in cluster.gangs.values():
                used[one.tenant] += sum(pod.shape.amount_of(GPU) for pod in one.pods if pod.node)
        cluster.advance(1)

    seen = {tenant: amount / 1000 / SECONDS for tenant, amount in used.items()}
    assert seen == pytest.approx(fair, abs=0.3)

"""Expected run times."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, KEY, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.scheduler.core.capacity.expected_ends import ExpectedEnds
from vkgateway.scheduler.core.capacity.node_table import NodeTable
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.snapshot import Policy, Pool

POOL = Pool(key=KEY, nodes=(make_node("n0"),), governed=(GPU,))


def test_observed_run_time_has_margin_and_declared_limit_has_none() -> None:
    ends = ExpectedEnds(NodeTable(POOL), POOL, Policy(run_margin=1.5))

    assert ends.expected_run_time(make_gang("seen", "a", [1], expected_run=100.0)) == 150.0
    assert ends.expected_run_time(make_gang("said", "a", [1], run_limit=100.0)) == 100.0
    assert ends.expected_run_time(make_gang("both", "a", [1], run_limit=90.0, expected_run=100.0)) == 90.0
    assert ends.expected_run_time(make_gang("new", "a", [1])) is None


@pytest.mark.parametrize(("margin", "starts"), [(1.0, True), (1.25, False)])
def test_backfill_needs_margin_for_observed_run_time(margin: float, starts: bool) -> None:
    cluster = Cluster(
        [make_node("n0"), make_node("n1")], [make_quota("a"), make_quota("b")], policy=Policy(run_margin=margin)
    )
    cluster.add(make_gang("runs", "b", [8], run_limit=110.0))
    cluster.cycle()
    cluster.add(make_gang("big", "a", [8, 8], created=999.0), make_gang("short", "b", [8], expected_run=100.0))

    reports = reports_by_gang(cluster.cycle())

    assert ("short" in cluster.running_gangs()) is starts
    assert starts or reports["short"].code is PendingReason.RESERVATION

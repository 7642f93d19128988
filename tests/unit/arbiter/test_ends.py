"""How long work is taken to run."""

from __future__ import annotations

import pytest

from tests.unit.arbiter.sim import GPU, KEY, Cluster, gang, held, node, quota
from vkgateway.arbiter.capacity.expected_ends import ExpectedEnds
from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.decisions import PendingReason
from vkgateway.arbiter.snapshot import Policy, Pool


def test_what_was_observed_is_stretched_and_what_was_declared_is_not() -> None:
    ends = ExpectedEnds(NodeResources(Pool(key=KEY, nodes=(node("n0"),), governed=(GPU,))), Policy(run_margin=1.5))

    assert ends.expected_run_time(gang("seen", "a", [1], expected_run=100.0)) == 150.0
    assert ends.expected_run_time(gang("said", "a", [1], run_limit=100.0)) == 100.0
    assert ends.expected_run_time(gang("both", "a", [1], run_limit=90.0, expected_run=100.0)) == 90.0
    assert ends.expected_run_time(gang("new", "a", [1])) is None


@pytest.mark.parametrize(("margin", "starts"), [(1.0, True), (1.25, False)])
def test_who_would_end_just_in_time_as_a_rule_does_not_run_before_a_reservation(margin: float, starts: bool) -> None:
    there = Cluster([node("n0"), node("n1")], [quota("a"), quota("b")], policy=Policy(run_margin=margin))
    there.add(gang("runs", "b", [8], run_limit=110.0))
    there.cycle()
    there.add(gang("big", "a", [8, 8], created=999.0), gang("short", "b", [8], expected_run=100.0))

    holds = held(there.cycle())

    assert ("short" in there.running()) is starts
    assert starts or holds["short"].code is PendingReason.RESERVATION

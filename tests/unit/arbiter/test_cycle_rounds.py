"""Rounds of one cycle: they end when nothing changes, with a stable decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.placed_gangs import place_gang
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, make_gang, make_node, make_quota, reports_by_gang
from vkgateway.scheduler.core.cycle_state import CycleState, collect_decisions
from vkgateway.scheduler.core.decisions import Decisions, PendingReason
from vkgateway.scheduler.core.snapshot import PodState


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Decisions]:
    """Record the decisions of each round."""
    found: list[Decisions] = []

    def noted(state: CycleState) -> Decisions:
        found.append(collect_decisions(state))
        return found[-1]

    monkeypatch.setattr("vkgateway.scheduler.core.cycle.collect_decisions", noted)
    return found


def test_unchanged_round_ends_cycle(rounds: list[Decisions]) -> None:
    cluster = Cluster([make_node(f"n{at}") for at in range(5)], [make_quota("a", 24), make_quota("b")], now=100_000.0)
    ends = {"state": PodState.ENDING, "deadline": 100_050.0}
    cluster.add(
        place_gang(make_gang("late", "a", [1], created=95_000.0), ["n0"], borrowed=False),
        place_gang(make_gang("low0", "b", [7], created=90_000.0, band=LOW), ["n0"], borrowed=True),
        place_gang(make_gang("low4", "b", [1], created=90_000.0, band=LOW), ["n4"], borrowed=True),
        place_gang(make_gang("ends", "b", [8], created=90_000.0, band=LOW), ["n3"], borrowed=True, **ends),
        make_gang("aged", "a", [8, 8, 8], created=92_000.0),
    )
    cluster.run_for(5, step=5)
    assert cluster.gangs["aged"].plan is not None
    rounds.clear()
    cluster.cycle()
    assert len(rounds) == 1


def test_withdrawn_start_is_not_retried_in_same_cycle(rounds: list[Decisions]) -> None:
    """The aged gang borrows both idle nodes, and its tenant's younger gang reclaims one of them for its cell."""
    cluster = Cluster([make_node(f"n{at}") for at in range(3)], [make_quota("c", 16), make_quota("d")], now=100_000.0)
    cluster.add(
        place_gang(make_gang("later", "c", [8], created=98_000.0), ["n0"], borrowed=False),
        make_gang("aged", "c", [8, 8], created=92_000.0),
        make_gang("small", "c", [8], created=99_000.0),
        make_gang("low", "d", [8], band=LOW),
    )
    decisions = cluster.cycle()
    assert cluster.running_gangs() == {"later", "small", "low"}, "no node idles beside gangs that fit"
    assert cluster.borrowed_marks("small") == {False}
    assert reports_by_gang(decisions)["aged"].code is PendingReason.ROOM
    assert len(rounds) <= 4


def test_more_starts_than_rounds_are_withdrawn(rounds: list[Decisions]) -> None:
    """Each pair of nodes holds a cell; an aged gang could borrow both nodes, and a younger gang uses the cell."""
    many = 12
    tenants = [f"t{at}" for at in range(many)]
    cluster = Cluster(
        [make_node(f"n{at}", rack=f"r{at // 3}") for at in range(3 * many)],
        [make_quota(each, 16) for each in tenants],
        now=1e5,
    )
    cluster.pool = replace(cluster.pool, levels=())
    for at, tenant in enumerate(tenants):
        cluster.add(
            place_gang(make_gang(f"later{at}", tenant, [8], created=98_000.0), [f"n{3 * at}"], borrowed=False),
            make_gang(f"aged{at}", tenant, [8, 8], created=92_000.0 + at),
            make_gang(f"small{at}", tenant, [8], created=99_000.0),
        )
    cluster.cycle()
    assert {f"small{at}" for at in range(many)} <= cluster.running_gangs()

"""The rounds of one cycle: they end as soon as nothing changes, and in a decision that stands."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.sim import KEY, LOW, Cluster, gang, node, quota
from vkgateway.arbiter import cycle
from vkgateway.arbiter.decisions import Decisions
from vkgateway.arbiter.facts import Gang, PodState
from vkgateway.arbiter.ledger import Ledger


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Decisions]:
    """What each round decided, as they come."""
    found: list[Decisions] = []
    decided = cycle._decided

    def noted(ledger: Ledger) -> Decisions:
        found.append(decided(ledger))
        return found[-1]

    monkeypatch.setattr(cycle, "_decided", noted)
    return found


def runs(one: Gang, on: list[str], *, borrowed: bool, **fields: object) -> Gang:
    """The gang with its pods placed on these nodes since its creation."""
    there = {"state": PodState.PLACED, "pool": KEY, "borrowed": borrowed, "since": one.created, **fields}
    pods = [replace(pod, node=name, **there) for pod, name in zip(one.pods, on, strict=True)]  # type: ignore[arg-type]
    return replace(one, pods=tuple(pods))


def test_a_round_that_changes_nothing_ends_the_cycle(rounds: list[Decisions]) -> None:
    there = Cluster([node(f"n{at}") for at in range(5)], [quota("a", 24), quota("b")], now=100_000.0)
    ends = {"state": PodState.ENDING, "deadline": 100_050.0}
    there.add(
        runs(gang("late", "a", [1], created=95_000.0), ["n0"], borrowed=False),
        runs(gang("low0", "b", [7], created=90_000.0, band=LOW), ["n0"], borrowed=True),
        runs(gang("low4", "b", [1], created=90_000.0, band=LOW), ["n4"], borrowed=True),
        runs(gang("ends", "b", [8], created=90_000.0, band=LOW), ["n3"], borrowed=True, **ends),
        gang("aged", "a", [8, 8, 8], created=92_000.0),
    )
    there.settle(5, step=5)
    assert there.gangs["aged"].plan is not None
    rounds.clear()
    there.cycle()
    assert len(rounds) == 1

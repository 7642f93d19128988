"""Outcome of a case that was measured in several turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from bench import burst, session
from bench.flows import BurstFigures, unique_node_name
from bench.platform import Platform
from bench.session import Case, Session, System
from bench.settings import Settings
from tests.fakes.report import Silent

CASE = Case(100, token=False)
SPANS: dict[System, Sequence[float]] = {
    "floor": (1.0, 2.0, 4.0),
    "courier": (2.0, 2.5, 5.0),
    "direct": (0.5, 0.4, 0.6),
    "gateway": (5.0, 2.0, 6.0),
}
"""Seconds of each turn."""


@pytest.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> Session:
    """Return a session in which each system took the turns of `SPANS`."""
    made = Session(cast("Platform", None), Settings(pods=CASE.pods), report=Silent())
    for system, spans in SPANS.items():
        for span in spans:

            async def take(_platform: Platform, span: float = span, **_options: object) -> BurstFigures:
                return BurstFigures(pods=CASE.pods, ready_p50=span / 2, ready_p99=span, ready_span=span, gone_span=1.0)

            monkeypatch.setitem(session._RUNS, system, take)
            await made.run_turn(system, CASE)
    return made


async def test_median_turn_is_reported(run: Session) -> None:
    turn = run.median_turn("gateway", CASE)
    assert turn is not None
    assert turn.ready_span == 5.0
    assert run.median_turn("gateway", Case(CASE.pods, token=True)) is None


async def test_share_is_the_median_over_turns(run: Session) -> None:
    outcome = burst._build_outcome(run, [CASE])
    shares = {str(row[2]): row[7:9] for row in outcome.rows}
    assert shares["gateway"] == [0.67, 0.83]  # of 1/5, 2/2, 4/6; and of 2/5, 2.5/2, 5/6
    assert shares["floor"] == [1.0, 1.25]
    assert [target.seen for target in outcome.targets] == [0.83, 1.2, 1.0]  # pods/s, p99, pods/s until deleted
    assert [target.is_met for target in outcome.targets] == [False, False, True]


def test_each_run_has_a_unique_node_name() -> None:
    assert unique_node_name("floor") != unique_node_name("floor")

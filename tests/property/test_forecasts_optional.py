"""Decisions without forecasts are the same as with forecasts."""

from __future__ import annotations

import os
import re
from random import Random

from msgspec.structs import replace

from tests.unit.arbiter.checked_cluster import CheckedCluster
from tests.unit.arbiter.stories import StoryMix, random_story
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions, PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import Snapshot

CASES = int(os.environ.get("VKGATEWAY_CASES", "60"))
"""Number of stories: a tenth of a second each."""
LINE = (PendingReason.ROOM, PendingReason.RESERVATION)


REMEDY = re.compile(r"; [^;]* is enough")


def without_forecast(report: PendingReport) -> PendingReport:
    """Return a report without what is searched for with forecasts only: starts, and what would be enough."""
    report = replace(report, message=REMEDY.sub("", report.message), ends="")
    return replace(report, earliest=None, likely=None) if report.code in LINE else report


class WithoutForecasts(CheckedCluster):
    """Cluster that decides again without forecasts."""

    foreseen = 0

    def check_cycle(self, before: Snapshot, decisions: Decisions) -> None:
        again = decide(before, self.now, foresee=False)
        self.foreseen += sum(report.code in LINE and report.earliest is not None for report in decisions.holds)
        assert not any(report.code in LINE and report.earliest is not None for report in again.holds)
        assert tuple(map(without_forecast, decisions.holds)) == tuple(map(without_forecast, again.holds))
        for kind in ("admits", "evicts", "reprieves", "promotes", "plans", "losses"):
            assert getattr(decisions, kind) == getattr(again, kind), kind


def test_decisions_and_reasons_do_not_depend_on_forecasts() -> None:
    foreseen = 0
    for seed in range(CASES):
        story = random_story(Random(seed), StoryMix(fields={"run_limit": 40.0} if seed % 2 else {}))
        cluster = WithoutForecasts.from_story(story)
        assert isinstance(cluster, WithoutForecasts)
        cluster.play_story(story)
        foreseen += cluster.foreseen
    assert foreseen > CASES / 3

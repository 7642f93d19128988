"""Percentiles, targets, timelines, and the page of results."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench import report
from bench.outcome import Machine, Outcome, Result, Target
from bench.stats import percentile
from bench.timeline import Timeline


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)])
def test_percentile_is_an_observed_value(share: float, value: int) -> None:
    assert percentile(range(1, 101), share) == value


def test_percentile_of_no_values() -> None:
    assert math.isnan(percentile([], 0.5))


def test_first_time_of_a_mark_counts() -> None:
    timeline = Timeline()
    timeline.mark("sent", ("a", "p"), 1.0)
    timeline.mark("ready", ("a", "p"), 3.0)
    timeline.mark("ready", ("a", "p"), 9.0)
    timeline.mark("ready", ("a", "stranger"), 9.0)
    assert timeline.delays("sent", "ready") == [2.0]


async def test_wait_for_existing_marks_returns_immediately() -> None:
    timeline = Timeline()
    timeline.mark("ready", ("a", "p"))
    await timeline.wait_for("ready", [("a", "p")])


def result(name: str, *targets: Target) -> Result:
    return Result(
        name=name,
        title="How long",
        date="2026-01-01 00:00 UTC",
        machine=Machine(cores=2, memory_gib=24.0, kernel="6.1", busy=0.03),
        versions={"vkgateway": "0.1.0"},
        outcome=Outcome(columns=["way", "ms"], rows=[["down", 1.5]], targets=list(targets), notes=["A note."]),
        seconds=2.0,
    )


def test_page_shows_missed_targets(tmp_path: Path) -> None:
    report.save_result(result("light", Target(what="p99", seen=30.0, limit=25.0, unit="ms")), docs=tmp_path)
    report.save_result(result("burst", Target(what="share", seen=0.9, limit=0.8, at_least=True)), docs=tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert page.index("## burst") < page.index("## light")
    assert "| p99 | at most 25 ms | 30 ms | **missed** |" in page
    assert "| share | at least 0.8 | 0.9 | met |" in page
    assert "| down | 1.5 |" in page


def test_newer_result_replaces_the_older(tmp_path: Path) -> None:
    report.save_result(result("light", Target(what="p99", seen=30.0, limit=25.0)), docs=tmp_path)
    report.save_result(result("light", Target(what="p99", seen=20.0, limit=25.0)), docs=tmp_path)
    assert "missed" not in (tmp_path / "benchmarks.md").read_text()


def test_page_shows_steal_time_if_it_was_measured(tmp_path: Path) -> None:
    report.save_result(result("light"), docs=tmp_path)
    assert "stolen" not in (tmp_path / "benchmarks.md").read_text()
    known = result("light")
    known.machine.stolen = 0.25
    report.save_result(known, docs=tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "began, 25 % of the cores stolen by the hypervisor during the run." in page


def test_handwritten_section_is_kept(tmp_path: Path) -> None:
    report.save_result(result("light"), docs=tmp_path)
    page = tmp_path / "benchmarks.md"
    page.write_text(report.render_page(report.load_results(tmp_path / "benchmarks.json"), by_hand="Seen on the train."))
    report.save_result(result("burst"), docs=tmp_path)
    report.save_result(result("light"), docs=tmp_path)
    assert page.read_text().count("## How to read the figures\n\nSeen on the train.\n") == 1

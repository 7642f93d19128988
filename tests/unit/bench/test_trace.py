"""The benchmark of schedulers over synthetic traces, on a small cluster."""

from __future__ import annotations

from bench.trace import COLUMNS, LOADS, SEEDS, measure, scenario_of, tell


def test_every_load_has_a_row_for_each_scheduler_and_targets_are_told() -> None:
    cases = [measure(load, seed, scenario_of(load, seed, nodes=16, duration=1800)) for load in LOADS for seed in SEEDS]
    outcome = tell(cases)
    assert [row[:2] for row in outcome.rows] == [
        [load, name] for load in LOADS for name in ("vkgateway", "vkgateway, small cells", "fifo", "kueue", "private")
    ]
    assert all(len(row) == len(COLUMNS) for row in outcome.rows)
    assert len(outcome.targets) == 10
    assert all(0 < float(row[2] or 0) < 100 for row in outcome.rows)

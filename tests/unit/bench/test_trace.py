"""Benchmark of schedulers over synthetic traces, on a small cluster."""

from __future__ import annotations

from pathlib import Path

from bench.trace import (
    COLUMNS,
    LOADS,
    SEEDS,
    build_outcome,
    openb_scenario,
    scenario_of,
    simulate_case,
)


def test_every_load_has_a_row_for_each_scheduler() -> None:
    cases = [
        simulate_case(load, seed, scenario_of(load, seed, nodes=16, duration=1800)) for load in LOADS for seed in SEEDS
    ]
    outcome = build_outcome(cases)
    assert [row[:2] for row in outcome.rows] == [
        [load, name] for load in LOADS for name in ("vkgateway", "vkgateway, low stays", "fifo", "kueue", "private")
    ]
    assert all(len(row) == len(COLUMNS) for row in outcome.rows)
    assert len(outcome.targets) == 10
    assert all(0 < float(row[2] or 0) < 100 for row in outcome.rows)


def test_openb_is_compressed_to_the_load(tmp_path: Path) -> None:
    pods = tmp_path / "pods.csv"
    header = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
    rows = [f"p{n},1000,1024,1,1000,,{'LS' if n % 2 else 'BE'},{n * 9000},{n * 9000 + 4000}," for n in range(40)]
    pods.write_text(header + "\n".join(rows))
    scenario = openb_scenario(pods, nodes=8)
    asked = sum(job.run for job in scenario.jobs)
    assert len(scenario.jobs) == 40
    assert abs(asked / (scenario.horizon * 64) - 1.1) < 0.02

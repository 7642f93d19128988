"""Cycle times from the gateway's histogram."""

from __future__ import annotations

import math

import pytest
from prometheus_client import generate_latest

from bench.scale.meters import MeterFigures, parse_cycles, quantile
from vkgateway.scheduler.service.metrics import observe_cycle


def test_the_histogram_of_the_gateways_metrics_is_read() -> None:
    before = parse_cycles(generate_latest().decode())
    observe_cycle(0.004)
    observe_cycle(0.2)
    after = parse_cycles(generate_latest().decode())
    added = {bound: after[bound] - before[bound] for bound in after}
    assert added[0.0025] == 0
    assert added[0.005] == added[0.1] == 1
    assert added[0.25] == added[math.inf] == 2


def test_quantiles_are_interpolated_within_a_bucket() -> None:
    steps = {0.1: 10.0, 0.2: 20.0, 0.5: 20.0, math.inf: 20.0}
    assert quantile(steps, 0.25) == pytest.approx(0.05)
    assert quantile(steps, 0.75) == pytest.approx(0.15)
    assert quantile(steps, 1.0) == pytest.approx(0.2)
    assert math.isinf(quantile({0.1: 1.0, math.inf: 2.0}, 1.0))
    assert math.isnan(quantile({0.1: 0.0, math.inf: 0.0}, 0.5))


def test_cores_and_the_time_with_a_full_machine() -> None:
    metered = MeterFigures(seconds=10, cpu={"gateway": 5.0, "etcd": 1.0}, peak=100, busy=(0.5, 0.6, 0.99, 1.0))
    assert (metered.mean_cores, metered.full_share, metered.median_busy) == (0.5, 0.5, 0.6)

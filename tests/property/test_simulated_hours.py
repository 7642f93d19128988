"""Properties of the arbiter over simulated hours."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulate.scenarios import drawn, simulated
from tests.unit.simulate.watched import WatchedArbiter
from vkgateway_platform.simulate.metrics import make_result


@settings(max_examples=settings().max_examples // 10)
@given(load=st.sampled_from((0.7, 0.9, 1.1, 1.3)), seed=st.integers(min_value=0, max_value=10_000))
def test_no_gang_waits_beside_free_capacity_over_simulated_hours(load: float, seed: int) -> None:
    scenario = drawn(load, hours=1.5, seed=seed)
    result = make_result("vkgateway", scenario, simulated(scenario, WatchedArbiter()))
    late = [one for one in result.late if not one.behind_own]
    assert not late, late

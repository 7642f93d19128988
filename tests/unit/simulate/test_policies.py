"""Rules of each scheduler on small cases, and invariants of all schedulers."""

from __future__ import annotations

import pytest

from tests.unit.simulate.scenarios import drawn, job, quota, run_of, scenario, simulated
from vkgateway.api.errors import InputError
from vkgateway.scheduler.core.snapshot import LOW
from vkgateway_platform.simulate.metrics import make_result, private_waits
from vkgateway_platform.simulate.policies.fifo import PriorityFifo
from vkgateway_platform.simulate.policies.kueue import Kueue
from vkgateway_platform.simulate.policies.private import PrivateClusters
from vkgateway_platform.simulate.policies.registry import SCHEDULERS, load_schedulers
from vkgateway_platform.simulate.scenario import GPU


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize(("load", "seed"), [(0.8, 1), (1.1, 1), (1.3, 4)])
def test_every_gang_that_can_run_ends_whichever_scheduler(name: str, load: float, seed: int) -> None:
    given = drawn(load, seed=seed)
    scheduler = SCHEDULERS[name]()
    state = simulated(given, scheduler)
    assert len(state.runs) == len(scheduler.arrange(given).jobs) > 0
    assert all(run.ended is not None for run in state.runs.values())


@pytest.mark.parametrize("name", ["fifo", "kueue"])
def test_a_gang_starts_as_a_whole_or_not_at_all(name: str) -> None:
    given = scenario(
        (2, 8), [quota("a", 16)], job("a/0", 4, run=50), job("a/1", (8, 8), at=1, run=10), job("a/2", 8, at=2, run=200)
    )
    state = simulated(given, SCHEDULERS[name]())
    started = run_of(state, "a/1").started
    assert started is not None
    assert started >= 50


# Priority FIFO


def test_fifo_preempts_lower_work_of_any_tenant_within_notice_and_grace() -> None:
    given = scenario(
        (1, 8), [quota("a"), quota("b", 8)], job("b/low", 8, run=100, band=LOW), job("a/high", 8, at=20, run=30)
    )
    state = simulated(given, PriorityFifo())
    assert run_of(state, "a/high").started == pytest.approx(35)
    assert run_of(state, "b/low").evictions == 1


def test_fifo_ignores_guarantees() -> None:
    given = scenario((1, 8), [quota("a", 8), quota("b")], job("b/first", 8, run=100), job("a/second", 8, at=20, run=30))
    state = simulated(given, PriorityFifo())
    second = run_of(state, "a/second")
    assert second.entitled
    assert second.started == pytest.approx(100)
    assert run_of(state, "b/first").evictions == 0
    (late,) = make_result("fifo", given, state).late
    assert (late.gang, late.tenant, late.started) == ("a/second", "a", 100.0)
    assert late.late == pytest.approx(80 - 17)  # notice, grace and two cycles


def test_fifo_evicts_as_few_and_low_gangs_as_needed() -> None:
    low = [
        job(f"b/{number}", 4, at=number, run=500, band=LOW, priority=priority) for number, priority in enumerate((1, 0))
    ]
    given = scenario((1, 8), [quota("a"), quota("b")], *low, job("a/high", 4, at=20, run=30))
    state = simulated(given, PriorityFifo())
    assert [run_of(state, f"b/{number}").evictions for number in (0, 1)] == [0, 1]


def test_fifo_keeps_limits() -> None:
    given = scenario((1, 8), [quota("a", limit=4)], job("a/0", 4, run=50), job("a/1", 4, at=1, run=50))
    assert run_of(simulated(given, PriorityFifo()), "a/1").started == pytest.approx(50)


def test_fifo_does_not_block_behind_a_gang_that_does_not_fit() -> None:
    given = scenario(
        (1, 8), [quota("a")], job("a/0", 4, run=50), job("a/1", 8, at=1, run=50), job("a/2", 4, at=2, run=20)
    )
    assert run_of(simulated(given, PriorityFifo()), "a/2").started == pytest.approx(2)


# Kueue


def test_kueue_reclaims_borrowed_quota_whatever_its_priority() -> None:
    given = scenario(
        (2, 8),
        [quota("a", 8), quota("b", 8)],
        job("b/own", 8, run=100),
        job("b/borrows", 8, at=1, run=100, priority=9),
        job("a/first", 8, at=20, run=30),
    )
    state = simulated(given, Kueue())
    assert run_of(state, "a/first").started == pytest.approx(35)
    assert sum(run.evictions for run in state.runs.values()) == 1


def test_kueue_keeps_the_quota_of_victims_for_the_preemptor() -> None:
    given = scenario(
        (2, 8),
        [quota("a", 8), quota("b")],
        job("b/low", 8, run=500, band=LOW),
        job("b/other", 8, run=500, band=LOW),
        job("b/next", 8, at=15, run=50),
        job("a/first", 8, at=20, run=30),
    )
    state = simulated(given, Kueue())
    assert run_of(state, "a/first").started == pytest.approx(35)


def test_kueue_does_not_reclaim_for_a_gang_that_borrows() -> None:
    given = scenario(
        (2, 8),
        [quota("a", 8), quota("b")],
        job("b/borrows", (8, 8), run=100, band=LOW),
        job("a/large", (8, 8), at=20, run=30),
    )
    state = simulated(given, Kueue())
    assert run_of(state, "b/borrows").evictions == 0
    assert run_of(state, "a/large").started == pytest.approx(100)


def test_kueue_preempts_lower_priority_within_a_queue() -> None:
    given = scenario((1, 8), [quota("a", 8)], job("a/low", 8, run=100, band=LOW), job("a/high", 8, at=20, run=30))
    assert run_of(simulated(given, Kueue()), "a/high").started == pytest.approx(35)


def test_kueue_admits_by_quota_and_places_when_nodes_fit() -> None:
    given = scenario(
        (2, 8),
        [quota("a", 8), quota("b", 8)],
        *(job(f"b/{number}", 4, run=100 - 50 * (number == 3)) for number in range(4)),
        job("a/whole", 8, at=200, run=10),
    )
    state = simulated(given, Kueue())
    assert run_of(state, "a/whole").started == pytest.approx(200)
    spread = scenario(
        (2, 8),
        [quota("a", 8), quota("b", 8)],
        job("b/0", 5, run=100),
        job("b/1", 5, run=60),
        job("a/6", 6, at=1, run=10),
    )
    state = simulated(spread, Kueue())
    assert run_of(state, "a/6").started == pytest.approx(60)
    assert sum(run.evictions for run in state.runs.values()) == 0


def test_kueue_limits_borrowing() -> None:
    given = scenario(
        (2, 8), [quota("a", 8, limit=12), quota("b", 8)], job("a/0", 8, run=50), job("a/1", 8, at=1, run=50)
    )
    assert run_of(simulated(given, Kueue()), "a/1").started == pytest.approx(50)


# Private clusters


def test_private_clusters_are_the_cells_of_their_tenants() -> None:
    given = scenario((4, 8), [quota("a", 12), quota("b", 8)], job("a/0", 8), job("b/0", (8, 8)))
    arranged = PrivateClusters().arrange(given)
    sizes = [[node.allocatable[GPU] // 1000 for node in pool.nodes] for pool in arranged.pools]
    assert sizes == [[8, 4], [8]]
    assert [each.id for each in arranged.jobs] == ["a/0"]


def test_private_clusters_do_not_lend() -> None:
    given = scenario((2, 8), [quota("a", 8), quota("b", 8)], job("a/0", 8, run=50), job("a/1", 8, at=1, run=50))
    assert run_of(simulated(given, PrivateClusters()), "a/1").started == pytest.approx(50)


def test_a_gang_that_waits_longer_than_alone_is_an_anomaly() -> None:
    given = scenario((1, 8), [quota("a", 8), quota("b")], job("b/first", 8, run=100), job("a/second", 8, at=20, run=30))
    alone = private_waits(given, simulated(given, PrivateClusters()))
    assert alone == {"a/second": 0.0}
    (found,) = make_result("fifo", given, simulated(given, PriorityFifo()), private=alone).anomalies or []
    assert (found.gang, found.wait, found.private) == ("a/second", 80.0, 0.0)


# By name


def test_custom_scheduler_is_loaded_by_module() -> None:
    (found,) = load_schedulers(["vkgateway_platform.simulate.policies.fifo:PriorityFifo"])
    assert found.name == "fifo"
    with pytest.raises(InputError, match="has no decide"):
        load_schedulers([f"{__name__}:Half"])


class Half:
    """Class that is not a scheduler."""

    name = arrange = "half"


def test_all_names_every_scheduler_once() -> None:
    assert [one.name for one in load_schedulers(["kueue", "all"])] == ["kueue", "vkgateway", "fifo", "private"]

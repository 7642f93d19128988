"""Start times of guaranteed gangs, measured by the start meter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from tests.unit.arbiter.simulated_cluster import KEY, LOW, make_gang
from vkgateway.scheduler.core.decisions import Admit, Decisions, Evict, PendingReason, PendingReport
from vkgateway.scheduler.core.snapshot import Gang, PreemptionPlan
from vkgateway.scheduler.service.metrics import TERMS
from vkgateway.scheduler.service.start_meter import StartMeter

PAIR = make_gang("a/ns/gang/pair", "a", [8, 8])
LOWLY = make_gang("a/ns/gang/low", "a", [8], band=LOW)
UIDS = [pod.uid for pod in PAIR.pods]


def admit_gang(whom: Gang = PAIR, *, borrowed: bool = False) -> Decisions:
    nodes = {pod.uid: "n0" for pod in whom.pods}
    return Decisions(admits=(Admit(gang=whom.id, pool=KEY, nodes=nodes, borrowed=borrowed),))


def hold_gang(code: PendingReason, whom: Gang = PAIR) -> Decisions:
    return Decisions(holds=(PendingReport(gang=whom.id, code=code, message=""),))


def plan_gang(*deadlines: float, borrowed: bool = False) -> Decisions:
    evicts = (
        Evict(gang="b/ns/gang/low", pods=("v",), whole=True, makes_room_for=PAIR.id, deadline=deadline, lost=0.0)
        for deadline in deadlines
    )
    plan = PreemptionPlan(pool=KEY, nodes=dict.fromkeys(UIDS, "n0"), borrowed=borrowed)
    hold = PendingReport(gang=PAIR.id, code=PendingReason.EVICTION, message="")
    return Decisions(plans={PAIR.id: plan}, evicts=tuple(evicts), holds=(hold,))


class Scenario:
    """Inputs of the meter, second by second; each cycle is about the moment half a second before its end."""

    def __init__(self) -> None:
        self.meter = StartMeter()

    def gang_arrived(self, uid: str, now: float, whom: Gang = PAIR) -> None:
        self.meter.pod_arrived(whom.id, uid, created=now - 0.25, now=now)

    def decisions_made(self, decisions: Decisions, now: float) -> None:
        self.meter.cycle_decided({each.id: each for each in (PAIR, LOWLY)}, decisions, at=now - 0.5, now=now)

    def pair_members(self) -> None:
        for uid in UIDS:
            self.gang_arrived(uid, 10.0)


def starts_immediately(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(admit_gang(), 12.0)
    scenario.meter.pod_bound(UIDS[0], now=13.0)
    scenario.meter.pod_bound(UIDS[1], now=15.0)
    scenario.meter.pod_bound(UIDS[1], now=16.0)


def others_start_first(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(plan_gang(42.0), 12.0)
    scenario.decisions_made(plan_gang(), 20.0)
    scenario.decisions_made(admit_gang(), 45.0)


def more_victims_follow(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(plan_gang(42.0), 12.0)
    scenario.decisions_made(plan_gang(50.0), 20.0)
    scenario.decisions_made(admit_gang(), 51.0)


def victims_end_early(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(plan_gang(42.0), 12.0)
    scenario.decisions_made(admit_gang(), 22.0)


def members_arrive_one_by_one(scenario: Scenario) -> None:
    scenario.gang_arrived(UIDS[0], 10.0)
    scenario.decisions_made(hold_gang(PendingReason.MEMBERS), 11.0)
    scenario.gang_arrived(UIDS[1], 100.0)
    scenario.decisions_made(admit_gang(), 102.0)


def size_is_known_last(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(hold_gang(PendingReason.MEMBERS), 60.5)
    scenario.decisions_made(admit_gang(), 62.0)


def one_member_is_deleted(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.meter.pod_gone(PAIR.id, UIDS[0])
    scenario.decisions_made(admit_gang(), 12.0)


def no_decision_yet(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(Decisions(), 11.0)
    scenario.decisions_made(admit_gang(), 12.0)


def gang_borrows(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(admit_gang(borrowed=True), 12.0)
    scenario.meter.pod_bound(UIDS[0], now=13.0)


def gang_is_low(scenario: Scenario) -> None:
    scenario.gang_arrived("u", 10.0, LOWLY)
    scenario.decisions_made(admit_gang(LOWLY), 12.0)


def gang_waits_for_its_cells(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(hold_gang(PendingReason.ROOM), 12.0)
    scenario.decisions_made(admit_gang(), 900.0)


def plan_to_borrow(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(plan_gang(42.0, borrowed=True), 12.0)
    scenario.decisions_made(admit_gang(), 45.0)


def plan_fails(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(plan_gang(42.0), 12.0)
    scenario.decisions_made(hold_gang(PendingReason.ROOM), 20.0)
    scenario.decisions_made(admit_gang(), 45.0)


def test_a_gang_is_overdue_after_the_notice_of_its_victims() -> None:
    scenario = Scenario()
    scenario.pair_members()
    assert scenario.meter.overdue_seconds(1000.0) == 0
    scenario.decisions_made(plan_gang(42.0), 12.0)
    assert [scenario.meter.overdue_seconds(now) for now in (40.0, 42.0, 100.0)] == [0, 0, 58]
    scenario.decisions_made(admit_gang(), 101.0)
    assert scenario.meter.overdue_seconds(200.0) == 0


def gang_predates_the_gateway(scenario: Scenario) -> None:
    scenario.decisions_made(admit_gang(), 12.0)
    scenario.meter.pod_bound(UIDS[0], now=13.0)


def gang_is_deleted(scenario: Scenario) -> None:
    scenario.pair_members()
    for uid in UIDS:
        scenario.meter.pod_gone(PAIR.id, uid)
    scenario.decisions_made(admit_gang(), 12.0)


def deleted_before_binding(scenario: Scenario) -> None:
    scenario.pair_members()
    scenario.decisions_made(admit_gang(), 12.0)
    for uid in UIDS:
        scenario.meter.pod_gone(PAIR.id, uid)
        scenario.meter.pod_bound(uid, now=13.0)


START = {"watch": [1, 0.25], "cycle": [1, 2.0]}


@pytest.mark.parametrize(
    ("tell", "values"),
    [
        (starts_immediately, {**START, "bind": [2, 4.0]}),
        (others_start_first, {**START, "notice": [1, 30.0], "grace": [1, 3.0]}),
        (more_victims_follow, {**START, "notice": [1, 38.0], "grace": [1, 1.0]}),
        (victims_end_early, {**START, "notice": [1, 10.0], "grace": [1, 0.0]}),
        (members_arrive_one_by_one, START),
        (size_is_known_last, {"cycle": [1, 2.0]}),
        (one_member_is_deleted, START),
        (no_decision_yet, START),
        (deleted_before_binding, START),
        *(
            (nothing, {})
            for nothing in (
                gang_borrows,
                gang_is_low,
                gang_waits_for_its_cells,
                plan_to_borrow,
                plan_fails,
                gang_predates_the_gateway,
                gang_is_deleted,
            )
        ),
    ],
)
def test_start_times_are_counted_per_scenario(tell: Callable[[Scenario], None], values: dict[str, list[float]]) -> None:
    before = metric_values()
    tell(Scenario())
    after = metric_values()
    found = {term: [round(new - old, 6) for new, old in zip(after[term], before[term], strict=True)] for term in TERMS}
    assert {term: counted for term, counted in found.items() if counted[0]} == values


def metric_values() -> dict[str, list[float]]:
    """Return the number of observations and the sum of seconds of each phase."""
    name = "vkgateway_guaranteed_start_seconds"
    return {
        term: [REGISTRY.get_sample_value(f"{name}_{what}", {"term": term}) or 0.0 for what in ("count", "sum")]
        for term in TERMS
    }


def test_pending_gangs_of_a_removed_tenant_are_not_overdue() -> None:
    """A later tenant of the same name has gangs of the same names."""
    meter = StartMeter()
    for tenant in ("alpha", "beta"):
        name = f"{tenant}/ns/gang/x"
        meter.pod_arrived(name, f"{tenant}-0", created=0.0, now=1.0)
        plan = PreemptionPlan(pool=KEY, nodes={f"{tenant}-0": "n0"}, borrowed=False, created=1.0)
        gang = make_gang(name, tenant, [8])
        meter.cycle_decided({name: gang}, Decisions(plans={name: plan}), at=2.0, now=2.0)
    meter.forget_tenant("alpha")
    assert meter.overdue_seconds(12.0) == 10.0
    meter.forget_tenant("beta")
    assert meter.overdue_seconds(12.0) == 0.0

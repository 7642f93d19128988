"""Tests of what is measured of guaranteed starts, by the meter itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from prometheus_client import REGISTRY

from tests.unit.arbiter.sim import KEY, LOW, gang
from vkgateway.arbiter.decisions import Admit, Decisions, Evict, PendingReason, PendingReport
from vkgateway.arbiter.snapshot import Gang, PreemptionPlan
from vkgateway.sync.admission.start_meter import StartMeter
from vkgateway.sync.arbiter_metrics import TERMS

PAIR = gang("a/ns/gang/pair", "a", [8, 8])
LOWLY = gang("a/ns/gang/low", "a", [8], band=LOW)
UIDS = [pod.uid for pod in PAIR.pods]


def admitted(whom: Gang = PAIR, *, borrowed: bool = False) -> Decisions:
    nodes = {pod.uid: "n0" for pod in whom.pods}
    return Decisions(admits=(Admit(gang=whom.id, pool=KEY, nodes=nodes, borrowed=borrowed),))


def held(code: PendingReason, whom: Gang = PAIR) -> Decisions:
    return Decisions(holds=(PendingReport(gang=whom.id, code=code, message=""),))


def planned(*deadlines: float, borrowed: bool = False) -> Decisions:
    evicts = (
        Evict(gang="b/ns/gang/low", pods=("v",), whole=True, makes_room_for=PAIR.id, deadline=deadline, lost=0.0)
        for deadline in deadlines
    )
    plan = PreemptionPlan(pool=KEY, nodes=dict.fromkeys(UIDS, "n0"), borrowed=borrowed)
    hold = PendingReport(gang=PAIR.id, code=PendingReason.EVICTION, message="")
    return Decisions(plans={PAIR.id: plan}, evicts=tuple(evicts), holds=(hold,))


class Story:
    """What the meter hears, second by second; each cycle is about the moment half a second before it is done."""

    def __init__(self) -> None:
        self.meter = StartMeter()

    def arrived(self, uid: str, now: float, whom: Gang = PAIR) -> None:
        self.meter.pod_arrived(whom.id, uid, created=now - 0.25, now=now)

    def decided(self, decisions: Decisions, now: float) -> None:
        self.meter.cycle_decided({each.id: each for each in (PAIR, LOWLY)}, decisions, at=now - 0.5, now=now)

    def pair(self) -> None:
        for uid in UIDS:
            self.arrived(uid, 10.0)


def at_once(story: Story) -> None:
    story.pair()
    story.decided(admitted(), 12.0)
    story.meter.pod_bound(UIDS[0], now=13.0)
    story.meter.pod_bound(UIDS[1], now=15.0)
    story.meter.pod_bound(UIDS[1], now=16.0)


def others_go_first(story: Story) -> None:
    story.pair()
    story.decided(planned(42.0), 12.0)
    story.decided(planned(), 20.0)
    story.decided(admitted(), 45.0)


def more_must_go_later(story: Story) -> None:
    story.pair()
    story.decided(planned(42.0), 12.0)
    story.decided(planned(50.0), 20.0)
    story.decided(admitted(), 51.0)


def they_go_before_their_time(story: Story) -> None:
    story.pair()
    story.decided(planned(42.0), 12.0)
    story.decided(admitted(), 22.0)


def members_come_one_by_one(story: Story) -> None:
    story.arrived(UIDS[0], 10.0)
    story.decided(held(PendingReason.MEMBERS), 11.0)
    story.arrived(UIDS[1], 100.0)
    story.decided(admitted(), 102.0)


def its_size_is_told_last(story: Story) -> None:
    story.pair()
    story.decided(held(PendingReason.MEMBERS), 60.5)
    story.decided(admitted(), 62.0)


def one_of_two_goes(story: Story) -> None:
    story.pair()
    story.meter.pod_gone(PAIR.id, UIDS[0])
    story.decided(admitted(), 12.0)


def nobody_decided_of_it_yet(story: Story) -> None:
    story.pair()
    story.decided(Decisions(), 11.0)
    story.decided(admitted(), 12.0)


def it_borrows(story: Story) -> None:
    story.pair()
    story.decided(admitted(borrowed=True), 12.0)
    story.meter.pod_bound(UIDS[0], now=13.0)


def it_is_low(story: Story) -> None:
    story.arrived("u", 10.0, LOWLY)
    story.decided(admitted(LOWLY), 12.0)


def it_waits_for_its_own_cells(story: Story) -> None:
    story.pair()
    story.decided(held(PendingReason.ROOM), 12.0)
    story.decided(admitted(), 900.0)


def it_has_a_plan_to_borrow(story: Story) -> None:
    story.pair()
    story.decided(planned(42.0, borrowed=True), 12.0)
    story.decided(admitted(), 45.0)


def its_plan_fails(story: Story) -> None:
    story.pair()
    story.decided(planned(42.0), 12.0)
    story.decided(held(PendingReason.ROOM), 20.0)
    story.decided(admitted(), 45.0)


def it_was_there_before_the_gateway(story: Story) -> None:
    story.decided(admitted(), 12.0)
    story.meter.pod_bound(UIDS[0], now=13.0)


def all_of_it_goes(story: Story) -> None:
    story.pair()
    for uid in UIDS:
        story.meter.pod_gone(PAIR.id, uid)
    story.decided(admitted(), 12.0)


def it_goes_before_it_is_bound(story: Story) -> None:
    story.pair()
    story.decided(admitted(), 12.0)
    for uid in UIDS:
        story.meter.pod_gone(PAIR.id, uid)
        story.meter.pod_bound(uid, now=13.0)


START = {"watch": [1, 0.25], "cycle": [1, 2.0]}


@pytest.mark.parametrize(
    ("tell", "seen"),
    [
        (at_once, {**START, "bind": [2, 4.0]}),
        (others_go_first, {**START, "notice": [1, 30.0], "grace": [1, 3.0]}),
        (more_must_go_later, {**START, "notice": [1, 38.0], "grace": [1, 1.0]}),
        (they_go_before_their_time, {**START, "notice": [1, 10.0], "grace": [1, 0.0]}),
        (members_come_one_by_one, START),
        (its_size_is_told_last, {"cycle": [1, 2.0]}),
        (one_of_two_goes, START),
        (nobody_decided_of_it_yet, START),
        (it_goes_before_it_is_bound, START),
        *(
            (nothing, {})
            for nothing in (
                it_borrows,
                it_is_low,
                it_waits_for_its_own_cells,
                it_has_a_plan_to_borrow,
                its_plan_fails,
                it_was_there_before_the_gateway,
                all_of_it_goes,
            )
        ),
    ],
)
def test_what_counts_of_a_way(tell: Callable[[Story], None], seen: dict[str, list[float]]) -> None:
    before = figures()
    tell(Story())
    after = figures()
    found = {term: [round(new - old, 6) for new, old in zip(after[term], before[term], strict=True)] for term in TERMS}
    assert {term: counted for term, counted in found.items() if counted[0]} == seen


def figures() -> dict[str, list[float]]:
    """How often each part was observed so far, and for how many seconds."""
    name = "vkgateway_guaranteed_start_seconds"
    return {
        term: [REGISTRY.get_sample_value(f"{name}_{what}", {"term": term}) or 0.0 for what in ("count", "sum")]
        for term in TERMS
    }

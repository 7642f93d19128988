"""Arbitration: triggers of cycles, contents of snapshots, and delivery of decisions to tenants."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.waiting import let_pass, wait_until
from tests.unit.sync.admission.arbitration_harness import GANG, SPEC, FakeTenant, Harness, make_node
from tests.unit.sync.admission.samples import (
    POOL,
    PodStores,
)
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.clusters.cluster_watches import PODS, TOPOLOGIES, TRUST, UNMANAGED_PODS
from vkgateway.scheduler.core.decisions import (
    Admit,
    Decisions,
    Evict,
    PendingReason,
    PendingReport,
    Promote,
    Reprieve,
)
from vkgateway.scheduler.core.queueing.admission import AdmissionState
from vkgateway.scheduler.core.snapshot import Snapshot
from vkgateway.scheduler.service import arbitration as module
from vkgateway.scheduler.service.gang_builder import EvictionTerms


@pytest.fixture
async def harness() -> Harness:
    return Harness()


# -- triggers ----------------------------------------------------------------------------------------------------------


async def test_no_decision_before_every_tenant_is_known(harness: Harness) -> None:
    async with harness.running():
        harness.arbitration.trigger()
        await let_pass(0.05)
        assert harness.asked == []
        harness.add_tenant()
        await wait_until(lambda: harness.asked)


@pytest.mark.parametrize("missing", ["tenant", "unread", "cluster", "expected"])
async def test_decisions_start_after_a_timeout_without_missing_tenants(harness: Harness, missing: str) -> None:
    if missing == "expected":
        harness.expected = None
    if missing == "unread":
        harness.alpha.admission.reads.unread.add(("default", "web"))
    if missing == "cluster":
        harness.pods.link.reachability.is_reachable = False
    if missing != "tenant":
        harness.add_tenant()
    async with harness.running():
        harness.arbitration.trigger()
        await wait_until(lambda: harness.arbitration.waiting_since is not None)
        assert harness.asked == []
        harness.now += 20
        await wait_until(lambda: harness.asked)


async def test_cycle_runs_only_after_a_change(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await harness.settle()
        number = len(harness.asked)
        await let_pass(0.05)
        assert len(harness.asked) == number

        harness.add_waiting()
        await wait_until(lambda: len(harness.asked) == number + 1)
        assert [gang.id for gang in harness.asked[-1].gangs] == [GANG]


@pytest.mark.parametrize("change", ["reachable", "node", "stranger", "complete"])
async def test_change_in_compute_cluster_triggers_a_cycle(harness: Harness, change: str) -> None:
    if change == "stranger":
        harness.answer = Decisions(holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),))
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await harness.settle()
        number = len(harness.asked)
        link = harness.pods.link
        if change == "reachable":
            link.reachability.set_watching(True, "")
            link.reachability.is_reachable = False
            link.reachability._update_reachable()
        elif change == "node":
            link.nodes.handle_change(None, make_node("host-2"))
        elif change == "stranger":
            link.watches.notify(UNMANAGED_PODS, None, harness.add_unmanaged())
        else:
            link.nodes.state.mark_stale()
            link.nodes.state.mark_complete()
        await wait_until(lambda: len(harness.asked) > number)


async def test_unmanaged_usage_is_not_polled_soon_while_no_gang_waits(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await harness.settle()
        harness.pods.link.watches.notify(UNMANAGED_PODS, None, harness.add_unmanaged())
        due_at = harness.arbitration.cycle_trigger.due_at
        assert due_at is not None
        assert due_at > asyncio.get_running_loop().time() + 10


async def test_cycle_runs_at_the_next_notice_before_a_run_limit(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        harness.answer = Decisions(next_notice=harness.now + 20.0)
        await harness.run_cycle()
        due_at = harness.arbitration.cycle_trigger.due_at
        assert due_at is not None
        assert 0 < due_at - asyncio.get_running_loop().time() <= 20.1


async def test_cycle_runs_at_the_next_deadline(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting()
    harness.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    async with harness.running():
        await harness.run_cycle()
        evict = Evict(
            gang=GANG, pods=("u1",), whole=True, makes_room_for="beta/x", deadline=harness.now + 0.2, lost=0.0
        )
        harness.answer = Decisions(evicts=(evict,))
        await harness.run_cycle()
        harness.answer = Decisions()
        number = len(harness.asked)
        await wait_until(
            lambda: harness.alpha.admission.verdict_store.verdicts["u1"].verdict is AdmissionState.EVICTING
        )
        harness.now += 0.2
        await wait_until(lambda: harness.alpha.admission.verdict_store.verdicts == {})
        await wait_until(lambda: len(harness.asked) > number)


async def test_clock_may_be_adjusted_only_without_open_notices(harness: Harness) -> None:
    evict = Evict(
        gang=GANG, pods=("u1",), whole=True, makes_room_for="alpha/default/pod/u2", deadline=harness.now + 40, lost=0.0
    )
    harness.answer = Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))
    harness.add_waiting()
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.calm)
        harness.answer = Decisions(evicts=(evict,))
        await harness.run_cycle()
        calm = harness.calm
        harness.answer = Decisions()
        await harness.run_cycle()
        await harness.run_cycle()
        assert harness.calm == calm
        harness.answer = Decisions(reprieves=(Reprieve(gang=GANG, pods=("u1",)),))
        await harness.run_cycle()
        await harness.run_cycle()
        assert harness.calm > calm


@pytest.mark.parametrize("away", [False, True], ids=["held", "cluster away"])
async def test_waiting_gangs_are_reconsidered_periodically(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    monkeypatch.setattr(module, "_REFRESH", 0.05)
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        await harness.settle()
        assert len(harness.asked) == 1

        if away:
            harness.pods.link.reachability.is_reachable = False
        else:
            harness.answer = Decisions(holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),))
        harness.add_waiting()
        await wait_until(lambda: len(harness.asked) >= 4)


async def test_failed_cycle_is_logged_and_arbitration_continues(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_AFTER_DEFECT", 0.05)
    harness.add_tenant()
    decide = harness.decide

    def defect(_snapshot: Snapshot, _now: float) -> Decisions:
        harness.decide = decide
        raise ZeroDivisionError

    harness.decide = defect
    async with harness.running():
        await wait_until(lambda: harness.asked)


async def test_no_callback_or_task_remains_after_the_end(harness: Harness) -> None:
    harness.add_tenant()
    async with harness.running():
        await wait_until(lambda: harness.asked)
        assert harness.pods.link.watches.has_handlers(PODS)
    watches = harness.pods.link.watches
    assert not watches.has_handlers(PODS)
    assert not watches.has_handlers(UNMANAGED_PODS)
    assert not watches.has_handlers(TOPOLOGIES)
    assert not watches.has_handlers(TRUST)


# -- delivery ----------------------------------------------------------------------------------------------------------


async def test_each_decision_reaches_the_tenant_of_its_gang(harness: Harness) -> None:
    beta = FakeTenant("beta", PodStores(), harness.arbitration)
    harness.add_tenant()
    harness.add_tenant(beta)
    harness.add_waiting()
    async with harness.running():
        harness.answer = Decisions(
            admits=(
                Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),
                Admit(gang="gone/x", pool=POOL, nodes={"u1": "host-1"}, borrowed=True),
            )
        )
        await harness.run_cycle()
        assert harness.verdict_of() is AdmissionState.ADMITTED
        assert beta.admission.verdict_store.verdicts == {}

        harness.answer = Decisions(
            evicts=(Evict(gang=GANG, pods=("u1",), whole=True, makes_room_for="beta/x", deadline=2000.0, lost=0.0),),
            holds=(PendingReport(gang="beta/default/pod/u9", code=PendingReason.ROOM, message="no room"),),
        )
        await harness.run_cycle()
        assert harness.verdict_of() is AdmissionState.EVICTING
        assert list(beta.admission.reasons.pending_messages) == ["beta/default/pod/u9"]
        assert harness.alpha.admission.reasons.pending_messages == {}

        harness.answer = Decisions(
            reprieves=(Reprieve(gang=GANG, pods=("u1",)),), promotes=(Promote(gang=GANG, pods=("u1",)),)
        )
        await harness.run_cycle()
        assert harness.verdict_of() is AdmissionState.ADMITTED
        assert not harness.alpha.admission.verdict_store.verdicts["u1"].borrowed
        assert beta.admission.reasons.pending_messages == {}


async def test_pod_deleted_during_a_cycle_is_not_admitted(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting()
    decide = harness.decide

    def slow(snapshot: Snapshot, now: float) -> Decisions:
        harness.pods.above.store.clear()
        decide(snapshot, now)
        return Decisions(admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),))

    harness.decide = slow
    async with harness.running():
        await harness.run_cycle()
        assert harness.alpha.admission.verdict_store.verdicts == {}


async def test_tenant_removed_during_a_cycle_does_not_fail_it(harness: Harness) -> None:
    harness.add_tenant()
    harness.add_waiting()
    harness.answer = Decisions(
        admits=(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True),),
        holds=(PendingReport(gang=GANG, code=PendingReason.ROOM, message="no room"),),
    )
    decide = harness.decide

    def slow(snapshot: Snapshot, now: float) -> Decisions:
        harness.arbitration.tenants.by_name.clear()
        return decide(snapshot, now)

    harness.decide = slow
    async with harness.running():
        await harness.run_cycle()
        await harness.run_cycle()


# -- eviction terms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (SPEC, EvictionTerms(7.0, 8.0)),
        (PoolSpec(name="a100", notice_seconds=1), EvictionTerms(1.0, 8.0)),
        (PoolSpec(name="a100", notice_seconds=0, grace_seconds=0), EvictionTerms(0.0, 0.0)),
        (PoolSpec(name="h100", notice_seconds=1, grace_seconds=2), EvictionTerms(7.0, 8.0)),
        (
            PoolSpec(name="a100", brief_run_seconds=600, brief_notice_seconds=2),
            EvictionTerms(7.0, 8.0, brief_run=600.0, brief_notice=2.0),
        ),
        (
            PoolSpec(name="a100", notice_seconds=1, brief_run_seconds=600, brief_notice_seconds=2),
            EvictionTerms(1.0, 8.0, brief_run=600.0, brief_notice=1.0),
        ),
        (PoolSpec(name="a100", brief_run_seconds=600), EvictionTerms(7.0, 8.0)),
    ],
)
async def test_pool_may_override_notice_and_grace(spec: PoolSpec, expected: EvictionTerms) -> None:
    arbitration = Harness(specs=(spec,)).arbitration
    assert arbitration.eviction_terms(POOL) == expected
    assert arbitration.eviction_terms(("elsewhere", "a100")) == EvictionTerms(7.0, 8.0)
    assert arbitration.eviction_terms(None) == EvictionTerms(7.0, 8.0)

"""Pools of other schedulers in the arbitration: what the arbiter decides on, and what becomes of their decisions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.admission.arbitration_harness import GANG, Harness
from tests.unit.sync.admission.samples import POOL
from vkgateway.api.objects import Object
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.clusters.link import ComputeLink
from vkgateway.scheduler.backends import pool_modes
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.breaches import Eviction
from vkgateway.scheduler.backends.external.kinds import NoReconciler
from vkgateway.scheduler.backends.external.mode import ExternalMode
from vkgateway.scheduler.backends.kueue.mode import KueueMode
from vkgateway.scheduler.backends.mode import ModeResult
from vkgateway.scheduler.backends.pool_modes import ModeParts
from vkgateway.scheduler.core.queueing.admission import AdmissionState
from vkgateway.scheduler.core.snapshot import Quota

SPEC = PoolSpec(name="a100", scheduling=PoolScheduling(mode="kueue"))


class FakeReconciler(NoReconciler):
    """Kueue, as far as the test says."""

    def __init__(self, link: ComputeLink, **_: object) -> None:
        super().__init__(link)
        self.is_known = True
        self.known: dict[str, Attempt] = {}
        self.results: list[ModeResult] = []
        created.append(self)

    def attempts(self) -> dict[str, Attempt]:
        return dict(self.known)

    def apply(self, result: ModeResult) -> None:
        self.results.append(result)

    async def run(self) -> None:
        """Do nothing."""


created: list[FakeReconciler] = []


def admitted_attempt(document: Object) -> Attempt:
    """Return the attempt that a Workload of one pod is, after Kueue admitted it."""
    metadata = document["metadata"]
    return Attempt(
        name=metadata["name"],
        uid="w1",
        resource_version="1",
        tenant="alpha",
        pool=POOL,
        digest=metadata["annotations"]["vkgateway.io/digest"],
        state=AttemptState.ADMITTED,
        slots={document["spec"]["podSets"][0]["name"]: {"host-1": 1}},
    )


@pytest.fixture
def kueue(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeReconciler]]:
    monkeypatch.setitem(pool_modes.MODES, "kueue", ModeParts(KueueMode(), FakeReconciler))
    yield created
    created.clear()


async def test_native_pools_start_no_reconciler(kueue: list[FakeReconciler]) -> None:
    harness = Harness()
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        snapshot = await harness.run_cycle()
        assert [gang.id for gang in snapshot.gangs] == [GANG]
    assert not kueue


async def test_arbiter_sees_nothing_of_another_schedulers_pool(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        snapshot = await harness.run_cycle()
        assert (snapshot.gangs, snapshot.pools, snapshot.quotas) == ((), (), ())
        await wait_until(lambda: kueue[0].results)
        (document,) = kueue[0].results[-1].creates
        assert document["metadata"]["annotations"]["vkgateway.io/gang-id"] == GANG
        assert harness.arbitration.is_foreign(POOL)


async def test_admitted_attempt_admits_the_pod_and_its_eviction_gives_notice(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        await wait_until(lambda: kueue[0].results)
        (document,) = kueue[0].results[-1].creates
        name = document["metadata"]["name"]
        attempt = admitted_attempt(document)
        kueue[0].known = {name: attempt}
        await harness.run_cycle()
        verdict = harness.alpha.admission.verdict_store.verdicts["u1"]
        assert (verdict.verdict, verdict.node, verdict.pool) == (AdmissionState.ADMITTED, "host-1", POOL)
        kueue[0].known = {}
        await harness.run_cycle()
        verdict = harness.alpha.admission.verdict_store.verdicts["u1"]
        assert verdict.verdict is AdmissionState.EVICTING
        assert verdict.deadline == harness.clock.time() + 7.0
        reason = harness.alpha.admission.admission_for("u1", "a100.local")
        assert reason.message == "is evicted by the scheduler of its pool"


async def test_unknown_attempts_change_nothing(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        harness.arbitration.trigger()
        await wait_until(lambda: kueue)
        kueue[0].is_known = False
        await harness.run_cycle()
        count = len(kueue[0].results)
        await harness.run_cycle()
        assert len(kueue[0].results) == count
        message = harness.alpha.admission.reasons.pending_messages[GANG]
        assert "does not answer" in message.reason


async def test_queues_of_tenants_without_quotas_are_unsettled(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC], expected=("alpha", "beta"))
    harness.add_tenant()
    harness.alpha.admission.quotas_changed([Quota(tenant="alpha", pool=POOL)])
    async with harness.running():
        harness.arbitration.trigger()
        await wait_until(lambda: harness.arbitration.waiting_since is not None)
        harness.now += 20
        await wait_until(lambda: kueue and kueue[0].results)
        assert kueue[0].results[-1].unsettled_tenants == frozenset({"beta"})


async def test_reconciler_ends_with_its_pool(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    async with harness.running():
        await harness.run_cycle()
        assert len(kueue) == 1
        harness.specs = (PoolSpec(name="a100"),)
        snapshot = await harness.run_cycle()
        assert [pool.key for pool in snapshot.pools] == [POOL]
        assert not harness.arbitration.is_foreign(POOL)


async def test_unread_pods_delay_no_known_tenant(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        harness.alpha.admission.reads.unread.add(("default", "new"))
        harness.add_waiting("u2")
        await harness.run_cycle()
        assert len(kueue[0].results[-1].creates) == 2


async def test_nothing_is_decided_for_a_tenant_that_was_never_known(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC], expected=())
    harness.alpha.admission.reads.unread.add(("default", "old"))
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        await harness.run_cycle()
        assert not kueue[0].results[-1].creates


async def test_evicted_pod_breaks_the_attempt_at_that_time_and_no_later_one(kueue: list[FakeReconciler]) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        (document,) = kueue[0].results[-1].creates
        name = document["metadata"]["name"]
        attempt = admitted_attempt(document)
        kueue[0].known = {name: attempt}
        harness.alpha.admission.observer.scheduler_evictions._groups[GANG.removeprefix("alpha/")] = Eviction(math.inf)
        await harness.run_cycle()
        assert [each.uid for each in kueue[0].results[-1].releases] == ["w1"]
        kueue[0].known = {name: replace(attempt, uid="w2")}
        await harness.run_cycle()
        assert not kueue[0].results[-1].releases
        assert harness.alpha.admission.verdict_store.verdicts["u1"].verdict is AdmissionState.ADMITTED


@pytest.mark.parametrize(("seconds", "is_broken"), [(-10.0, False), (10.0, True)])
async def test_eviction_that_ended_pods_show_concerns_pods_that_started_before(
    kueue: list[FakeReconciler], seconds: float, is_broken: bool
) -> None:
    harness = Harness(specs=[SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        (document,) = kueue[0].results[-1].creates
        kueue[0].known = {document["metadata"]["name"]: admitted_attempt(document)}
        await harness.run_cycle()
        await wait_until(lambda: "u1" in harness.alpha.admission.verdict_store.verdicts)
        started = harness.alpha.admission.verdict_store.verdicts["u1"].since
        evictions = harness.alpha.admission.observer.scheduler_evictions
        evictions._groups[GANG.removeprefix("alpha/")] = Eviction(started + seconds)
        await harness.run_cycle()
        assert any(harness.arbitration.modes._breaches.values()) is is_broken


@pytest.mark.parametrize(("mode", "is_broken"), [("kueue", False), ("external", True)])
async def test_unexplained_deletion_counts_for_external_schedulers_only(
    kueue: list[FakeReconciler], mode: str, is_broken: bool
) -> None:
    harness = Harness(specs=[EXTERNAL if mode == "external" else SPEC])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        if kueue:
            (document,) = kueue[0].results[-1].creates
            kueue[0].known = {document["metadata"]["name"]: admitted_attempt(document)}
            await harness.run_cycle()
        await wait_until(lambda: "u1" in harness.alpha.admission.verdict_store.verdicts)
        evictions = harness.alpha.admission.observer.scheduler_evictions
        evictions._groups[GANG.removeprefix("alpha/")] = Eviction(harness.clock.time(), is_explained=False)
        await harness.run_cycle()
        assert any(harness.arbitration.modes._breaches.values()) is is_broken


EXTERNAL = PoolSpec(name="a100", scheduling=PoolScheduling(mode="external", scheduler_name="gpu-scheduler"))


async def test_external_scheduler_gets_whole_gangs_without_a_reconciler_of_objects() -> None:
    harness = Harness(specs=[EXTERNAL])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        snapshot = await harness.run_cycle()
        assert (snapshot.gangs, snapshot.pools) == ((), ())
        verdicts = harness.alpha.admission.verdict_store.verdicts
        await wait_until(lambda: "u1" in verdicts)
        verdict = verdicts["u1"]
        assert (verdict.verdict, verdict.node) == (AdmissionState.ADMITTED, "")
        assert verdict.marks is not None
        assert verdict.marks.scheduler_name == "gpu-scheduler"


async def test_cycle_is_due_when_a_broken_gang_may_start_again() -> None:
    harness = Harness(specs=[EXTERNAL])
    harness.add_tenant()
    harness.add_waiting()
    async with harness.running():
        await harness.run_cycle()
        assert harness.arbitration.modes.next_retry is None
        await wait_until(lambda: "u1" in harness.alpha.admission.verdict_store.verdicts)
        harness.alpha.admission.observer.scheduler_evictions._groups[GANG.removeprefix("alpha/")] = Eviction(math.inf)
        await harness.run_cycle()
        assert harness.arbitration.modes.next_retry == harness.clock.time() + ExternalMode.retry_seconds

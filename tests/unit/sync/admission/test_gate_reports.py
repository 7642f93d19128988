"""Reports to pending and admitted pods by the gate reconciler."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.sync.admission.gate_harness import FREE, KEY, Harness
from tests.unit.sync.admission.samples import (
    TENANT,
)
from vkgateway.kube import errors
from vkgateway.kube.resources import PODS
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with FakeApiServer() as server, server.client() as client:
        yield Harness(server, client)


# -- pending reports ---------------------------------------------------------------------------------------------------


async def test_pending_reason_is_written_after_a_second(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    assert harness.get_condition() is None
    assert harness.list_events() == []
    assert harness.later == [(KEY, 1.0)]

    harness.now += 1
    await harness.reconcile_pod()
    assert harness.get_condition() == ("False", "WaitingForRoom", "no room")
    assert harness.list_events() == [("WaitingForRoom", "Normal")]


async def test_pending_pod_is_written_at_most_twice_a_minute(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    for second in range(1, 62):
        harness.now = 1000.0 + second
        harness.hold_pod(uid, message=f"no room: {second}")
        harness.show_pod()
        await harness.reconcile_pod()
    assert harness.list_writes() == 3, "after 1, 31 and 61 seconds"
    assert (harness.get_condition() or ("", "", ""))[2] == "no room: 61"
    assert harness.list_events() == [("WaitingForRoom", "Normal")]


async def test_reconcile_is_requested_for_the_next_report(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    harness.now += 10
    harness.hold_pod(uid, message="still no room")
    harness.requests.added.clear()
    await harness.reconcile_pod()
    assert harness.later == [(KEY, 20.0)]


async def test_unchanged_reason_is_not_written_again(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    harness.show_pod()
    writes = harness.list_writes()
    for _ in range(5):
        harness.now += 100
        await harness.reconcile_pod()
    assert harness.list_writes() == writes


async def test_each_new_reason_is_an_event_and_permanent_ones_are_warnings(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    for code in (PendingReason.ROOM, PendingReason.QUOTA, PendingReason.INFEASIBLE, PendingReason.INVALID):
        harness.now += 31
        harness.hold_pod(uid, code=code)
        await harness.reconcile_pod()
        harness.show_pod()
    assert harness.list_events() == [
        ("WaitingForRoom", "Normal"),
        ("WaitingForQuota", "Normal"),
        ("Infeasible", "Warning"),
        ("Invalid", "Warning"),
    ]


async def test_failed_report_is_retried(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    harness.server.fail("PATCH", "/pods/web/status", status=503)
    with pytest.raises(errors.ApiError):
        await harness.reconcile_pod()
    assert harness.get_condition() is None

    await harness.reconcile_pod()
    assert harness.get_condition() == ("False", "WaitingForRoom", "no room")
    assert harness.list_events() == [("WaitingForRoom", "Normal")]


async def test_conditions_of_others_are_not_changed(harness: Harness) -> None:
    uid = harness.create_pod()
    theirs = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    # The watch has not shown the condition of their scheduler yet.
    harness.server.store.update(
        PODS,
        harness.stored_pod() | {"status": {"phase": "Pending", "conditions": [theirs]}},
        name="web",
        namespace="default",
        status=True,
    )
    harness.now += 1
    await harness.reconcile_pod()
    assert [entry["type"] for entry in harness.stored_pod()["status"]["conditions"]] == [
        "PodScheduled",
        "vkgateway.io/Admitted",
    ]
    assert harness.stored_pod()["status"]["conditions"][0] == theirs


async def test_admitted_pod_gets_a_condition_after_a_pending_one(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    harness.show_pod()
    harness.admit_pod(uid)
    await harness.reconcile_pod()
    assert (harness.get_condition() or ("", ""))[:2] == ("True", "Admitted")
    assert not harness.is_gated()


async def test_forgotten_pod_is_reported_again(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    harness.hold_pod(uid)
    await harness.reconcile_pod()
    harness.gates.reporter.forget_pod(member.uid)
    assert not harness.gates.reporter.pod_reports


async def test_ungoverned_members_get_no_report(harness: Harness) -> None:
    marked = {"annotations": {"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}}
    harness.create_pod(meta=marked, **FREE, schedulingGates=[])
    await harness.reconcile_pod()
    gang = f"{TENANT}/default/gang/train"
    harness.admission.reasons.set_pending_reasons(
        [PendingReport(gang=gang, code=PendingReason.MEMBERS, message="1 of 2")], pools={}
    )
    harness.now += 100
    await harness.reconcile_pod()
    await harness.reconcile_pod()
    assert harness.list_writes() == 0
    assert harness.list_events() == []

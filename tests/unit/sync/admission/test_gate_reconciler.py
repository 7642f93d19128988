"""Scheduling gates: removed only from admitted pods; pending reasons are written after a delay, at a limited rate."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.sync.admission.gate_harness import FREE, GATE, GPU, KEY, Harness
from tests.unit.sync.admission.samples import (
    POOL,
    TENANT,
    make_reference,
)
from vkgateway.api.objects import Object
from vkgateway.clusters.node_sizes import SizeVerdict
from vkgateway.kube.resources import PODS
from vkgateway.scheduler.core.decisions import Evict
from vkgateway.scheduler.governed import CORDON_TAINT


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with FakeApiServer() as server, server.client() as client:
        yield Harness(server, client)


# -- removal of gates --------------------------------------------------------------------------------------------------


async def test_pod_is_read_once_and_stays_gated_until_admission(harness: Harness) -> None:
    uid = harness.create_pod()
    harness.reads.unread.add(KEY)
    await harness.reconcile_pod()
    await harness.reconcile_pod()

    assert harness.admission.gangs.find_member(uid) is not None
    assert harness.reads.unread == set()
    assert harness.is_gated()
    assert harness.list_writes() == 0
    assert len(harness.server.requests) == 1

    harness.admit_pod(uid)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.stored_pod()["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "a100.local"}
    assert harness.get_condition() is None


async def test_pod_evicted_before_its_gate_is_removed_stays_gated(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    gang = f"{TENANT}/default/pod/{uid}"
    harness.admission.verdicts.apply_evict(
        Evict(gang=gang, pods=(uid,), whole=True, makes_room_for="alpha/x", deadline=harness.now + 30, lost=0.0)
    )
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_with_other_gates_is_not_ungated_before_they_are_removed(harness: Harness) -> None:
    uid = harness.create_pod(schedulingGates=[GATE, {"name": "example.com/x"}])
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    await harness.reconcile_pod()
    assert harness.is_gated()

    harness.change_pod(schedulingGates=[GATE])
    await harness.reconcile_pod()
    assert not harness.is_gated()


@pytest.mark.parametrize("meta", [{"deletionTimestamp": "2026-03-01T12:30:00Z"}, None])
async def test_deleted_pod_is_left_alone(harness: Harness, meta: Object | None) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    if meta is None:
        harness.pods.above.store.clear()
        harness.reads.unread.add(KEY)
    else:
        harness.stored_pod()["metadata"].update(meta)
        harness.show_pod()
    await harness.reconcile_pod()
    assert harness.list_writes() == 0
    assert harness.reads.unread == set()


@pytest.mark.parametrize("status", [404, 409])
async def test_pod_deleted_during_the_request_is_no_error(harness: Harness, status: int) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    harness.server.fail("PATCH", "/pods/web", status=status, reason="NotFound" if status == 404 else "Conflict")
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_of_the_same_name_is_not_ungated_for_its_predecessor(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.admit_pod(uid)
    harness.server.store.delete(PODS, "web", "default")
    harness.server.store.create(
        PODS, {"metadata": {"name": "web"}, "spec": {**GPU, "schedulingGates": [GATE]}}, "default"
    )
    await harness.reconcile_pod()
    assert harness.is_gated()


@pytest.mark.parametrize(
    "meta",
    [{}, {"labels": {"spark-app-selector": "pi", "spark-role": "executor"}}],
    ids=["alone", "member"],
)
async def test_only_our_gate_of_an_ungoverned_pod_is_removed(harness: Harness, meta: Object) -> None:
    harness.create_pod(meta=meta, **FREE, schedulingGates=[{"name": "example.com/x"}, GATE])
    await harness.reconcile_pod()
    assert harness.stored_pod()["spec"]["schedulingGates"] == [{"name": "example.com/x"}]
    assert "nodeSelector" not in harness.stored_pod()["spec"]


async def test_pod_without_devices_that_fits_no_node_stays_gated_with_a_reason(harness: Harness) -> None:
    harness.judged = SizeVerdict(reason="no machine of a100.local has cpu 100; a pod can have cpu 96 at most")
    harness.create_pod(**FREE)
    await harness.reconcile_pod()
    harness.now += 2
    await harness.reconcile_pod()
    assert harness.is_gated()
    [condition] = harness.stored_pod()["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("Infeasible", harness.judged.reason)
    assert harness.list_events() == [("Infeasible", "Warning")]

    harness.judged = SizeVerdict(nodes=("a100.local",), is_narrowed=True)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.stored_pod()["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "a100.local"}


async def test_pod_of_unknown_node_sizes_stays_gated(harness: Harness) -> None:
    harness.judged = None
    harness.create_pod(**FREE)
    await harness.reconcile_pod()
    assert harness.is_gated()
    assert "conditions" not in harness.stored_pod().get("status", {})


async def test_unread_pod_does_not_count_as_ungoverned(harness: Harness) -> None:
    harness.create_pod()
    harness.server.fail("GET", "/pods/web", status=404, reason="NotFound")
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_that_violates_policy_fails(harness: Harness) -> None:
    uid = harness.create_pod()
    harness.refused.append("web")
    harness.reads.unread.add(KEY)
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None
    assert harness.reads.unread == set()
    assert harness.is_gated()


async def test_pod_failed_by_a_stricter_policy_is_not_expected(harness: Harness) -> None:
    """Until all lists are complete, no completion is recorded."""
    uid = harness.create_pod()
    await harness.reconcile_pod()
    settled = [harness.reads.is_settled]
    harness.members.pools_changed()
    settled.append(harness.reads.is_settled)
    harness.refused.append("web")
    await harness.reconcile_pod()
    assert [*settled, harness.reads.is_settled] == [True, False, True]
    assert harness.admission.gangs.find_member(uid) is not None


async def test_pods_without_gate_or_gang_are_not_read(harness: Harness) -> None:
    harness.create_pod(schedulingGates=[])
    await harness.reconcile_pod()
    assert harness.server.requests == []

    harness.change_pod(schedulingGates=[GATE])
    harness.stored_pod()["status"]["phase"] = "Failed"
    harness.show_pod()
    await harness.reconcile_pod()
    assert harness.server.requests == []


async def test_changed_pod_is_read_again(harness: Harness) -> None:
    uid = harness.create_pod()
    await harness.reconcile_pod()
    harness.change_pod(priority=5)
    await harness.reconcile_pod()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.priority == 5


async def test_pod_without_its_former_marks_leaves_its_gang(harness: Harness) -> None:
    marked = {"annotations": {"vkgateway.io/gang": "train", "vkgateway.io/gang-size": "2"}}
    uid = harness.create_pod(meta=marked, **FREE, schedulingGates=[])
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is not None

    harness.stored_pod()["metadata"]["annotations"].clear()
    view = harness.show_pod()
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.members.needs_read(view)


async def test_pods_are_read_again_after_their_size_object_changed(harness: Harness) -> None:
    uid = harness.create_pod(meta={"annotations": {"scheduling.k8s.io/group-name": "train"}})
    await harness.reconcile_pod()
    view = harness.show_pod()
    assert not harness.members.needs_read(view)
    harness.members.companion_changed(make_reference("another"))
    assert harness.reads.unread == set()
    harness.members.companion_changed(make_reference())
    assert harness.reads.unread == {KEY}
    assert harness.requests.pods() == [KEY]
    assert harness.members.needs_read(view)

    await harness.reconcile_pod()
    assert not harness.members.needs_read(view)
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    harness.members.companion_changed(make_reference())
    harness.members.forget_member(member)
    harness.requests.added.clear()
    harness.members.companion_changed(make_reference())
    assert harness.requests.added == []
    assert not harness.members.pods_by_companion
    assert not harness.reads.outdated


# -- the tenant's labels and taints on virtual nodes -------------------------------------------------------------------


async def test_pod_is_read_again_after_its_virtual_node_is_cordoned_or_uncordoned(harness: Harness) -> None:
    uid = harness.create_pod(nodeSelector={"vkgateway.io/pool": POOL[1]})
    await harness.reconcile_pod()
    assert harness.admission.gangs.members_named(KEY)[0].pools == (POOL,)

    name = next(name for name, binding in harness.pods.bindings().items() if binding.pool.name == POOL[1])
    for taints, pools in (((CORDON_TAINT,), ()), ((), (POOL,))):
        harness.nodes[name] = ({}, taints)
        harness.members.pools_changed()
        await harness.reconcile_pod()
        member = harness.admission.gangs.find_member(uid)
        assert member is not None
        assert member.pools == pools

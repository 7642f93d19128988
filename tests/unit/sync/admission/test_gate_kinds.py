"""Scheduling gates of pods with a gang mark of a kind that the tenant's server does not serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import let_pass, wait_until
from tests.unit.sync.admission.gate_harness import FREE, KEY, Harness
from tests.unit.sync.admission.samples import (
    TENANT,
    compute_view,
    make_reference,
)
from vkgateway.api.names import COMPUTE_NODE_ANNOTATION
from vkgateway.api.objects import Object
from vkgateway.kube.resources import Resource
from vkgateway.scheduler.core.decisions import PendingReason, PendingReport
from vkgateway.scheduler.gangs import Reference


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with FakeApiServer() as server, server.client() as client:
        yield Harness(server, client)


# -- marks of unserved kinds -------------------------------------------------------------------------------------------

LABEL: dict[str, Any] = {"labels": {"scheduling.x-k8s.io/pod-group": "web"}}
GROUP = Reference("scheduling.x-k8s.io", "PodGroup", "podgroups", "default", "web")
MARKS = [
    pytest.param(LABEL, {}, id="coscheduling"),
    pytest.param({"annotations": {"scheduling.k8s.io/group-name": "g"}}, {}, id="volcano"),
    pytest.param({"labels": {"ray.io/cluster": "c", "ray.io/node-type": "head"}}, {}, id="ray"),
    pytest.param({"labels": {"ray.io/cluster": "c"}}, {}, id="ray, the label alone"),
    pytest.param(
        {"labels": {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/replicatedjob-name": "r"}},
        {},
        id="jobset",
    ),
    pytest.param(
        {"labels": {"leaderworkerset.sigs.k8s.io/name": "l", "leaderworkerset.sigs.k8s.io/group-index": "0"}},
        {},
        id="lws",
    ),
    pytest.param(
        {
            "labels": {
                "training.kubeflow.org/job-name": "j",
                "training.kubeflow.org/operator-name": "pytorchjob-controller",
            }
        },
        {},
        id="training",
    ),
    pytest.param({"labels": {"training.kubeflow.org/job-name": "j"}}, {}, id="training, of no kind"),
    pytest.param({}, {"schedulingGroup": {"podGroupName": "g"}}, id="podgroup"),
    pytest.param({}, {"workloadRef": {"name": "w", "podGroup": "g"}}, id="workload"),
]


@pytest.mark.parametrize(("meta", "spec"), MARKS)
async def test_pod_without_devices_is_ungated_if_the_mark_kind_is_not_served(
    harness: Harness, meta: Object, spec: dict[str, Any]
) -> None:
    uid = harness.create_pod(meta=meta, **FREE, **spec)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.members.needs_read(harness.show_pod()), "it is not read again"
    assert not harness.members.must_read(harness.show_pod())

    harness.members.ordinary.forget_pod(uid)
    assert not harness.members.ordinary.marks


@pytest.mark.parametrize(
    "kind",
    [
        Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"),
        Resource("apis/scheduling.x-k8s.io/v1beta7", "podgroups", "PodGroup"),
    ],
    ids=["v1alpha1", "any version"],
)
async def test_pod_waits_if_the_mark_kind_is_served(harness: Harness, kind: Resource) -> None:
    harness.server.register(kind)
    uid = harness.create_pod(meta=LABEL, **FREE)
    await harness.reconcile_pod()
    assert harness.is_gated()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.is_unserved) == (GROUP, False)


async def test_pod_with_another_valid_mark_waits(harness: Harness) -> None:
    harness.create_pod(
        meta={**LABEL, "annotations": {"vkgateway.io/gang": "web", "vkgateway.io/gang-size": "2"}}, **FREE
    )
    await harness.reconcile_pod()
    assert harness.is_gated()


async def test_pod_with_devices_waits_with_the_unserved_kind_as_reason(harness: Harness) -> None:
    uid = harness.create_pod(meta=LABEL)
    await harness.reconcile_pod()
    assert harness.is_gated()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.marks is not None
    assert (member.marks.missing_reference, member.marks.is_unserved) == (GROUP, True)


@pytest.mark.parametrize("status", [0, 401, 403, 429, 500, 503])
async def test_server_error_does_not_make_a_gang_member_ordinary(harness: Harness, status: int) -> None:
    harness.server.fail("GET", "/apis/scheduling.x-k8s.io", status=status, times=100)
    uid = harness.create_pod(meta=LABEL, **FREE)
    await harness.reconcile_pod()
    assert harness.is_gated()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.governed

    harness.server.heal()
    harness.members.kind_changed(make_reference().object_kind)
    assert harness.reads.unread == set(), "it waits for another kind"
    harness.members.kind_changed(GROUP.object_kind)
    assert harness.reads.unread == {KEY}
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert harness.admission.gangs.find_member(uid) is None
    assert not harness.members.pods_by_companion
    assert not harness.reads.outdated


async def test_timeout_does_not_make_a_gang_member_ordinary(harness: Harness) -> None:
    answered = harness.server.hold("GET", "/apis/scheduling.x-k8s.io")
    harness.create_pod(meta=LABEL, **FREE)
    look = asyncio.create_task(harness.reconcile_pod())
    await wait_until(lambda: "GET /apis/scheduling.x-k8s.io" in harness.server.requests)
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    await let_pass(0.05)
    assert harness.is_gated(), "before the answer nothing is done"
    answered.set()
    await look
    assert harness.is_gated()


async def test_waiting_pod_is_notified_once_its_mark_has_no_meaning(harness: Harness) -> None:
    harness.server.fail("GET", "/apis/scheduling.x-k8s.io", status=503)
    harness.create_pod(meta=LABEL, **FREE)
    await harness.reconcile_pod()
    gang = f"{TENANT}/default/coscheduling/web"
    harness.admission.reasons.set_pending_reasons(
        [PendingReport(gang=gang, code=PendingReason.MEMBERS, message="is not there")], pools={}
    )
    await harness.reconcile_pod()
    harness.now += 1
    await harness.reconcile_pod()
    assert (harness.get_condition() or ("", ""))[:2] == ("False", "WaitingForMembers")
    harness.show_pod()
    harness.members.kind_changed(GROUP.object_kind)
    await harness.reconcile_pod()
    assert not harness.is_gated()
    assert (harness.get_condition() or ("", ""))[:2] == ("True", "Admitted")


async def test_pod_deleted_during_the_lookup_is_not_added(harness: Harness) -> None:
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    answered = harness.server.hold("GET", "/apis/scheduling.x-k8s.io")
    uid = harness.create_pod(meta=LABEL, **FREE)
    look = asyncio.create_task(harness.reconcile_pod())
    await wait_until(lambda: "GET /apis/scheduling.x-k8s.io" in harness.server.requests)
    harness.pods.above.store.clear()
    answered.set()
    await look
    assert harness.admission.gangs.find_member(uid) is None


async def test_verdict_holds_after_installation_of_the_kind_until_marks_change(harness: Harness) -> None:
    uid = harness.create_pod(meta=LABEL, **FREE)
    harness.judged = None  # so that the pod stays gated
    await harness.reconcile_pod()
    assert harness.members.ordinary.is_ordinary(harness.show_pod())
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    harness.change_pod(priority=5)
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None

    harness.stored_pod()["metadata"]["annotations"] = {"vkgateway.io/gang": "web", "vkgateway.io/gang-size": "2"}
    harness.show_pod()
    await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is not None


async def test_bound_pod_is_released_once_its_mark_has_no_meaning(harness: Harness) -> None:
    harness.create_pod(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    await harness.reconcile_pod()
    assert harness.went_on == [KEY]


@pytest.mark.parametrize("seen", ["first", "later"])
async def test_ordinary_running_pod_stays_ordinary_after_installation_of_the_kind(harness: Harness, seen: str) -> None:
    """As after a restart; with `later`, the compute pod is seen only after the pod was read."""
    harness.server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    uid = harness.create_pod(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    runs = compute_view(uid, name="web", annotations={COMPUTE_NODE_ANNOTATION: ""})
    if seen == "first":
        harness.pods.put_compute(runs)
    await harness.reconcile_pod()
    if seen == "later":
        assert harness.admission.gangs.find_member(uid) is not None
        harness.pods.put_compute(runs)
        harness.members.compute_pod_changed(KEY)
        assert harness.reads.unread == {KEY}
        await harness.reconcile_pod()
    assert harness.admission.gangs.find_member(uid) is None
    harness.members.compute_pod_changed(KEY)
    assert harness.reads.unread == set()


@pytest.mark.parametrize("seen", ["first", "later"])
async def test_placed_pod_stays_governed_after_removal_of_the_kind(harness: Harness, seen: str) -> None:
    uid = harness.create_pod(meta=LABEL, **FREE, schedulingGates=[], nodeName="a100.local")
    if seen == "first":
        harness.pods.put_compute(compute_view(uid, name="web"))
    await harness.reconcile_pod()
    if seen == "later":
        assert harness.admission.gangs.find_member(uid) is None
        harness.pods.put_compute(compute_view(uid, name="web"))
        harness.members.compute_pod_changed(KEY)
        assert harness.reads.unread == {KEY}
        await harness.reconcile_pod()
    member = harness.admission.gangs.find_member(uid)
    assert member is not None
    assert member.governed
    harness.members.compute_pod_changed(KEY)
    assert harness.reads.unread == set()

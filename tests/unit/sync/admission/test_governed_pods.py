"""Governed pods and orphans of one tenant, and when their state is complete."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sync.admission.samples import (
    OTHER_POOL,
    POOL,
    compute_view,
    gang_marks,
    make_member,
    tenant_view,
)
from tests.unit.sync.admission.tenant_harness import GANG, KEY, Harness
from vkgateway.api.names import COMPUTE_NODE_ANNOTATION, EVICTION_DEADLINE_ANNOTATION, UID_ANNOTATION
from vkgateway.scheduler.core.decisions import Admit
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.core.snapshot import PodState
from vkgateway.scheduler.service.verdict_store import VerdictStore

# -- governed pods -----------------------------------------------------------------------------------------------------


def test_governed_pods_are_arbitrated() -> None:
    harness = Harness()
    harness.add_pod(make_member("cpu", governed=False, marks=gang_marks()))
    assert harness.admission.is_governed_pod("u1")
    assert not harness.admission.is_governed_pod("cpu")
    assert not harness.admission.is_governed_pod("nobody")


def test_changed_pod_is_enqueued() -> None:
    harness = Harness()
    harness.admit_pod()
    assert harness.get_state() is PodState.PLACED
    pokes = harness.service.pokes
    harness.pods.put_tenant(tenant_view(phase="Failed"))
    assert harness.admission.pod_changed(KEY) == []
    assert harness.service.pokes > pokes
    assert harness.get_state() is None


def test_pod_deleted_in_both_clusters_is_dropped() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.service.recounted.clear()
    harness.pods.drop_tenant()
    assert harness.admission.pod_changed(KEY) == []
    assert harness.get_state() is PodState.ENDING

    harness.pods.drop_compute()
    assert harness.admission.gangs.find_member("u1") is None
    assert harness.get_verdict() is None
    assert not harness.admission.is_governed_pod("u1")
    assert not harness.admission.observer.last_states
    assert not harness.admission._accounting._start_times


@pytest.mark.parametrize(("phase", "minimum"), [("Succeeded", 1), ("Failed", 2)])
def test_completed_and_deleted_member_leaves_the_gang(phase: str, minimum: int) -> None:
    harness = Harness(waits=False)
    for uid in ("u1", "u2"):
        harness.add_pod(make_member(uid, marks=gang_marks(minimum=2)))
    harness.admission.apply_admit(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True), now=harness.now)
    harness.pods.put_compute(compute_view())
    harness.pods.put_compute(compute_view(phase=phase))
    harness.pods.put_tenant(tenant_view(phase=phase))
    harness.admission.pod_changed(KEY)
    harness.pods.drop_tenant()
    harness.pods.drop_compute()

    [gang], _ = harness.admission.gangs.build_gangs()
    assert [pod.uid for pod in gang.pods] == ["u2"]
    assert gang.minimum == minimum


def test_irrelevant_changes_trigger_no_cycle() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.admission.gangs.build_gangs()
    pokes = harness.service.pokes
    harness.pods.put_tenant(tenant_view(phase="Running"))
    harness.admission.pod_changed(KEY)
    harness.pods.put_compute(compute_view(annotations={"example.com/x": "y"}))

    assert harness.service.pokes == pokes


def test_usage_of_an_ended_pod_is_reported_once() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.admission.pod_changed(KEY)
    harness.pods.put_compute(compute_view())
    assert harness.service.ran == []
    harness.now += 60
    harness.pods.put_compute(compute_view(phase="Succeeded"))
    harness.pods.put_compute(compute_view(phase="Succeeded", deletionTimestamp="2026-03-01T12:30:00Z"))
    harness.pods.drop_tenant()
    harness.pods.drop_compute()

    assert [(ran.name, ran.start, ran.end, ran.end_reason) for ran in harness.service.ran] == [
        ("pod-u1", harness.now - 60, harness.now, "Succeeded")
    ]


@pytest.mark.parametrize(
    ("meta", "evicted", "failures"),
    [({}, False, 1), ({"deletionTimestamp": "2026-03-01T12:30:00Z"}, False, 0), ({}, True, 0)],
    ids=["failed", "deleted by its owner", "evicted"],
)
def test_failure_of_a_container_is_recorded_once_for_its_node(
    meta: dict[str, str], evicted: bool, failures: int
) -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    if evicted:
        harness.evict_pod()
    harness.pods.put_tenant(tenant_view(meta=meta))
    for phase in ("Running", "Failed"):
        view = compute_view(phase=phase)
        view.status = b'{"containerStatuses":[{"state":{"terminated":{"exitCode":1}}}]}'
        harness.pods.put_compute(view)

    assert harness.service.failures == [(POOL[0], "host-1", GANG)] * failures


def test_pod_that_never_ran_has_no_usage() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.admission.pod_changed(KEY)
    harness.pods.drop_tenant()
    harness.admission.pod_changed(KEY)
    assert harness.service.ran == []


def test_just_forwarded_pod_is_retained_until_shown_or_expired() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.sent["u1"] = harness.now + 30
    harness.pods.drop_tenant()
    assert harness.admission.pod_changed(KEY) == []
    assert harness.get_state() is PodState.ENDING

    harness.now += 30
    assert [pod.uid for pod in harness.admission.pod_changed(KEY)] == ["u1"]


def test_successor_of_the_same_name_leaves_its_predecessor_terminating() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.pods.put_tenant(tenant_view("u2", meta={"name": "pod-u1"}))
    harness.admission.put_member(make_member("u2", key=KEY))
    harness.admission.pod_changed(KEY)
    gangs, _ = harness.admission.gangs.build_gangs()

    assert {pod.uid: pod.state for gang in gangs for pod in gang.pods} == {
        "u1": PodState.ENDING,
        "u2": PodState.WAITING,
    }


def test_running_pod_is_recounted_when_it_is_read() -> None:
    harness = Harness(waits=False)
    harness.pods.put_compute(compute_view())
    harness.service.recounted.clear()
    harness.add_pod()
    assert harness.service.recounted == ["local/u1"]


# -- orphans -----------------------------------------------------------------------------------------------------------


def test_terminating_orphans_from_before_the_start_are_known() -> None:
    harness = Harness(waits=False)
    harness.pods.put_compute(compute_view("gone"))
    assert harness.admission.orphans.gangs() == [], "before everything is listed, absence is no fact"
    harness.admission.pods_listed()

    assert [gang.id for gang in harness.admission.orphans.gangs()] == ["alpha/default/gone/gone"]
    assert harness.admission.is_governed_pod("gone")
    assert harness.service.recounted == ["local/gone"]

    harness.pods.drop_compute("gone")
    assert harness.admission.orphans.gangs() == []
    assert not harness.admission.is_governed_pod("gone")


@pytest.mark.parametrize(
    "other",
    [
        {"phase": "Succeeded"},
        {"annotations": {COMPUTE_NODE_ANNOTATION: ""}},
        {"node": "", "phase": "Pending", "deletionTimestamp": "2026-03-01T12:30:00Z"},
    ],
    ids=["ended", "not placed", "never ran"],
)
def test_ended_or_unplaced_pods_are_no_orphans(other: dict[str, Any]) -> None:
    harness = Harness(waits=False)
    harness.pods.put_compute(compute_view("gone", **other))
    harness.admission.pods_listed()
    assert harness.admission.orphans.gangs() == []


def test_pods_with_an_owner_are_no_orphans() -> None:
    harness = Harness()
    harness.pods.put_compute(compute_view())
    harness.admission.pods_listed()
    assert harness.admission.orphans.gangs() == []

    harness.pods.put_compute(compute_view(annotations={UID_ANNOTATION: "an-earlier-one"}))
    assert [gang.id for gang in harness.admission.orphans.gangs()] == ["alpha/default/gone/an-earlier-one"]


def test_notice_on_an_orphan_is_ignored() -> None:
    harness = Harness(waits=False)
    harness.admission.pods_listed()
    harness.pods.put_compute(compute_view("gone", annotations={EVICTION_DEADLINE_ANNOTATION: "2026-03-01T12:30:00Z"}))
    gang = harness.admission.orphans.gangs()[0]
    assert gang.pods[0].state is PodState.ENDING


def test_complete_once_all_is_listed_and_read() -> None:
    harness = Harness()
    known = [harness.admission.is_known]
    harness.admission.pods_listed()
    known.append(harness.admission.is_known)
    harness.admission.reads.outdated.add("u9")
    known.append(harness.admission.is_known)
    harness.admission.reads.outdated.clear()
    harness.admission.reads.unread.add(KEY)
    known.append(harness.admission.is_known)
    assert known == [False, True, False, False]


def test_only_pods_created_after_the_first_list_are_metered(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, arrived = Harness(waits=False), list[str]()
    monkeypatch.setattr(harness.service.start_meter, "pod_arrived", lambda _gang, uid, **_times: arrived.append(uid))
    harness.add_pod(make_member("read-before"))
    harness.admission.reads.unread.add(("default", "pod-listed"))
    harness.admission.pods_listed()
    for uid in ("listed", "new", "new"):
        harness.add_pod(make_member(uid))
    harness.admission.pods_listed()
    harness.add_pod(make_member("bound", bound=True))
    harness.add_pod(make_member("newer"))
    assert arrived == ["new", "newer"]


def test_running_pods_must_be_read_before_complete() -> None:
    harness = Harness(waits=False)
    harness.admission.pods_listed()
    harness.pods.put_tenant(tenant_view())
    harness.pods.put_compute(compute_view())
    known = [harness.admission.is_known]
    harness.admission.put_member(make_member(pools=(POOL, OTHER_POOL)))
    known.append(harness.admission.is_known)
    assert known == [False, True]


@pytest.mark.parametrize(
    ("other", "state"),
    [
        ({}, True),
        ({"deletionTimestamp": "2026-03-01T12:30:00Z"}, True),
        ({"phase": "Succeeded"}, None),
        ({"annotations": {COMPUTE_NODE_ANNOTATION: ""}}, False),
        ({"annotations": {UID_ANNOTATION: "an-earlier-one"}}, None),
    ],
    ids=["runs", "ends", "ended", "not placed", "another's"],
)
def test_compute_pod_of_a_tenant_pod_is_found(other: dict[str, Any], state: bool | None) -> None:
    harness = Harness()
    assert harness.admission.observer.is_compute_pod_placed(KEY, "u1") is None
    harness.pods.put_compute(compute_view(**other))
    assert harness.admission.observer.is_compute_pod_placed(KEY, "u1") is state


# -- verdict store -----------------------------------------------------------------------------------------------------


def test_only_an_unknown_verdict_is_taken_from_the_compute_pod() -> None:
    store = VerdictStore()
    known = Admission(verdict=AdmissionState.ADMITTED, pool=POOL, node="n", borrowed=True, since=0.0)
    store.verdicts["u1"] = known
    assert store.recover_verdict(compute_view("u1"), "local") is known
    assert store.recover_verdict(compute_view("u2"), "local").node == "host-1"
    assert store.verdicts.keys() == {"u1", "u2"}

"""The test by which most pods pass the arbiter."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.unit.sync.admission.samples import (
    PodStores,
    RecordingArbitration,
    compute_view,
    make_member,
    tenant_view,
)
from vkgateway.api.names import ADMISSION_GATE, COMPUTE_NODE_ANNOTATION, GANG_ANNOTATION
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.service.controller import AdmissionController
from vkgateway.scheduler.service.pending_reporter import PendingMessage

KEY = ("default", "pod-u1")
PLAIN = tenant_view()


class Harness:
    """Admission of one tenant without servers."""

    def __init__(self) -> None:
        self.pods = PodStores()
        unused = cast(Any, None)
        self.controller = AdmissionController(self.pods.scope, RecordingArbitration(), mirror=unused, claims=unused)


def test_plain_pod_is_not_governed_with_or_without_a_compute_pod() -> None:
    harness = Harness()
    assert not harness.controller.is_governed(KEY, PLAIN)
    assert not harness.controller.is_governed(KEY, None)
    harness.pods.put_compute(compute_view(annotations={COMPUTE_NODE_ANNOTATION: ""}))
    assert not harness.controller.is_governed(KEY, PLAIN)


@pytest.mark.parametrize(
    "fields",
    [
        {"schedulingGates": [{"name": ADMISSION_GATE}]},
        {"meta": {"annotations": {GANG_ANNOTATION: "train"}}},
        {"meta": {"labels": {"ray.io/cluster": "train"}}},
        {"workloadRef": {"name": "train"}},
    ],
)
def test_pod_with_a_gate_or_a_mark_is_governed(fields: dict[str, Any]) -> None:
    assert Harness().controller.is_governed(KEY, tenant_view(**fields))


def test_name_of_a_member_is_governed_until_its_compute_pod_is_deleted() -> None:
    harness = Harness()
    admission = harness.controller.tenant_admission
    admission.put_member(make_member())
    harness.pods.put_compute(compute_view())
    for view in (PLAIN, tenant_view("u2", meta={"name": "pod-u1"}), None):
        assert harness.controller.is_governed(KEY, view)
    harness.controller.drop_pod(PLAIN)
    assert admission.gangs.find_member("u1") is not None
    harness.pods.drop_compute()
    assert harness.controller.is_governed(KEY, None)
    harness.controller.compute_pod_changed(KEY)
    assert not harness.controller.is_governed(KEY, None)


def test_orphan_is_governed_until_its_compute_pod_is_deleted() -> None:
    harness = Harness()
    harness.pods.put_compute(compute_view())
    assert harness.controller.is_governed(KEY, PLAIN), "its marks were removed while no gateway ran"
    harness.controller.tenant_admission.pods_listed()
    assert list(harness.controller.tenant_admission.orphans.gangs())
    harness.pods.drop_compute()
    assert harness.controller.is_governed(KEY, None)
    harness.controller.compute_pod_changed(KEY)
    assert not list(harness.controller.tenant_admission.orphans.gangs())
    assert not harness.controller.is_governed(KEY, None)


def test_reported_pod_whose_gate_a_user_removed_is_governed_until_its_deletion() -> None:
    harness = Harness()
    message = PendingMessage(PendingReason.ROOM, "no room", "no room")
    harness.controller.gate_reconciler.reporter.plan_report("u1", "default/pod/u1", message, now=1.0)
    assert harness.controller.is_governed(KEY, PLAIN)
    harness.controller.drop_pod(PLAIN)
    assert not harness.controller.is_governed(KEY, PLAIN)

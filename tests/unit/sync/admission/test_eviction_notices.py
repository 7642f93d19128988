"""Eviction notices: compute pod first, once, same deadline on both pods, withdrawn from both; promotions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import EPOCH, FakeClock
from tests.unit.sync.admission.samples import TENANT
from tests.unit.sync.scopes import tenant_scope
from vkgateway.api.names import (
    BORROWED_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_LABEL,
    compute_namespace,
)
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.pods.pod_context import PodContext
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS, PODS
from vkgateway.runtime.views.annotations import EVICTED, EVICTED_FOR
from vkgateway.runtime.views.pods import decode_compute_pod, decode_tenant_pod
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.service.eviction_notices import EvictionNotices

COMPUTE_NAMESPACE = compute_namespace(TENANT, "default")
DEADLINE = "2026-03-01T12:30:00Z"
DEADLINE_AT = 1772368200.0
EVICTING = Admission(
    AdmissionState.EVICTING,
    code="PreemptionByVkgateway",
    message="makes room",
    deadline=DEADLINE_AT + 0.9,
    evicted_for="alpha/x",
)


class Harness:
    """Running pod on both servers."""

    def __init__(
        self, tenant_server: FakeApiServer, compute_server: FakeApiServer, client: Client, compute: Client
    ) -> None:
        self.tenant_server, self.compute_server = tenant_server, compute_server
        self.link = ComputeLink("local", compute)
        self.notices = EvictionNotices(tenant_scope(client, clock=FakeClock(1000.0, origin=EPOCH)))
        tenant_server.store.create(PODS, {"metadata": {"name": "web"}, "spec": {"nodeName": "a100.local"}}, "default")
        compute_server.store.create(
            PODS,
            {
                "metadata": {
                    "name": "web",
                    "labels": {TENANT_LABEL: TENANT},
                    "annotations": {NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web"},
                },
                "spec": {"nodeName": "host-1"},
            },
            COMPUTE_NAMESPACE,
        )

    def make_context(self, admission: Admission = EVICTING) -> PodContext:
        """Return the context as the watches show it now."""
        return PodContext(
            key=("default", "web"),
            link=self.link,
            tenant=decode_tenant_pod(json.dumps(self.tenant_pod()).encode()),
            compute=decode_compute_pod(json.dumps(self.compute_pod()).encode()),
            binding=None,
            admission=admission,
        )

    def tenant_pod(self) -> Object:
        return self.tenant_server.store.get(PODS, "web", "default")

    def compute_pod(self) -> Object:
        return self.compute_server.store.get(PODS, "web", COMPUTE_NAMESPACE)

    def list_deadlines(self) -> tuple[str | None, str | None]:
        """Return the deadlines of the tenant pod and the compute pod."""
        found = [
            (pod["metadata"].get("annotations") or {}).get(EVICTION_DEADLINE_ANNOTATION)
            for pod in (self.tenant_pod(), self.compute_pod())
        ]
        return found[0], found[1]

    def get_condition(self) -> tuple[str, str] | None:
        for entry in self.tenant_pod()["status"].get("conditions", ()):
            if entry["type"] == "DisruptionTarget":
                return entry["status"], entry["reason"]
        return None

    def list_events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in self.tenant_server.store.all(EVENTS)]

    def list_requests(self) -> int:
        return len(self.tenant_server.requests) + len(self.compute_server.requests)


@pytest.fixture
async def harness() -> AsyncIterator[Harness]:
    async with (
        FakeApiServer() as tenant_server,
        FakeApiServer() as compute_server,
        tenant_server.client() as client,
        compute_server.client() as compute,
    ):
        yield Harness(tenant_server, compute_server, client, compute)


async def test_notice_is_written_to_both_pods_with_the_same_deadline(harness: Harness) -> None:
    await harness.notices.give_notice(harness.make_context())

    assert harness.list_deadlines() == (DEADLINE, DEADLINE)
    assert harness.compute_pod()["metadata"]["annotations"][EVICTED_FOR] == "alpha/x"
    assert EVICTED_FOR not in harness.tenant_pod()["metadata"]["annotations"], (
        "a tenant learns of no other tenant's gangs"
    )
    assert harness.get_condition() == ("True", "PreemptionByVkgateway")
    assert harness.list_events() == [("PreemptionByVkgateway", f"makes room; it is deleted at {DEADLINE}")]


async def test_notice_is_written_once(harness: Harness) -> None:
    await harness.notices.give_notice(harness.make_context())
    requests = harness.list_requests()
    await harness.notices.give_notice(harness.make_context())
    assert harness.list_requests() == requests


async def test_tenant_pod_is_not_notified_before_the_compute_pod(harness: Harness) -> None:
    harness.compute_server.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await harness.notices.give_notice(harness.make_context())
    assert harness.tenant_server.requests == []

    harness.tenant_server.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await harness.notices.give_notice(harness.make_context())
    assert harness.list_deadlines() == (None, DEADLINE)

    await harness.notices.give_notice(harness.make_context())
    assert harness.list_deadlines() == (DEADLINE, DEADLINE)
    assert len(harness.list_events()) == 1


async def test_tenant_annotation_is_written_last(harness: Harness) -> None:
    harness.tenant_server.fail("PATCH", "/pods/web?", status=503)
    with pytest.raises(errors.ApiError):
        await harness.notices.give_notice(harness.make_context())
    assert harness.get_condition() == ("True", "PreemptionByVkgateway")
    assert harness.list_deadlines() == (None, DEADLINE)


async def test_new_deadline_replaces_the_old_one(harness: Harness) -> None:
    await harness.notices.give_notice(harness.make_context())
    later = Admission(
        AdmissionState.EVICTING, code="PreemptionByVkgateway", message="makes room", deadline=DEADLINE_AT + 60
    )
    await harness.notices.give_notice(harness.make_context(later))
    assert harness.list_deadlines() == ("2026-03-01T12:31:00Z", "2026-03-01T12:31:00Z")


async def test_run_limit_reached_under_notice_replaces_the_reason(harness: Harness) -> None:
    await harness.notices.give_notice(harness.make_context())
    limit = replace(EVICTING, code="RunLimitReached", message="reaches its limit", evicted_for="")
    for _ in range(2):
        await harness.notices.give_notice(harness.make_context(limit))

    assert harness.get_condition() == ("True", "RunLimitReached")
    assert [reason for reason, _ in harness.list_events()] == ["PreemptionByVkgateway", "RunLimitReached"]
    assert harness.compute_pod()["metadata"]["annotations"][EVICTED] == "RunLimitReached: reaches its limit"
    assert harness.list_deadlines() == (DEADLINE, DEADLINE)


async def test_eviction_at_the_run_limit_leaves_a_pod_inside_its_guarantee(harness: Harness) -> None:
    limit = replace(EVICTING, code="RunLimitReached", message="reaches its limit", evicted_for="")
    await harness.notices.give_notice(harness.make_context(limit))
    assert BORROWED_ANNOTATION not in harness.compute_pod()["metadata"]["annotations"]


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
async def test_pods_deleted_during_the_request_are_no_error(
    harness: Harness, side: str, status: int, reason: str
) -> None:
    server = harness.tenant_server if side == "above" else harness.compute_server
    server.fail("PATCH", "/pods/web", status=status, reason=reason, times=3)
    await harness.notices.give_notice(harness.make_context())


async def test_notice_is_withdrawn_from_both_pods(harness: Harness) -> None:
    await harness.notices.give_notice(harness.make_context())
    await harness.notices.withdraw_notice(harness.make_context(Admission(AdmissionState.ADMITTED)))

    assert harness.list_deadlines() == (None, None)
    assert EVICTED_FOR not in harness.compute_pod()["metadata"]["annotations"]
    assert harness.get_condition() == ("False", "EvictionWithdrawn")
    assert [reason for reason, _ in harness.list_events()] == ["PreemptionByVkgateway", "EvictionWithdrawn"]

    requests = harness.list_requests()
    await harness.notices.withdraw_notice(harness.make_context(Admission(AdmissionState.ADMITTED)))
    assert harness.list_requests() == requests


async def test_notice_on_the_compute_pod_only_is_withdrawn(harness: Harness) -> None:
    await harness.notices.give_notice(harness.make_context())
    harness.compute_server.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await harness.notices.withdraw_notice(harness.make_context(Admission(AdmissionState.ADMITTED)))
    assert harness.list_deadlines() == (None, DEADLINE)

    await harness.notices.withdraw_notice(harness.make_context(Admission(AdmissionState.ADMITTED)))
    assert harness.list_deadlines() == (None, None)
    assert [reason for reason, _ in harness.list_events()].count("EvictionWithdrawn") == 1


async def test_no_request_is_sent_without_a_notice(harness: Harness) -> None:
    await harness.notices.withdraw_notice(harness.make_context(Admission(AdmissionState.ADMITTED)))
    assert harness.list_requests() == 0


def _set_borrowed(harness: Harness, annotation: str) -> None:
    compute_pod = harness.compute_pod()
    compute_pod["metadata"]["annotations"][BORROWED_ANNOTATION] = annotation
    harness.compute_server.store.update(PODS, compute_pod, name="web", namespace=COMPUTE_NAMESPACE)


async def test_promotion_is_recorded_once_and_reported_to_the_tenant(harness: Harness) -> None:
    _set_borrowed(harness, "true")
    for _ in range(2):
        await harness.notices.mark_promoted(harness.make_context(Admission(AdmissionState.ADMITTED, borrowed=False)))
    assert harness.compute_pod()["metadata"]["annotations"][BORROWED_ANNOTATION] == "false"
    assert [reason for reason, _ in harness.list_events()] == ["InsideGuarantee"]
    assert len([request for request in harness.compute_server.requests if request.startswith("PATCH")]) == 1


@pytest.mark.parametrize("borrowed", [True, None])
async def test_borrowing_or_unknown_pods_are_not_promoted(harness: Harness, borrowed: bool | None) -> None:
    _set_borrowed(harness, "true")
    requests = harness.list_requests()
    await harness.notices.mark_promoted(harness.make_context(Admission(AdmissionState.ADMITTED, borrowed=borrowed)))
    assert harness.list_requests() == requests


async def test_unrecorded_promotion_is_not_reported(harness: Harness) -> None:
    _set_borrowed(harness, "true")
    harness.compute_server.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await harness.notices.mark_promoted(harness.make_context(Admission(AdmissionState.ADMITTED, borrowed=False)))
    assert harness.list_events() == []

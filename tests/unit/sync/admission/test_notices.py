"""Notices: below first, once, the same deadline on both sides, off on both when they do not hold; promotions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.sync.admission.samples import TENANT
from vkgateway.arbiter.queueing.node_limits import Admission
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import EVENTS, PODS
from vkgateway.model.names import (
    BORROWED_ANNOTATION,
    EVICTION_DEADLINE_ANNOTATION,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_LABEL,
    compute_namespace,
)
from vkgateway.model.objects import Object
from vkgateway.sync.admission.eviction_notices import EvictionNotices
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.pods.pod_context import PodContext
from vkgateway.sync.views.annotations import EVICTED_FOR
from vkgateway.sync.views.pods import decode_compute_pod, decode_tenant_pod

BELOW = compute_namespace(TENANT, "default")
DEADLINE = "2026-03-01T12:30:00Z"
DEADLINE_AT = 1772368200.0
EVICTING = Admission(
    "evicting", code="PreemptionByVkgateway", message="makes room", deadline=DEADLINE_AT + 0.9, evicted_for="alpha/x"
)


class Made:
    """A pod that runs, on both servers."""

    def __init__(self, above: FakeApiServer, below: FakeApiServer, client: Client, compute: Client) -> None:
        self.above, self.below = above, below
        self.link = ComputeLink("local", compute)
        self.notices = EvictionNotices(client, events=EventRecorder(client, clock=lambda: 1000.0), clock=lambda: 1000.0)
        above.store.create(PODS, {"metadata": {"name": "web"}, "spec": {"nodeName": "a100.local"}}, "default")
        below.store.create(
            PODS,
            {
                "metadata": {
                    "name": "web",
                    "labels": {TENANT_LABEL: TENANT},
                    "annotations": {NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web"},
                },
                "spec": {"nodeName": "host-1"},
            },
            BELOW,
        )

    def case(self, admission: Admission = EVICTING) -> PodContext:
        """As the watches show it now."""
        return PodContext(
            key=("default", "web"),
            link=self.link,
            tenant=decode_tenant_pod(json.dumps(self.pod_above()).encode()),
            compute=decode_compute_pod(json.dumps(self.pod_below()).encode()),
            binding=None,
            admission=admission,
        )

    def pod_above(self) -> Object:
        return self.above.store.get(PODS, "web", "default")

    def pod_below(self) -> Object:
        return self.below.store.get(PODS, "web", BELOW)

    def deadlines(self) -> tuple[str | None, str | None]:
        """Above and below."""
        found = [
            (pod["metadata"].get("annotations") or {}).get(EVICTION_DEADLINE_ANNOTATION)
            for pod in (self.pod_above(), self.pod_below())
        ]
        return found[0], found[1]

    def condition(self) -> tuple[str, str] | None:
        for entry in self.pod_above()["status"].get("conditions", ()):
            if entry["type"] == "DisruptionTarget":
                return entry["status"], entry["reason"]
        return None

    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["message"]) for event in self.above.store.all(EVENTS)]

    def asked(self) -> int:
        return len(self.above.requests) + len(self.below.requests)


@pytest.fixture
async def made() -> AsyncIterator[Made]:
    async with FakeApiServer() as above, FakeApiServer() as below, above.client() as client, below.client() as compute:
        yield Made(above, below, client, compute)


async def test_a_notice_is_given_on_both_sides_with_the_same_deadline(made: Made) -> None:
    await made.notices.give_notice(made.case())

    assert made.deadlines() == (DEADLINE, DEADLINE)
    assert made.pod_below()["metadata"]["annotations"][EVICTED_FOR] == "alpha/x"
    assert EVICTED_FOR not in made.pod_above()["metadata"]["annotations"], "nobody else's gangs are told to a tenant"
    assert made.condition() == ("True", "PreemptionByVkgateway")
    assert made.events() == [("PreemptionByVkgateway", f"makes room; it is deleted at {DEADLINE}")]


async def test_it_is_given_once(made: Made) -> None:
    await made.notices.give_notice(made.case())
    asked = made.asked()
    await made.notices.give_notice(made.case())
    assert made.asked() == asked


async def test_the_tenant_is_not_told_before_the_pod_is(made: Made) -> None:
    made.below.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await made.notices.give_notice(made.case())
    assert made.above.requests == []

    made.above.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await made.notices.give_notice(made.case())
    assert made.deadlines() == (None, DEADLINE)

    await made.notices.give_notice(made.case())
    assert made.deadlines() == (DEADLINE, DEADLINE)
    assert len(made.events()) == 1


async def test_the_annotation_above_is_written_last_so_that_nothing_is_left_out(made: Made) -> None:
    made.above.fail("PATCH", "/pods/web?", status=503)
    with pytest.raises(errors.ApiError):
        await made.notices.give_notice(made.case())
    assert made.condition() == ("True", "PreemptionByVkgateway")
    assert made.deadlines() == (None, DEADLINE)


async def test_a_new_deadline_takes_the_place_of_the_old(made: Made) -> None:
    await made.notices.give_notice(made.case())
    later = Admission("evicting", code="PreemptionByVkgateway", message="makes room", deadline=DEADLINE_AT + 60)
    await made.notices.give_notice(made.case(later))
    assert made.deadlines() == ("2026-03-01T12:31:00Z", "2026-03-01T12:31:00Z")


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
async def test_pods_that_went_meanwhile_are_no_error(made: Made, side: str, status: int, reason: str) -> None:
    server = made.above if side == "above" else made.below
    server.fail("PATCH", "/pods/web", status=status, reason=reason, times=3)
    await made.notices.give_notice(made.case())


async def test_a_notice_is_withdrawn_on_both_sides(made: Made) -> None:
    await made.notices.give_notice(made.case())
    await made.notices.withdraw_notice(made.case(Admission("admitted")))

    assert made.deadlines() == (None, None)
    assert EVICTED_FOR not in made.pod_below()["metadata"]["annotations"]
    assert made.condition() == ("False", "EvictionWithdrawn")
    assert [reason for reason, _ in made.events()] == ["PreemptionByVkgateway", "EvictionWithdrawn"]

    asked = made.asked()
    await made.notices.withdraw_notice(made.case(Admission("admitted")))
    assert made.asked() == asked


async def test_what_is_left_of_a_notice_below_is_taken_off_though_above_it_is_gone(made: Made) -> None:
    await made.notices.give_notice(made.case())
    made.below.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await made.notices.withdraw_notice(made.case(Admission("admitted")))
    assert made.deadlines() == (None, DEADLINE)

    await made.notices.withdraw_notice(made.case(Admission("admitted")))
    assert made.deadlines() == (None, None)
    assert [reason for reason, _ in made.events()].count("EvictionWithdrawn") == 1


async def test_where_no_notice_stands_nothing_is_asked_of_anybody(made: Made) -> None:
    await made.notices.withdraw_notice(made.case(Admission("admitted")))
    assert made.asked() == 0


def _borrows(made: Made, told: str) -> None:
    below = made.pod_below()
    below["metadata"]["annotations"][BORROWED_ANNOTATION] = told
    made.below.store.update(PODS, below, name="web", namespace=BELOW)


async def test_who_borrows_no_longer_has_that_written_down_once_and_its_tenant_is_told(made: Made) -> None:
    _borrows(made, "true")
    for _ in range(2):
        await made.notices.mark_promoted(made.case(Admission("admitted", borrowed=False)))
    assert made.pod_below()["metadata"]["annotations"][BORROWED_ANNOTATION] == "false"
    assert [reason for reason, _ in made.events()] == ["InsideGuarantee"]
    assert len([request for request in made.below.requests if request.startswith("PATCH")]) == 1


@pytest.mark.parametrize("borrowed", [True, None])
async def test_who_borrows_or_of_whom_nothing_is_known_stays_as_it_is(made: Made, borrowed: bool | None) -> None:
    _borrows(made, "true")
    asked = made.asked()
    await made.notices.mark_promoted(made.case(Admission("admitted", borrowed=borrowed)))
    assert made.asked() == asked


async def test_a_tenant_is_not_told_of_a_promotion_that_could_not_be_written(made: Made) -> None:
    _borrows(made, "true")
    made.below.fail("PATCH", "/pods/web", status=503)
    with pytest.raises(errors.ApiError):
        await made.notices.mark_promoted(made.case(Admission("admitted", borrowed=False)))
    assert made.events() == []

"""Whom a change in a compute cluster is told: its tenant; what only looks like a tenant's concerns nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from vkgateway.kube.client import Client
from vkgateway.model.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    SYSTEM_NAMESPACE,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.model.objects import Meta, NamespaceView, ObjectView
from vkgateway.sync.compute.event_views import EventView
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.listener import Listener
from vkgateway.sync.views.annotations import TOKEN_OF
from vkgateway.translate.disruption_budgets import DisruptionBudgetView
from vkgateway.translate.network_policies import NetworkPolicyView
from vkgateway.translate.services import SERVICE_NAME_LABEL, ServiceView, SliceView
from vkgateway.translate.storage.views import ClaimView

INSIDE = compute_namespace("alpha", "default")


class Ear:
    """Writes down what a tenant hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *said: self.heard.append((name, *said))


@pytest.fixture
def link() -> ComputeLink:
    return ComputeLink("local", Client("http://127.0.0.1:1"))


@pytest.fixture
def ear(link: ComputeLink) -> Ear:
    """That of tenant alpha; there is a tenant beta, too."""
    link.add_listener("beta", cast("Listener", Ear()))
    ear = Ear()
    link.add_listener("alpha", cast("Listener", ear))
    return ear


def meta(namespace: str = INSIDE, *, labels: dict[str, str] | None = None) -> Meta:
    return Meta(
        name="web",
        namespace=namespace,
        uid="below",
        labels={TENANT_LABEL: "alpha", **(labels or {})},
        annotations={NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web", UID_ANNOTATION: "u1"},
    )


def put(reflector: Any, old: object, new: object) -> None:
    """As if the watch had told it."""
    reflector._on_change(old, new)


KEY = ("default", "web")
SLICE = SliceView(metadata=meta(labels={SERVICE_NAME_LABEL: "web"}))


@pytest.mark.parametrize(
    ("kind", "view", "said"),
    [
        ("services", ServiceView(metadata=meta()), ("compute_service_changed", KEY)),
        ("services", ServiceView(metadata=meta(SYSTEM_NAMESPACE)), ("compute_names_changed",)),
        ("slices", SLICE, ("compute_service_changed", KEY)),
        ("slices", SliceView(metadata=meta(SYSTEM_NAMESPACE)), ("compute_names_changed",)),
        ("policies", NetworkPolicyView(metadata=meta()), ("compute_policy_changed", "default")),
        ("budgets", DisruptionBudgetView(metadata=meta()), ("compute_budget_changed", KEY)),
        ("claims", ClaimView(metadata=meta()), ("compute_claim_changed", "u1")),
    ],
)
@pytest.mark.parametrize("went", [False, True])
def test_its_tenant_hears_of_it(link: ComputeLink, ear: Ear, kind: str, view: Any, said: Any, went: bool) -> None:
    put(getattr(link, kind), view if went else None, None if went else view)
    assert ear.heard == [said]


@pytest.mark.parametrize(
    ("kind", "view"),
    [
        ("services", ServiceView(metadata=meta("elsewhere"))),
        ("slices", SliceView(metadata=meta("elsewhere"))),
        ("policies", NetworkPolicyView(metadata=meta("elsewhere"))),
        ("budgets", DisruptionBudgetView(metadata=meta("elsewhere"))),
        ("claims", ClaimView(metadata=meta("elsewhere"))),
        ("namespaces", NamespaceView(metadata=meta(""))),
    ],
)
def test_what_merely_wears_the_label_is_nobodys(link: ComputeLink, ear: Ear, kind: str, view: Any) -> None:
    put(getattr(link, kind), None, view)
    assert ear.heard == []
    assert link.claims.claim_uids("alpha") == []


def test_who_listens_no_more_hears_nothing(link: ComputeLink, ear: Ear) -> None:
    link.remove_listener("alpha")
    put(link.services, None, ServiceView(metadata=meta()))
    put(link.claims, None, ClaimView(metadata=meta()))
    assert ear.heard == []
    assert link.claims.claim_uids("alpha") == ["u1"]


def test_a_copy_is_told_always_and_tokens_when_they_went(link: ComputeLink, ear: Ear) -> None:
    copies, tokens_of_builder = link.copies["secrets"], meta()
    tokens_of_builder.annotations[TOKEN_OF] = "builder"
    put(copies, None, ObjectView(metadata=meta()))
    assert ear.heard == [("compute_copy_changed", "secrets", KEY)]

    tokens = ObjectView(metadata=tokens_of_builder)
    put(copies, None, tokens)
    assert len(ear.heard) == 1
    put(copies, tokens, None)
    assert ear.heard[1:] == [("compute_tokens_gone", ("default", "builder"))]


def test_a_claim_is_found_until_that_very_one_went(link: ComputeLink, ear: Ear) -> None:
    claim = ClaimView(metadata=meta())
    link.claims.store[claim.metadata.key] = claim
    put(link.claims, None, claim)
    assert link.claims.find_claim("alpha", "u1") is claim
    assert link.claims.find_claim("beta", "u1") is None

    kept = meta()
    kept.name = "web-of-old"
    put(link.claims, ClaimView(metadata=kept), None)
    assert link.claims.claim_uids("alpha") == ["u1"]
    put(link.claims, claim, None)
    assert link.claims.find_claim("alpha", "u1") is None
    assert ear.heard == [("compute_claim_changed", "u1")] * 3


def test_an_event_that_comes_before_its_namespace_is_kept(link: ComputeLink, ear: Ear) -> None:
    event = EventView(metadata=Meta(name="started", namespace=INSIDE))
    put(link.events, None, event)
    assert ear.heard == []

    namespace = NamespaceView(
        metadata=Meta(name=INSIDE, labels={TENANT_LABEL: "alpha"}, annotations={NAME_ANNOTATION: "default"})
    )
    link.namespaces.store["", INSIDE] = namespace
    put(link.namespaces, None, namespace)
    assert link.events.of_tenant("alpha") == [(INSIDE, "started")]
    assert link.events.of_tenant("beta") == []
    put(link.events, event, event)
    assert ear.heard == [
        ("compute_namespace_changed", "default"),
        ("compute_event_changed", "local", (INSIDE, "started")),
    ]

    put(link.events, event, None)
    assert link.events.of_tenant("alpha") == []

"""Changes in a compute cluster notify the tenant that owns the object; objects without an owner notify no tenant."""

from __future__ import annotations

from typing import Any

import pytest

from vkgateway.api.names import (
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    SYSTEM_NAMESPACE,
    TENANT_LABEL,
    UID_ANNOTATION,
    compute_namespace,
)
from vkgateway.api.objects import Meta, NamespaceView, ObjectView
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.budgets.translation import DisruptionBudgetView
from vkgateway.kinds.budgets.watch import COMPUTE_BUDGETS, ComputeBudgets
from vkgateway.kinds.catalogue import WATCHES
from vkgateway.kinds.events.views import EventView
from vkgateway.kinds.policies.translation import NetworkPolicyView
from vkgateway.kinds.services.translation import SERVICE_NAME_LABEL, ServiceView, SliceView
from vkgateway.kinds.sources import (
    COMPUTE_CLAIMS,
    COMPUTE_COPIES,
    COMPUTE_EVENTS,
    COMPUTE_NAMESPACES,
    COMPUTE_PLATFORM_SERVICES,
    COMPUTE_POLICIES,
    COMPUTE_SERVICES,
    COMPUTE_TOKENS,
    Source,
    Watches,
)
from vkgateway.kinds.volumes.translation.views import ClaimView
from vkgateway.kube.client import Client
from vkgateway.runtime.views.annotations import TOKEN_OF

INSIDE = compute_namespace("alpha", "default")


class RecordingListener(Watches):
    """Watches that record their notifications."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Any, ...]] = []

    def notify(self, source: Source[*tuple[Any, ...]], *change: Any) -> None:  # type: ignore[override]
        self.heard.append((source, *change))


@pytest.fixture
def link() -> ComputeLink:
    return ComputeLink("local", Client("http://127.0.0.1:1"), kinds=WATCHES)


@pytest.fixture
def listener(link: ComputeLink) -> RecordingListener:
    """Watches of tenant alpha; tenant beta has some, too."""
    link.watches.tenants["beta"] = RecordingListener()
    listener = link.watches.tenants["alpha"] = RecordingListener()
    return listener


def make_meta(namespace: str = INSIDE, *, labels: dict[str, str] | None = None) -> Meta:
    return Meta(
        name="web",
        namespace=namespace,
        uid="below",
        labels={TENANT_LABEL: "alpha", **(labels or {})},
        annotations={NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web", UID_ANNOTATION: "u1"},
    )


def watch_of(link: ComputeLink, kind: str | type[Any]) -> Any:
    return getattr(link, kind) if isinstance(kind, str) else link.watch_of(kind)


def put_object(reflector: Any, old: object, new: object) -> None:
    """Store an object as the watch would."""
    reflector._on_change(old, new)


KEY = ("default", "web")
SLICE = SliceView(metadata=make_meta(labels={SERVICE_NAME_LABEL: "web"}))


@pytest.mark.parametrize(
    ("kind", "view", "calls"),
    [
        ("services", ServiceView(metadata=make_meta()), (COMPUTE_SERVICES, KEY)),
        ("services", ServiceView(metadata=make_meta(SYSTEM_NAMESPACE)), (COMPUTE_PLATFORM_SERVICES,)),
        ("slices", SLICE, (COMPUTE_SERVICES, KEY)),
        ("slices", SliceView(metadata=make_meta(SYSTEM_NAMESPACE)), (COMPUTE_PLATFORM_SERVICES,)),
        ("policies", NetworkPolicyView(metadata=make_meta()), (COMPUTE_POLICIES, "default")),
        (ComputeBudgets, DisruptionBudgetView(metadata=make_meta()), (COMPUTE_BUDGETS, KEY)),
        ("claims", ClaimView(metadata=make_meta()), (COMPUTE_CLAIMS, "u1")),
    ],
)
@pytest.mark.parametrize("went", [False, True])
def test_tenant_is_notified_of_its_object(
    link: ComputeLink, listener: RecordingListener, kind: str | type[Any], view: Any, calls: Any, went: bool
) -> None:
    put_object(watch_of(link, kind), view if went else None, None if went else view)
    assert listener.heard == [calls]


@pytest.mark.parametrize(
    ("kind", "view"),
    [
        ("services", ServiceView(metadata=make_meta("elsewhere"))),
        ("slices", SliceView(metadata=make_meta("elsewhere"))),
        ("policies", NetworkPolicyView(metadata=make_meta("elsewhere"))),
        (ComputeBudgets, DisruptionBudgetView(metadata=make_meta("elsewhere"))),
        ("claims", ClaimView(metadata=make_meta("elsewhere"))),
        ("namespaces", NamespaceView(metadata=make_meta(""))),
    ],
)
def test_object_with_only_the_label_has_no_owner(
    link: ComputeLink, listener: RecordingListener, kind: str | type[Any], view: Any
) -> None:
    put_object(watch_of(link, kind), None, view)
    assert listener.heard == []
    assert link.claims.claim_uids("alpha") == []


def test_removed_listener_is_not_notified(link: ComputeLink, listener: RecordingListener) -> None:
    del link.watches.tenants["alpha"]
    put_object(link.services, None, ServiceView(metadata=make_meta()))
    put_object(link.claims, None, ClaimView(metadata=make_meta()))
    assert listener.heard == []
    assert link.claims.claim_uids("alpha") == ["u1"]


def test_copies_notify_on_every_change_and_tokens_on_deletion(link: ComputeLink, listener: RecordingListener) -> None:
    copies, tokens_of_builder = link.copies["secrets"], make_meta()
    tokens_of_builder.annotations[TOKEN_OF] = "builder"
    put_object(copies, None, ObjectView(metadata=make_meta()))
    assert listener.heard == [(COMPUTE_COPIES, "secrets", KEY)]

    tokens = ObjectView(metadata=tokens_of_builder)
    put_object(copies, None, tokens)
    assert len(listener.heard) == 1
    put_object(copies, tokens, None)
    assert listener.heard[1:] == [(COMPUTE_TOKENS, ("default", "builder"))]


def test_claim_is_found_until_that_object_is_deleted(link: ComputeLink, listener: RecordingListener) -> None:
    claim = ClaimView(metadata=make_meta())
    link.claims.store[claim.metadata.key] = claim
    put_object(link.claims, None, claim)
    assert link.claims.find_claim("alpha", "u1") is claim
    assert link.claims.find_claim("beta", "u1") is None

    kept = make_meta()
    kept.name = "web-of-old"
    put_object(link.claims, ClaimView(metadata=kept), None)
    assert link.claims.claim_uids("alpha") == ["u1"]
    put_object(link.claims, claim, None)
    assert link.claims.find_claim("alpha", "u1") is None
    assert listener.heard == [(COMPUTE_CLAIMS, "u1")] * 3


def test_event_before_its_namespace_is_indexed(link: ComputeLink, listener: RecordingListener) -> None:
    event = EventView(metadata=Meta(name="started", namespace=INSIDE))
    put_object(link.events, None, event)
    assert listener.heard == []

    namespace = NamespaceView(
        metadata=Meta(name=INSIDE, labels={TENANT_LABEL: "alpha"}, annotations={NAME_ANNOTATION: "default"})
    )
    link.namespaces.store["", INSIDE] = namespace
    put_object(link.namespaces, None, namespace)
    assert link.events.of_tenant("alpha") == [(INSIDE, "started")]
    assert link.events.of_tenant("beta") == []
    put_object(link.events, event, event)
    assert listener.heard == [
        (COMPUTE_NAMESPACES, "default"),
        (COMPUTE_EVENTS, "local", (INSIDE, "started")),
    ]

    put_object(link.events, event, None)
    assert link.events.of_tenant("alpha") == []

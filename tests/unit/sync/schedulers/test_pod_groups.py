"""Reconciler of Volcano's objects against a fake API server: PodGroups are in the namespaces of their pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.waiting import wait_until
from tests.unit.background import in_background
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube.resources import NAMESPACES, PRIORITY_CLASSES
from vkgateway.scheduler.backends.attempt_reconciler import AttemptReconciler
from vkgateway.scheduler.backends.mode import ModeResult
from vkgateway.scheduler.backends.names import DIGEST_ANNOTATION, GANG_ANNOTATION, MODE_LABEL, TENANT_ANNOTATION
from vkgateway.scheduler.backends.pool_objects import delete_everything
from vkgateway.scheduler.backends.volcano.kinds import POD_GROUPS, QUEUES, VOLCANO_KINDS
from vkgateway.scheduler.backends.volcano.mode import PodGroupView
from vkgateway.scheduler.backends.volcano.names import API_VERSION
from vkgateway.scheduler.core.decisions import Decisions

GANG = "a/default/gang/train"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer(rights=Rights.of_compute()) as created:
        for kind in (POD_GROUPS, QUEUES, PRIORITY_CLASSES):
            created.register(kind)
        created.store.namespaces_must_exist = True
        yield created


def pod_group() -> Object:
    annotations = {TENANT_ANNOTATION: "a", GANG_ANNOTATION: GANG, DIGEST_ANNOTATION: "d"}
    metadata = {"name": "a-1", "namespace": "a--default", "labels": {MODE_LABEL: "volcano"}, "annotations": annotations}
    return {"apiVersion": API_VERSION, "kind": "PodGroup", "metadata": metadata, "spec": {"minMember": 2}}


def pool_object(kind: str, name: str, version: str) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": {MODE_LABEL: "volcano"}}}


async def test_attempt_waits_for_the_namespace_of_its_pods(server: FakeApiServer) -> None:
    missing: list[str] = []
    async with server.client() as client:
        link = ComputeLink("local", client, GatewayIdentity("g1"))
        reconciler: AttemptReconciler[PodGroupView] = AttemptReconciler(
            VOLCANO_KINDS, link, on_change=lambda: None, on_missing_namespace=missing.append
        )
        async with in_background(reconciler.run()):
            await wait_until(lambda: reconciler.is_known)
            result = ModeResult(decisions=Decisions(), creates=(pod_group(),), unsettled_tenants=frozenset())
            reconciler.apply(result)
            await wait_until(lambda: missing == [GANG])
            server.store.create(NAMESPACES, {"metadata": {"name": "a--default"}})
            reconciler.apply(replace(result))  # each cycle has a result of its own
            await wait_until(lambda: "a-1" in reconciler.attempts())
            attempt = reconciler.attempts()["a-1"]
            assert (attempt.namespace, attempt.tenant) == ("a--default", "a")
            reconciler.apply(ModeResult(decisions=Decisions(), releases=(attempt,), unsettled_tenants=frozenset()))
            await wait_until(lambda: not reconciler.attempts())


async def test_queues_and_classes_exist_before_the_attempts_that_name_them(server: FakeApiServer) -> None:
    server.store.create(NAMESPACES, {"metadata": {"name": "a--default"}})
    async with server.client() as client:
        link = ComputeLink("local", client, GatewayIdentity("g1"))
        reconciler: AttemptReconciler[PodGroupView] = AttemptReconciler(VOLCANO_KINDS, link, on_change=lambda: None)
        async with in_background(reconciler.run()):
            await wait_until(lambda: reconciler.is_known)
            objects = (
                pool_object("Queue", "a.pool", API_VERSION),
                pool_object("PriorityClass", "vkgateway-volcano-900", "scheduling.k8s.io/v1"),
            )
            reconciler.apply(
                ModeResult(
                    decisions=Decisions(),
                    creates=(pod_group(),),
                    pool_objects=objects,
                    unsettled_tenants=frozenset(),
                )
            )
            await wait_until(lambda: "a-1" in reconciler.attempts())
            versions = {
                kind.kind: int(server.store.all(kind)[0]["metadata"]["resourceVersion"])
                for kind in (POD_GROUPS, QUEUES, PRIORITY_CLASSES)
            }
            assert max(versions, key=lambda kind: versions[kind]) == "PodGroup"
        await delete_everything(VOLCANO_KINDS, link)
        assert not any(server.store.all(kind) for kind in (POD_GROUPS, QUEUES, PRIORITY_CLASSES))

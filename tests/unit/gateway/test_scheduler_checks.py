"""Condition SchedulersReady of a ComputeCluster."""

from __future__ import annotations

import json

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.gateway.scheduler_checks import KueueState, QueueView, read_kueue, scheduler_verdict
from vkgateway.model.api import Pool, PoolScheduling
from vkgateway.model.objects import Condition, Meta
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.tenant_owners import GatewayIdentity
from vkgateway.sync.schedulers.kueue import CLUSTER_QUEUES, LOCAL_QUEUES

POOL = Pool(name="a100", scheduling=PoolScheduling(mode="kueue"))
NATIVE = Pool(name="v100")
IN_EFFECT = {"a100": "kueue", "v100": "native"}


def queue(*conditions: Condition) -> QueueView:
    document = {
        "metadata": {"name": "a.a100", "labels": {"vkgateway.io/pool": "a100"}},
        "status": {
            "conditions": [{"type": each.type, "status": each.status, "message": each.message} for each in conditions]
        },
    }
    import msgspec

    return msgspec.convert(document, QueueView)


def test_native_pools_have_no_condition() -> None:
    assert scheduler_verdict([NATIVE], IN_EFFECT, None) is None


@pytest.mark.parametrize(
    ("kueue", "status", "reason", "text"),
    [
        (None, "Unknown", "SchedulerUnknown", "not known yet"),
        (KueueState(is_served=False), "False", "SchedulerMissing", "install Kueue there, or set scheduling.mode"),
        (KueueState(is_served=True, queues=(queue(),)), "False", "QueuesInactive", "does not answer"),
        (
            KueueState(is_served=True, queues=(queue(Condition(type="Active", status="False", message="no flavor")),)),
            "False",
            "QueuesInactive",
            "a.a100: no flavor",
        ),
        (
            KueueState(is_served=True, queues=(queue(Condition(type="Active", status="True")),)),
            "True",
            "SchedulersReady",
            "a100",
        ),
    ],
)
def test_state_of_kueue_is_reported(kueue: KueueState | None, status: str, reason: str, text: str) -> None:
    verdict = scheduler_verdict([POOL, NATIVE], IN_EFFECT, kueue)
    assert verdict is not None
    assert (verdict.status, verdict.reason) == (status, reason)
    assert text in verdict.message


def test_refused_change_names_the_pods_that_prevent_it() -> None:
    verdict = scheduler_verdict([POOL], {"a100": "native"}, KueueState(is_served=True))
    assert verdict is not None
    assert verdict.reason == "ModeChangeRefused"
    assert "stays in mode native instead of kueue" in verdict.message
    assert "when they have ended" in verdict.message


def test_missing_queues_of_an_administrator_are_named() -> None:
    pool = Pool(name="a100", scheduling=PoolScheduling(mode="kueue", queue="{tenant}-gpus", manage_queues=False))
    kueue = KueueState(is_served=True, local_queues=frozenset({"alpha-gpus"}))
    verdict = scheduler_verdict([pool], IN_EFFECT, kueue, tenants=lambda _pool: ["alpha", "beta"])
    assert verdict is not None
    assert (verdict.reason, "beta-gpus" in verdict.message, "alpha-gpus" in verdict.message) == (
        "QueuesMissing",
        True,
        False,
    )


async def test_state_is_read_from_the_cluster() -> None:
    async with FakeApiServer(rights=Rights.of_compute()) as server, server.client() as client:
        assert await read_kueue(ComputeLink("local", client, GatewayIdentity("g1"))) == KueueState(is_served=False)
        server.register(CLUSTER_QUEUES)
        server.register(LOCAL_QUEUES)
        labels = {"vkgateway.io/scheduling-mode": "kueue", "vkgateway.io/gateway": "g1"}
        server.store.create(CLUSTER_QUEUES, {"metadata": {"name": "a.a100", "labels": labels}, "spec": {}})
        server.store.create(CLUSTER_QUEUES, {"metadata": {"name": "theirs"}, "spec": {}})
        state = await read_kueue(ComputeLink("local", client, GatewayIdentity("g1")))
        assert state.is_served
        assert [found.metadata.name for found in state.queues] == ["a.a100"]
        assert json.dumps(state.queues[0].metadata.labels)
        assert isinstance(state.queues[0].metadata, Meta)

"""Condition SchedulersReady of a ComputeCluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.api.objects import Condition, Meta
from vkgateway.api.times import parse_time
from vkgateway.api.types import Pool, PoolScheduling
from vkgateway.clusters.link import ComputeLink
from vkgateway.clusters.tenant_owners import GatewayIdentity
from vkgateway.kube.resources import CONFIG_MAPS, NAMESPACES
from vkgateway.scheduler.backends.check import SchedulerState
from vkgateway.scheduler.backends.kueue.check import KueueState, QueueView, read_kueue
from vkgateway.scheduler.backends.kueue.kinds import CLUSTER_QUEUES, LOCAL_QUEUES, WORKLOADS
from vkgateway.scheduler.backends.verdict import scheduler_verdict
from vkgateway.scheduler.backends.volcano.check import VolcanoState, read_volcano
from vkgateway.scheduler.backends.volcano.kinds import POD_GROUPS, QUEUES

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
    assert scheduler_verdict([NATIVE], IN_EFFECT, {}) is None


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
    verdict = scheduler_verdict([POOL, NATIVE], IN_EFFECT, {} if kueue is None else {"kueue": kueue})
    assert verdict is not None
    assert (verdict.status, verdict.reason) == (status, reason)
    assert text in verdict.message


def test_refused_change_names_the_pods_that_prevent_it() -> None:
    verdict = scheduler_verdict([POOL], {"a100": "native"}, {"kueue": KueueState(is_served=True)})
    assert verdict is not None
    assert verdict.reason == "ModeChangeRefused"
    assert "stays in mode native instead of kueue" in verdict.message
    assert "when they have ended" in verdict.message


def test_scheduler_in_effect_decides_before_a_refused_change() -> None:
    """No gang of the pool starts, which is worse than a change that waits."""
    pool = Pool(name="a100")
    verdict = scheduler_verdict([pool], {"a100": "kueue"}, {"kueue": KueueState(is_served=False)})
    assert verdict is not None
    assert verdict.reason == "SchedulerMissing"


def test_pool_of_an_unknown_mode_counts_with_the_requested_one() -> None:
    verdict = scheduler_verdict([POOL], {"a100": ""}, {"kueue": KueueState(is_served=False)})
    assert verdict is not None
    assert verdict.reason == "SchedulerMissing"


def test_missing_queues_of_an_administrator_are_named() -> None:
    pool = Pool(name="a100", scheduling=PoolScheduling(mode="kueue", queue="{tenant}-gpus", manage_queues=False))
    kueue = KueueState(is_served=True, local_queues=frozenset({"alpha-gpus"}))
    verdict = scheduler_verdict([pool], IN_EFFECT, {"kueue": kueue}, tenants=lambda _pool: ["alpha", "beta"])
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
        server.register(WORKLOADS)
        labels = {"vkgateway.io/scheduling-mode": "kueue", "vkgateway.io/gateway": "g1"}
        server.store.create(CLUSTER_QUEUES, {"metadata": {"name": "a.a100", "labels": labels}, "spec": {}})
        server.store.create(CLUSTER_QUEUES, {"metadata": {"name": "theirs"}, "spec": {}})
        state = await read_kueue(ComputeLink("local", client, GatewayIdentity("g1")))
        assert state.is_served
        assert [found.metadata.name for found in state.queues] == ["a.a100"]
        assert json.dumps(state.queues[0].metadata.labels)
        assert isinstance(state.queues[0].metadata, Meta)


SHIPPED = yaml.safe_load(Path("deploy/volcano/scheduler-configmap.yaml").read_text())["data"]["volcano-scheduler.conf"]
VOLCANO = Pool(name="v100", scheduling=PoolScheduling(mode="volcano"))
OPEN = VolcanoState(
    is_served=True, queues={"a.v100": "Open", "default": "Open"}, own_pools={"a.v100": "v100"}, configuration=SHIPPED
)


@pytest.mark.parametrize(
    ("state", "status", "reason", "text"),
    [
        (VolcanoState(is_served=False), "False", "SchedulerMissing", "install Volcano there, or set scheduling.mode"),
        (
            VolcanoState(is_served=True, queues={"a.v100": ""}, own_pools={"a.v100": "v100"}),
            "False",
            "QueuesInactive",
            "does not answer",
        ),
        (OPEN, "True", "SchedulersReady", "v100"),
        (replace(OPEN, configuration=None), "True", "SchedulersReady", "is not checked"),
        (
            replace(OPEN, configuration=SHIPPED.replace(" reclaim,", "")),
            "False",
            "ConfigurationUnsuitable",
            "use deploy/volcano/scheduler-configmap.yaml",
        ),
    ],
)
def test_state_of_volcano_is_reported(state: VolcanoState, status: str, reason: str, text: str) -> None:
    verdict = scheduler_verdict([VOLCANO], {"v100": "volcano"}, {"volcano": state})
    assert verdict is not None
    assert (verdict.status, verdict.reason) == (status, reason)
    assert text in verdict.message


def test_worst_scheduler_decides() -> None:
    states: dict[str, SchedulerState] = {"kueue": KueueState(is_served=False), "volcano": OPEN}
    modes = {"a100": "kueue", "v100": "volcano"}
    verdict = scheduler_verdict([POOL, VOLCANO], modes, states)
    assert verdict is not None
    assert verdict.reason == "SchedulerMissing"


@pytest.mark.parametrize(
    ("created", "status", "silent"),
    [
        ("2020-01-01T00:00:00Z", {}, True),
        ("2020-01-01T00:00:00Z", {"phase": "Pending"}, False),
        ("2020-01-01T00:00:00Z", {"conditions": [{"type": "Scheduled", "status": "False"}]}, False),
        ("2100-01-01T00:00:00Z", {}, False),
    ],
)
async def test_scheduler_that_looks_at_nothing_is_reported(created: str, status: dict[str, Any], silent: bool) -> None:
    async with FakeApiServer(rights=Rights.of_compute()) as server, server.client() as client:
        for kind in (QUEUES, POD_GROUPS):
            server.register(kind)
        labels = {"vkgateway.io/scheduling-mode": "volcano", "vkgateway.io/gateway": "g1"}
        metadata = {"name": "a-1", "namespace": "a--default", "labels": labels}
        server.store.now = lambda: parse_time(created)
        server.store.create(POD_GROUPS, {"metadata": metadata, "status": status})
        state = await read_volcano(ComputeLink("local", client, GatewayIdentity("g1")))
        assert state.unanswered == ("a--default/a-1" if silent else "")
        verdict = scheduler_verdict([VOLCANO], {"v100": "volcano"}, {"volcano": state})
        assert verdict is not None
        assert (verdict.reason == "SchedulerSilent") is silent


async def test_state_of_volcano_is_read_from_the_cluster() -> None:
    async with FakeApiServer(rights=Rights.of_compute()) as server, server.client() as client:
        link = ComputeLink("local", client, GatewayIdentity("g1"))
        assert await read_volcano(link) == VolcanoState(is_served=False)
        server.register(QUEUES)
        server.register(POD_GROUPS)
        labels = {"vkgateway.io/scheduling-mode": "volcano", "vkgateway.io/gateway": "g1", "vkgateway.io/pool": "v100"}
        server.store.create(QUEUES, {"metadata": {"name": "a.v100", "labels": labels}, "status": {"state": "Open"}})
        server.store.create(QUEUES, {"metadata": {"name": "theirs"}})
        assert await read_volcano(link) == VolcanoState(
            is_served=True, queues={"a.v100": "Open", "theirs": ""}, own_pools={"a.v100": "v100"}
        )
        server.store.create(NAMESPACES, {"metadata": {"name": "volcano-system"}})
        data = {"volcano-scheduler.conf": SHIPPED}
        server.store.create(CONFIG_MAPS, {"metadata": {"name": "theirs", "namespace": "volcano-system"}, "data": data})
        assert (await read_volcano(link)).configuration == SHIPPED

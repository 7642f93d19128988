"""Pool that enforces run limits: notice, eviction at the limit, and what the tenant and the administrator see."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, CommandResult, Document, Platform, eventually
from tests.e2e.test_arbiter import (
    GANG,
    LOW,
    NOTICE_SECONDS,
    count_pods,
    delete_workloads,
    failed_pods,
    find_condition,
    gpu_job,
    gpu_pod,
    is_notified,
    list_pods,
    wait_accepted,
)
from tests.support.machine import patience
from vkgateway.api.names import EVICTION_DEADLINE_ANNOTATION
from vkgateway.kinds.pods.translation.conditions import RUN_LIMIT_REACHED

NOTICE = min(NOTICE_SECONDS, 50)
"""Notice in seconds, within which a test looks at the pods. Limits of a minute would be written in another unit."""
LIMIT = NOTICE + 5
"""Run limit in seconds of the gangs in these tests."""
SLACK = patience(10)
"""Seconds by which a busy machine may delay the start and the notice."""


def patch_pool(platform: Platform, **fields: Any) -> CommandResult:
    """Change fields of the pool with GPUs; None removes one."""
    patch = [
        {"op": "remove" if value is None else "add", "path": f"/spec/pools/0/{name}", "value": value}
        for name, value in fields.items()
    ]
    return platform.compute.try_kubectl("patch", "computecluster", "local", "--type=json", "-p", json.dumps(patch))


@pytest.fixture(scope="module")
def enforcing(platform: Platform) -> Iterator[Platform]:
    """Yield the platform while its pool enforces run limits, with a default for low work."""
    low: Any = {"low": f"{LIMIT}s"}
    refused = patch_pool(platform, defaultRunLimits=low)
    assert refused.code != 0
    assert "defaultRunLimits has no effect while enforceRunLimits is false" in str(refused)
    assert patch_pool(platform, enforceRunLimits=True, defaultRunLimits=low, noticeSeconds=NOTICE).code == 0
    wait_accepted(platform)
    yield platform
    assert patch_pool(platform, defaultRunLimits=None, enforceRunLimits=False, noticeSeconds=None).code == 0


@pytest.fixture(scope="module")
def team(enforcing: Platform) -> Iterator[Cluster]:
    """Yield a tenant of the pool."""
    enforcing.vkgateway("tenant", "create", "limited", "--pool", "a100:guarantee=nvidia.com/gpu=16")
    yield enforcing.tenant("limited")
    enforcing.vkgateway("tenant", "delete", "limited", "--yes")


@pytest.fixture
def tenant(team: Cluster) -> Iterator[Cluster]:
    """Yield the tenant without workloads."""
    yield team
    delete_workloads(team)


def seconds_of(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def notified_pods(cluster: Cluster, count: int) -> list[Document]:
    """Wait until this number of pods has a notice, and return them."""

    def find() -> list[Document]:
        found = [pod for pod in list_pods(cluster) if is_notified(pod)]
        return found if len(found) >= count else []

    return eventually(find, what=f"{count} pods under notice")


def test_job_is_evicted_at_its_declared_limit(tenant: Cluster, enforcing: Platform) -> None:
    marks = {GANG: "job", "vkgateway.io/gang-run-limit": f"{LIMIT}s"}
    tenant.apply(gpu_job("train", 8, parallelism=2, marks=marks))
    eventually(lambda: count_pods(tenant, "Running") == 2, what="the gang runs")

    noticed = notified_pods(tenant, 2)[0]
    disrupted = find_condition(noticed, "DisruptionTarget")
    assert (disrupted["status"], disrupted["reason"]) == ("True", RUN_LIMIT_REACHED)
    said = (
        f"reaches its run limit of {LIMIT}s (annotation vkgateway.io/gang-run-limit); to run longer, raise that limit"
    )
    assert said in disrupted["message"]
    name = noticed["metadata"]["name"]
    explained = enforcing.vkgateway("explain", name, "--tenant", "limited")
    assert "its gang reaches its run limit" in explained
    assert said in " ".join(explained.split())
    compute = enforcing.compute.get("pod", name, "-n", "limited--default")
    created = seconds_of(noticed["metadata"]["creationTimestamp"])
    deadline = seconds_of(noticed["metadata"]["annotations"][EVICTION_DEADLINE_ANNOTATION])
    assert LIMIT - 1 <= deadline - created <= LIMIT + SLACK
    assert compute["metadata"]["annotations"]["vkgateway.io/borrowed"] == "false", "it stays inside the guarantee"
    assert (RUN_LIMIT_REACHED, f"{disrupted['message']}") in tenant.events(name)
    assert said in tenant.kubectl("describe", "pod", name)

    failed = failed_pods(tenant, 2)
    assert {pod["status"]["reason"] for pod in failed} == {RUN_LIMIT_REACHED}
    explaining = ("explain", name, "--tenant", "limited")
    eventually(lambda: "its gang reached its run limit" in enforcing.vkgateway(*explaining), what="why it has ended")
    eventually(lambda: count_pods(tenant, "Running") == 2, what="the Job's next pods run")


def test_default_limit_of_the_band(tenant: Cluster, enforcing: Platform) -> None:
    assert f"enforced, low {LIMIT}s" in enforcing.vkgateway("compute", "describe", "local")
    tenant.apply(gpu_pod("low", 1, **LOW), gpu_pod("kept", 1))
    tenant.wait_pod("kept")
    (noticed,) = notified_pods(tenant, 1)
    assert noticed["metadata"]["name"] == "low"
    message = find_condition(noticed, "DisruptionTarget")["message"]
    assert f"reaches its run limit of {LIMIT}s (the pool's default for low pods)" in message
    assert "declare a longer limit with annotation vkgateway.io/gang-run-limit" in message
    eventually(lambda: tenant.pod_phase("low") != "Running", what="the low pod has terminated")
    assert tenant.pod_phase("kept") == "Running"

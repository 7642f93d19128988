"""Volcano as the scheduler of a pool, with its real scheduler and controllers: starts, reclaim, and broken gangs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.controllers import VOLCANO_CONFIGURATION
from tests.e2e.foreign_pool import (
    GPU,
    GRACE,
    POD_GROUPS,
    POOL,
    gang_job,
    gpus_by_node,
    list_objects,
    scheduled_by,
    schedulers_condition,
)
from tests.e2e.pool_stories import SECONDS, MixedLoad, budget_story, check_nothing_left, kill_story
from tests.e2e.test_arbiter import LOW, consistently, count_pods, delete_workloads, find_condition, is_gated, list_pods

ANSWER = 20
"""Seconds for everything else on a busy machine: Volcano's sessions, the scheduler of the tenant, the hollow nodes."""
ALONE = 3.0
"""Most seconds for which a gang may run with less than its minimum."""


@pytest.fixture(scope="module")
def tenants(platform: Platform) -> Iterator[tuple[Cluster, Cluster]]:
    """Yield a tenant that is guaranteed half of the pool, and one that borrows."""
    platform.vkgateway("tenant", "create", "vowner", "--pool", f"{POOL}:guarantee={GPU}=16")
    platform.vkgateway("tenant", "create", "vguest", "--pool", POOL)
    yield platform.tenant("vowner"), platform.tenant("vguest")
    for name in ("vowner", "vguest"):
        platform.vkgateway("tenant", "delete", name, "--yes")


@pytest.fixture(scope="module")
def volcano(
    platform: Platform, tenants: tuple[Cluster, Cluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Run Volcano, and switch the pool to it until the last test of this file."""
    with scheduled_by(platform, "volcano", tmp_path_factory.mktemp("volcano")):
        yield
        for tenant in tenants:
            delete_workloads(tenant)


@pytest.fixture
def owner(tenants: tuple[Cluster, Cluster], volcano: None) -> Iterator[Cluster]:
    """Yield the tenant with the guarantee."""
    yield tenants[0]
    delete_workloads(tenants[0])


@pytest.fixture
def guest(tenants: tuple[Cluster, Cluster], volcano: None) -> Iterator[Cluster]:
    """Yield the tenant without a guarantee."""
    yield tenants[1]
    delete_workloads(tenants[1])


def pods_below(platform: Platform, tenant: str, job: str = "") -> list[Document]:
    """Return the compute pods of a tenant, or of one of its Jobs, that have not ended."""
    found = platform.compute.get("pods", "-n", f"{tenant}--default")["items"]
    return [
        pod
        for pod in found
        if pod["metadata"]["name"].startswith(job) and pod["status"].get("phase") not in ("Succeeded", "Failed")
    ]


def bound_pods(platform: Platform, tenant: str, job: str) -> int:
    """Return how many pods of a Job have a node and do not terminate."""
    return sum(
        bool(pod["spec"].get("nodeName")) and "deletionTimestamp" not in pod["metadata"]
        for pod in pods_below(platform, tenant, job)
    )


def test_guaranteed_gang_starts_through_volcano(owner: Cluster, platform: Platform) -> None:
    owner.apply(gang_job("train", 2, 8))
    eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the gang runs")
    (group,) = list_objects(platform, POD_GROUPS)
    assert group["spec"]["minMember"] == 2
    for pod in pods_below(platform, "vowner"):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
        assert pod["metadata"]["annotations"]["vkgateway.io/borrowed"] == "false"
        assert pod["spec"]["terminationGracePeriodSeconds"] <= GRACE
    delete_workloads(owner)
    eventually(lambda: not list_objects(platform, POD_GROUPS), what="the PodGroup is released")


def test_guarantee_is_reclaimed_from_a_whole_gang(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("low", 4, 8, **LOW))
    eventually(lambda: count_pods(guest, "Running", "low") == 4, what="the low gang borrows the whole pool")
    victims = {pod["metadata"]["name"] for pod in list_pods(guest, "low")}
    seen: dict[str, str] = {}
    began = time.monotonic()
    owner.apply(gang_job("train", 2, 8))

    def note_victims() -> None:
        for pod in list_pods(guest, "low"):
            if pod["metadata"]["name"] in victims:
                seen[pod["metadata"]["name"]] = find_condition(pod, "DisruptionTarget").get("reason", "")
                assert "vowner" not in json.dumps(pod["status"])
                assert "train" not in json.dumps(pod["status"])

    def is_started() -> bool:
        note_victims()
        return bound_pods(platform, "vowner", "train") == 2

    def is_evicted() -> bool:
        ended = count_pods(guest, "Running", "low") == 0
        note_victims()
        return ended

    eventually(is_started, seconds=60, what="the guaranteed gang is bound")
    took = time.monotonic() - began
    assert took < GRACE + 5 + ANSWER, f"the guaranteed gang was bound {took:.1f} s after its creation"
    assert all(amount <= 8 for amount in gpus_by_node(platform).values())
    eventually(is_evicted, what="no pod of the broken gang is left")
    assert set(seen.values()) <= {"PreemptionByScheduler", "PreemptionByVkgateway"}
    assert "PreemptionByScheduler" in seen.values()
    job = guest.get("job", "low")
    assert not job["status"].get("failed")
    # The gang of four does not fit next to the guarantee, and waits as a whole.
    consistently(lambda: count_pods(guest, "Running", "low") == 0)
    delete_workloads(owner)
    eventually(lambda: count_pods(guest, "Running", "low") == 4, what="the low gang starts again")


def test_no_gang_runs_incomplete_after_a_reclaim(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("one", 2, 8, **LOW), gang_job("two", 2, 8, **LOW))
    eventually(lambda: count_pods(guest, "Running") == 4, what="two low gangs fill the pool")
    owner.apply(gang_job("train", 2, 8))
    since: dict[str, float] = {}
    longest: dict[str, float] = {}

    def is_started() -> bool:
        for job in ("one", "two"):
            if bound_pods(platform, "vguest", job) == 1:
                alone = time.monotonic() - since.setdefault(job, time.monotonic())
                longest[job] = max(longest.get(job, 0.0), alone)
            else:
                since.pop(job, None)
        return count_pods(owner, "Running", "train") == 2

    eventually(is_started, seconds=60, what="the guaranteed gang runs")
    assert max(longest.values(), default=0.0) < ALONE, longest
    eventually(
        lambda: all(count_pods(guest, "Running", job) in (0, 2) for job in ("one", "two")), what="whole gangs are left"
    )


def test_waiting_gangs_have_no_compute_pods(guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("fills", 4, 8))
    eventually(lambda: count_pods(guest, "Running", "fills") == 4, what="the pool is full")
    guest.apply(*(gang_job(f"waits-{index}", 1, 8) for index in range(200)))
    eventually(lambda: len(list_objects(platform, POD_GROUPS)) == 201, seconds=180, what="a PodGroup for each gang")
    consistently(lambda: len(pods_below(platform, "vguest")) == 4)
    assert all(is_gated(pod) for pod in list_pods(guest) if pod["metadata"]["name"].startswith("waits-"))
    guest.kubectl("delete", "jobs", "--all", "--wait=false", timeout=120)
    eventually(lambda: not list_objects(platform, POD_GROUPS), seconds=180, what="no PodGroup is left")


def test_gang_that_waits_in_the_pool_is_told_why(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    """Volcano lets a gang in that fits the limit. No text names nodes, queues or work of others."""
    owner.apply(gang_job("train", 2, 8))
    eventually(lambda: count_pods(owner, "Running", "train") == 2, what="the guarantee is used")
    guest.apply(gang_job("wide", 4, 8))
    eventually(lambda: len(pods_below(platform, "vguest", "wide")) == 4, what="the gang waits below")
    name = list_pods(guest, "wide")[0]["metadata"]["name"]
    eventually(
        lambda: find_condition(guest.get("pod", name), "vkgateway.io/PoolScheduled").get("status") == "False",
        what="the pod shows why it waits",
    )
    told = json.dumps([guest.get("pod", name)["status"], guest.events(name)])
    told += platform.vkgateway("explain", name, "--tenant", "vguest")
    hidden = ["vowner", "train", "vguest--default", "vguest.a100", *(f"a100-{number}" for number in range(4))]
    assert [each for each in hidden if each in told] == [], told
    delete_workloads(owner)
    eventually(lambda: count_pods(guest, "Running", "wide") == 4, what="the gang starts")


def test_used_up_budget_stops_borrowing(owner: Cluster, platform: Platform) -> None:
    budget_story(owner, platform, tenant="vowner")


def test_unsuitable_configuration_is_reported(owner: Cluster, platform: Platform) -> None:
    good = yaml.safe_load(VOLCANO_CONFIGURATION.read_text())
    text = good["data"]["volcano-scheduler.conf"].replace("enableReclaimable: false", "enableReclaimable: true")
    platform.compute.apply({**good, "data": {"volcano-scheduler.conf": text}})
    eventually(lambda: schedulers_condition(platform).get("reason") == "ConfigurationUnsuitable", what="reported")
    assert "enableReclaimable" in schedulers_condition(platform)["message"]
    platform.compute.apply(good)
    eventually(lambda: schedulers_condition(platform).get("status") == "True", what="Volcano is ready again")


def test_gateway_restart_keeps_gangs(guest: Cluster, platform: Platform) -> None:
    guest.apply(gang_job("stays", 2, 8))
    eventually(lambda: count_pods(guest, "Running") == 2, what="the gang runs")
    (before,) = (group["metadata"]["uid"] for group in list_objects(platform, POD_GROUPS))
    platform.kill_gateway()
    guest.apply(gang_job("later", 2, 8))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the next gang runs after the restart")
    found = {group["metadata"]["uid"] for group in list_objects(platform, POD_GROUPS)}
    assert before in found
    assert len(found) == 2
    assert not any(find_condition(pod, "DisruptionTarget") for pod in list_pods(guest))


def test_gateway_that_is_killed_again_and_again_leaves_nothing(
    owner: Cluster, guest: Cluster, platform: Platform
) -> None:
    kill_story(owner, guest, platform, kind=POD_GROUPS)


def test_mixed_load_evicts_no_gang_twice_for_another(owner: Cluster, guest: Cluster, platform: Platform) -> None:
    MixedLoad(owner, guest, platform, POD_GROUPS).run(SECONDS)
    check_nothing_left(owner, guest, platform, kind=POD_GROUPS)

"""A running gang that loses a member: the replacement starts before an older pod of the tenant that waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually
from tests.e2e.test_arbiter import (
    GANG,
    consistently,
    count_pods,
    delete_workloads,
    end_container,
    gpu_job,
    gpu_pod,
    list_pods,
    pending_reason,
)

LATER = "example.com/later"


@pytest.fixture(scope="module")
def tenant(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant that uses its guarantee and no more."""
    real = ("--pool", "real") if platform.real else ()
    bounds = "a100:guarantee=nvidia.com/gpu=16,limit=nvidia.com/gpu=16"
    platform.vkgateway("tenant", "create", "crew", "--pool", bounds, *real)
    yield platform.tenant("crew")
    platform.vkgateway("tenant", "delete", "crew", "--yes")


@pytest.fixture
def crew(tenant: Cluster) -> Iterator[Cluster]:
    """Yield the tenant with a gang that fills the guarantee, and an older pod that waits."""
    tenant.apply(gpu_pod("old", 4, schedulingGates=[{"name": LATER}]))
    # The API server rounds creation times to seconds.
    born = tenant.get("pod", "old")["metadata"]["creationTimestamp"]
    tenant.apply(gpu_job("team", 4, parallelism=4, marks={GANG: "job"}))
    eventually(lambda: count_pods(tenant, "Running", "team-") == 4, what="the gang runs")
    assert born <= min(pod["metadata"]["creationTimestamp"] for pod in list_pods(tenant, "team-"))
    tenant.kubectl(
        "patch",
        "pod",
        "old",
        "--type=json",
        "-p",
        f'[{{"op":"test","path":"/spec/schedulingGates/{_gate_of(tenant)}/name","value":"{LATER}"}},{{"op":"remove","path":"/spec/schedulingGates/{_gate_of(tenant)}"}}]',
    )
    eventually(lambda: pending_reason(tenant, "old") == "WaitingForQuota", what="the older pod waits for the limit")
    yield tenant
    delete_workloads(tenant)


def _gate_of(cluster: Cluster) -> int:
    gates = [gate["name"] for gate in cluster.get("pod", "old")["spec"]["schedulingGates"]]
    return gates.index(LATER)


def lose_member(cluster: Cluster, name: str, *, fails: bool) -> None:
    """End a pod, which its Job replaces: at once after a deletion, ten seconds after a failure."""
    if fails:
        end_container(cluster, name, 1)
        eventually(lambda: cluster.pod_phase(name) == "Failed", what="the member failed")
    else:
        cluster.kubectl("delete", "pod", name, "--grace-period=1", "--wait=false")


@pytest.mark.parametrize("fails", [False, True], ids=["deleted", "failed"])
def test_replacement_of_a_lost_member_starts_before_an_older_pod(crew: Cluster, *, fails: bool) -> None:
    lost = list_pods(crew, "team-")[0]["metadata"]["name"]
    before = {pod["metadata"]["name"] for pod in list_pods(crew, "team-")}
    lose_member(crew, lost, fails=fails)

    def replacement_runs() -> bool:
        assert crew.pod_phase("old") == "Pending", "the older pod took the place of the lost member"
        running = {pod["metadata"]["name"] for pod in list_pods(crew, "team-") if pod["status"]["phase"] == "Running"}
        return len(running) == 4 and len(running - before) == 1

    eventually(replacement_runs, what="the replacement runs")
    consistently(lambda: crew.pod_phase("old") == "Pending")
    crew.kubectl("delete", "job", "team", "--cascade=foreground", "--wait=false")
    crew.wait_pod("old")

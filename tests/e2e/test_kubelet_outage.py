"""A real kubelet that stops while a gang of a pool of Kueue runs on its node: decision 0057, with real containers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import REAL, Cluster, Document, Platform, eventually, frozen
from tests.e2e.foreign_pool import GPU, WORKLOADS, gang_job, gpus_by_node, list_objects, scheduled_by
from tests.e2e.test_arbiter import consistently, count_pods, delete_workloads, find_condition, list_pods
from tests.e2e.test_startup import TWIN, twin_node
from tests.support.machine import patience_option
from vkgateway.api.names import EVICTION_DEADLINE_ANNOTATION

pytestmark = pytest.mark.embedded_gateway(reason="a gateway in a pod runs on the node whose kubelet stops")
NODE = "real-0"
NAMESPACE = "kreal--default"
OUTAGE = 150
"""Seconds after which a silent node must be NotReady, and Kueue must have noticed."""


@pytest.fixture(scope="module")
def tenant(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Yield a tenant whose pods run on the real node, which Kueue schedules."""
    if not platform.real:
        pytest.skip(f"no real node here: {platform.status().get('realNode')}")
    platform.vkgateway("tenant", "create", "kreal", "--pool", f"real:guarantee={GPU}=1")
    try:
        with scheduled_by(platform, "kueue", tmp_path_factory.mktemp("kueue"), name="real"):
            yield platform.tenant("kreal")
            delete_workloads(platform.tenant("kreal"))
    finally:
        platform.vkgateway("tenant", "delete", "kreal", "--yes")


@pytest.fixture
def gang(tenant: Cluster, platform: Platform) -> Iterator[Cluster]:
    """Run a gang on both GPUs of the real node."""
    tenant.apply(gang_job("stays", 2, 1, **REAL))
    eventually(lambda: count_pods(tenant, "Running", "stays") == 2, seconds=60, what="the gang runs")
    assert assigned_nodes(platform) == {NODE}
    yield tenant
    delete_workloads(tenant)
    eventually(lambda: not list_objects(platform, WORKLOADS), what="no Workload left")


@pytest.fixture
def twin(gang: Cluster, platform: Platform) -> Iterator[None]:
    """Add an equal hollow node."""
    platform.compute.apply(twin_node())
    allocatable = platform.compute.get("node", NODE)["status"]["allocatable"]
    status = json.dumps({"status": {"capacity": allocatable, "allocatable": allocatable}})
    platform.compute.kubectl("patch", "node", TWIN, "--subresource=status", "--type=merge", f"--patch={status}")
    yield
    delete_workloads(gang)
    platform.compute.kubectl("delete", "node", TWIN, patience_option(60), timeout=70)


@contextlib.contextmanager
def stopped_kubelet(platform: Platform) -> Iterator[None]:
    """Stop the kubelet until the block ends, and wait for the node's condition each time."""
    with frozen(platform.pid_of("node/kubelet")):
        eventually(lambda: not is_node_ready(platform), seconds=OUTAGE, what="the node is not ready")
        yield
    eventually(lambda: is_node_ready(platform), seconds=60, what="the node is ready again")


def is_node_ready(platform: Platform) -> bool:
    return find_condition(platform.compute.get("node", NODE), "Ready").get("status") == "True"


def assigned_nodes(platform: Platform) -> set[str]:
    """Return the nodes that Kueue assigned."""
    text = json.dumps([workload["status"].get("admission") for workload in list_objects(platform, WORKLOADS)])
    return {node for node in (NODE, TWIN) if f'"{node}"' in text}


def compute_pods(platform: Platform) -> dict[str, Document]:
    """Return the compute pods by UID."""
    return {pod["metadata"]["uid"]: pod for pod in platform.compute.get("pods", "-n", NAMESPACE)["items"]}


def is_notified(pod: Document) -> bool:
    return EVICTION_DEADLINE_ANNOTATION in pod["metadata"].get("annotations", {})


def check_devices(platform: Platform) -> bool:
    """Check that no node has more pods than GPUs."""
    used = gpus_by_node(platform)
    assert all(used.get(node, 0) <= 2 for node in (NODE, TWIN)), used
    return True


@pytest.mark.usefixtures("twin")
def test_gang_runs_on_until_another_one_gets_its_node(gang: Cluster, platform: Platform) -> None:
    before = compute_pods(platform).keys()
    with stopped_kubelet(platform):
        eventually(lambda: assigned_nodes(platform) == {TWIN}, seconds=OUTAGE, what="Kueue moves the slots")
        assert compute_pods(platform).keys() == before
    consistently(lambda: count_pods(gang, "Running", "stays") == 2, seconds=10)
    assert compute_pods(platform).keys() == before
    assert not any(map(is_notified, compute_pods(platform).values()))

    gang.apply(gang_job("next", 2, 1, **REAL))
    eventually(
        lambda: check_devices(platform) and count_pods(gang, "Running", "next") == 2,
        seconds=90,
        what="the next gang runs",
    )
    eventually(
        lambda: check_devices(platform) and count_pods(gang, "Running", "stays") == 2,
        seconds=90,
        what="the first gang runs on the node to which Kueue moved it",
    )


def test_gang_without_another_node_starts_again_on_its_node(gang: Cluster, platform: Platform) -> None:
    before = compute_pods(platform).keys()
    with stopped_kubelet(platform):
        eventually(
            lambda: any(map(is_notified, list_pods(gang, "stays"))), seconds=OUTAGE, what="Kueue evicts the gang"
        )
        consistently(lambda: check_devices(platform), seconds=15)
    eventually(
        lambda: check_devices(platform) and count_pods(gang, "Running", "stays") == 2,
        seconds=120,
        what="the gang runs again",
    )
    eventually(lambda: not before & compute_pods(platform).keys(), what="the earlier pods have ended")
    assert len(list_objects(platform, WORKLOADS)) == 1

"""Alerts that need a platform of their own: its tenants misbehave, and its programs freeze, fail and fill up.

The tests run in the order of the file. Later ones leave the platform worse than they found it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, frozen, pod_manifest
from tests.e2e.conftest import start_platform
from tests.e2e.faults import etcd_pair, slowed, write_expiring_certificates
from tests.e2e.faulty_gateway import DEFECT, HELD, SLOW, STUCK, Faults, datastore_settings, restart_with_faults
from tests.e2e.prometheus import Prometheus, start_prometheus
from tests.e2e.test_arbiter import (
    GANG,
    LOW,
    count_pods,
    delete_workloads,
    find_condition,
    gpu_job,
    gpu_pod,
    in_pool,
    list_pods,
)
from tests.support.machine import patience_option
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import API_VERSION, SYSTEM_NAMESPACE
from vkgateway.planes.etcd.client import EtcdClient, EtcdMaintenance
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway_platform.embedded import etcd
from vkgateway_platform.embedded.paths import PlatformPaths

pytestmark = pytest.mark.embedded_gateway(reason="faults of the processes of an embedded platform")
T = TypeVar("T")
GPU = "nvidia.com/gpu"
NODES = tuple(f"a100-{number}" for number in range(4))


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """Yield a platform without a real node."""
    with start_platform("--real-node", "no") as platform:
        yield platform


@pytest.fixture(scope="module")
def prometheus(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    try:
        with start_prometheus(platform, tmp_path_factory.mktemp("prometheus")) as found:
            yield found
    except UnavailableError as error:
        pytest.skip(f"no Prometheus: {error}")


@pytest.fixture(scope="module")
def owner(platform: Platform) -> Cluster:
    """Return a tenant with a guarantee of half of the pool."""
    platform.vkgateway("tenant", "create", "owner", "--pool", f"a100:guarantee={GPU}=16")
    return platform.tenant("owner")


@pytest.fixture(scope="module")
def guest(platform: Platform) -> Cluster:
    """Return a tenant that borrows."""
    platform.vkgateway("tenant", "create", "guest", "--pool", "a100", "--pool", "v100")
    return platform.tenant("guest")


@pytest.fixture(scope="module")
def faults(platform: Platform, owner: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """Return the faults of a gateway that replaces the shipped one from now on."""
    assert owner
    return restart_with_faults(platform, tmp_path_factory.mktemp("gateway") / "faults")


def patch_tenant(platform: Platform, name: str, **spec: Any) -> None:
    platform.compute.kubectl("patch", "tenant", name, "--type=merge", "-p", json.dumps({"spec": spec}))


def used_hours(platform: Platform, tenant: str) -> float:
    rows = json.loads(platform.vkgateway("usage", "--days", "2", "--by", "tenant", "-o", "json"))
    return float(sum(row["hours"] for row in rows if row["tenant"] == tenant))


@pytest.mark.fires("VkgatewayBudgetNearlyUsed", "VkgatewayBudgetUsedUp", "VkgatewayPoolIdle")
def test_a_small_budget_is_used_up_and_the_pool_stays_idle(
    platform: Platform, guest: Cluster, prometheus: Prometheus
) -> None:
    guest.apply(gpu_pod("borrows", 8, **in_pool("a100")))
    guest.wait_pod("borrows")
    eventually(lambda: used_hours(platform, "guest") > 0.01, what="its use is counted")
    delete_workloads(guest)
    used = used_hours(platform, "guest")
    for share, alert in ((0.9, "VkgatewayBudgetNearlyUsed"), (1.2, "VkgatewayBudgetUsedUp")):
        patch_tenant(platform, "guest", budget=[{"resource": GPU, "hours": round(used / share, 5)}])
        prometheus.wait_until_firing(alert, "guest")

    guest.apply(gpu_pod("beyond", 8, **in_pool("a100")))
    prometheus.wait_until_firing("VkgatewayPoolIdle", "a100.local")
    patch_tenant(platform, "guest", budget=[])
    prometheus.wait_until_silent("VkgatewayBudgetUsedUp", "guest")
    guest.wait_pod("beyond")
    prometheus.wait_until_silent("VkgatewayPoolIdle", "a100.local")
    delete_workloads(guest)


@pytest.mark.fires("VkgatewayGuaranteeNotKept", "VkgatewayGangBelowMinimum")
def test_nodes_of_a_guarantee_are_lost(platform: Platform, owner: Cluster, prometheus: Prometheus) -> None:
    owner.apply(gpu_job("train", 8, parallelism=2, marks={GANG: "job"}))
    eventually(lambda: count_pods(owner, "Running") == 2, what="the gang runs")
    platform.compute.kubectl("cordon", *NODES)
    lost = list_pods(owner)[0]["metadata"]["name"]
    platform.compute.kubectl("delete", "pod", lost, "-n", "owner--default", "--grace-period=0", "--force")
    prometheus.wait_until_firing("VkgatewayGuaranteeNotKept", "owner")
    prometheus.wait_until_firing("VkgatewayGangBelowMinimum", "a100.local")
    platform.compute.kubectl("uncordon", *NODES)
    prometheus.wait_until_silent("VkgatewayGuaranteeNotKept", "owner")
    prometheus.wait_until_silent("VkgatewayGangBelowMinimum", "a100.local")
    delete_workloads(owner)


@pytest.mark.fires("VkgatewayGuaranteeLate")
def test_victims_do_not_terminate(platform: Platform, owner: Cluster, guest: Cluster, prometheus: Prometheus) -> None:
    """The nodes do not answer, so the pods on them do not end."""
    guest.apply(*(gpu_pod(f"low{n}", 8, **in_pool("a100"), **LOW) for n in range(4)))
    eventually(lambda: count_pods(guest, "Running") == 4, what="the pool is full")
    with frozen(platform.pid_of("compute/kwok")):
        owner.apply(gpu_pod("guaranteed", 8))
        prometheus.wait_until_firing("VkgatewayGuaranteeLate")
    owner.wait_pod("guaranteed")
    prometheus.wait_until_silent("VkgatewayGuaranteeLate")
    delete_workloads(owner)
    delete_workloads(guest)


@pytest.mark.fires("VkgatewayComputeClusterNotReady")
def test_a_compute_cluster_whose_credentials_lack_rights(platform: Platform, prometheus: Prometheus) -> None:
    """The credentials may read every object, and create none."""
    reader = create_reader(platform, "reader")
    platform.compute.kubectl(
        "create", "secret", "generic", "reader", "-n", SYSTEM_NAMESPACE, f"--from-file=kubeconfig={reader}"
    )
    cluster = {
        "apiVersion": API_VERSION,
        "kind": "ComputeCluster",
        "metadata": {"name": "reader"},
        "spec": {
            "connection": {"kubeconfigSecret": {"namespace": SYSTEM_NAMESPACE, "name": "reader"}},
            "pools": [{"name": "far", "nodeSelector": {"far": "far"}}],
        },
    }
    platform.compute.apply(cluster)
    prometheus.wait_until_firing("VkgatewayComputeClusterNotReady", "reader")
    assert ("VkgatewayComputeClusterUnreachable", "reader") not in prometheus.firing()
    platform.compute.kubectl("delete", "computecluster", "reader", patience_option(60), timeout=70)
    prometheus.wait_until_silent("VkgatewayComputeClusterNotReady", "reader")


def create_reader(platform: Platform, name: str) -> Path:
    """Create a service account that may read every object, and return its kubeconfig."""
    compute = platform.compute
    compute.kubectl("create", "serviceaccount", name)
    compute.kubectl("create", "clusterrole", name, "--verb=get,list,watch", "--resource=*.*")
    compute.kubectl("create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount=default:{name}")
    token = compute.kubectl("create", "token", name).strip()
    return compute.with_token(token, platform.data_dir).kubeconfig


@pytest.mark.fires("VkgatewayTenantControlPlaneDown")
def test_an_api_server_of_a_tenant_hangs(platform: Platform, guest: Cluster, prometheus: Prometheus) -> None:
    assert guest
    with frozen(platform.pid_of("tenant/guest/apiserver")):
        prometheus.wait_until_firing("VkgatewayTenantControlPlaneDown", "guest")
    prometheus.wait_until_silent("VkgatewayTenantControlPlaneDown", "guest")


@pytest.mark.fires("VkgatewayEventLoopSlow", "VkgatewayAbsent")
def test_the_gateway_has_little_cpu_and_then_none(platform: Platform, prometheus: Prometheus) -> None:
    gateway = platform.pid_of("gateway")
    with slowed(gateway, stopped=0.4, running=0.4):
        prometheus.wait_until_firing("VkgatewayEventLoopSlow")
    with frozen(gateway):
        prometheus.wait_until_firing("VkgatewayAbsent")
    prometheus.wait_until_silent("VkgatewayAbsent")


@pytest.mark.fires("VkgatewayLeaderChanges")
def test_the_gateway_restarts_again_and_again(platform: Platform, prometheus: Prometheus) -> None:
    for _ in range(4):
        restart_gateway(platform, prometheus)
    prometheus.wait_until_firing("VkgatewayLeaderChanges")


def restart_gateway(platform: Platform, prometheus: Prometheus) -> None:
    """Kill the gateway when it leads, and wait until it leads again."""
    former = eventually(lambda: transitions(prometheus), what="the gateway leads")
    platform.kill_gateway()
    eventually(lambda: transitions(prometheus) > former, what="the gateway leads again")


def transitions(prometheus: Prometheus) -> list[float]:
    """Return the value of now; nothing while no gateway leads, or while Prometheus does not reach it."""
    return [float(series["value"][1]) for series in prometheus.query("vkgateway_lease_transitions > -1")]


@pytest.mark.fires("VkgatewayDefect", "VkgatewayCycleSlow")
def test_scheduling_cycles_fail_and_are_slow(owner: Cluster, faults: Faults, prometheus: Prometheus) -> None:
    with faults.having(DEFECT):
        owner.apply(gpu_pod("one", 8))
        prometheus.wait_until_firing("VkgatewayDefect")
    with faults.having(SLOW):
        owner.wait_pod("one")
        owner.apply(gpu_pod("two", 8))
        prometheus.wait_until_firing("VkgatewayCycleSlow")
    owner.wait_pod("two")


@pytest.mark.fires("VkgatewayQueueStuck", "VkgatewayForwardingSlow")
def test_no_cycle_ends_and_pods_wait_for_a_missing_object(
    guest: Cluster, owner: Cluster, faults: Faults, prometheus: Prometheus
) -> None:
    late = {"envFrom": [{"configMapRef": {"name": "late"}}]}
    guest.apply(*(pod_manifest(f"late{number}", container=late, **in_pool("v100")) for number in range(10)))
    created = time.monotonic()
    owner.apply(gpu_pod("too-large", 16))
    eventually(lambda: prometheus.query("vkgateway_arbiter_waiting_gangs > 0"), what="a gang waits")
    with faults.having(STUCK):
        owner.apply(gpu_pod("three", 1))
        prometheus.wait_until_firing("VkgatewayQueueStuck", seconds=90)
    assert time.monotonic() - created > 30
    guest.kubectl("create", "configmap", "late")
    prometheus.wait_until_firing("VkgatewayForwardingSlow")
    prometheus.wait_until_silent("VkgatewayQueueStuck")
    delete_workloads(owner)
    delete_workloads(guest)


@pytest.mark.fires("VkgatewayWorkQueueFilling")
def test_no_worker_takes_an_object(guest: Cluster, faults: Faults, prometheus: Prometheus) -> None:
    needs = {"envFrom": [{"configMapRef": {"name": "many"}}]}
    guest.apply(*(pod_manifest(f"many{number}", container=needs, **in_pool("v100")) for number in range(150)))
    eventually(lambda: count_unforwarded(guest) == 150, what="pods wait for a ConfigMap")
    with faults.having(HELD):
        guest.kubectl("create", "configmap", "many")
        prometheus.wait_until_firing("VkgatewayWorkQueueFilling", "guest")
    prometheus.wait_until_silent("VkgatewayWorkQueueFilling", "guest")
    delete_workloads(guest)


@pytest.mark.fires("VkgatewayLeaseSlow", "VkgatewayLeaderMissing")
def test_the_management_cluster_is_slow_and_then_hangs(
    platform: Platform, faults: Faults, prometheus: Prometheus
) -> None:
    assert faults
    api_server = platform.pid_of("compute/apiserver")
    with slowed(api_server, stopped=0.8, running=0.4):
        prometheus.wait_until_firing("VkgatewayLeaseSlow")
    # A new gateway has just checked the token of Prometheus, and does so again after a minute.
    restart_gateway(platform, prometheus)
    with frozen(api_server):
        prometheus.wait_until_firing("VkgatewayLeaderMissing", seconds=30)
    prometheus.wait_until_silent("VkgatewayLeaderMissing")


def count_unforwarded(cluster: Cluster) -> int:
    """Return the number of pods that the gateway cannot forward."""
    return sum(find_condition(pod, "vkgateway.io/Forwarded").get("status") == "False" for pod in list_pods(cluster))


@pytest.mark.fires("VkgatewayTenantCertificatesNotRenewed")
def test_certificates_of_a_tenant_cannot_be_renewed(
    platform: Platform, owner: Cluster, faults: Faults, prometheus: Prometheus
) -> None:
    """The Secret with the tenant's authority is damaged while its API server runs."""
    assert faults
    assert owner
    secret = ("secret", "tenant-owner", "-n", "vkgateway-system")
    intact = platform.compute.get(*secret)["data"]["ca.key"]

    def write_key(value: str) -> None:
        patch = json.dumps({"data": {"ca.key": value}})
        platform.compute.kubectl("patch", *secret, "--type=merge", "-p", patch)

    write_key("")
    prometheus.wait_until_firing("VkgatewayTenantCertificatesNotRenewed", "owner")
    write_key(intact)
    prometheus.wait_until_silent("VkgatewayTenantCertificatesNotRenewed", "owner")


@pytest.mark.fires("VkgatewayCertificateExpiring", "VkgatewayAuthorityExpiring")
def test_certificates_of_the_gateway_expire_soon(
    platform: Platform, faults: Faults, prometheus: Prometheus, tmp_path: Path
) -> None:
    assert faults
    write_expiring_certificates(platform, tmp_path, days=10, authority_days=100)
    files = {key: str(tmp_path / name) for key, name in (("ca", "ca.crt"), ("cert", "root.crt"), ("key", "root.key"))}
    settings = msgspec.structs.replace(datastore_settings(platform), **files)
    restart_with_faults(platform, tmp_path / "faults", datastore=settings)
    prometheus.wait_until_firing("VkgatewayCertificateExpiring", "etcd-client")
    prometheus.wait_until_firing("VkgatewayAuthorityExpiring", "etcd-authority")


@pytest.mark.fires("VkgatewayEtcdSlowDisk", "VkgatewayEtcdNoLeader", "VkgatewayEtcdMemberDown")
def test_a_member_of_etcd_is_slow_and_the_other_one_ends(
    platform: Platform, prometheus: Prometheus, tmp_path: Path
) -> None:
    with etcd_pair(platform, tmp_path) as (first, second):
        prometheus.read_etcd(first=first.url, second=second.url)
        with first.busy(), slowed(first.process.pid, stopped=0.15, running=0.03):
            prometheus.wait_until_firing("VkgatewayEtcdSlowDisk", "first")
        second.process.send_signal(signal.SIGKILL)
        prometheus.wait_until_firing("VkgatewayEtcdNoLeader")
        prometheus.wait_until_firing("VkgatewayEtcdMemberDown", "second")


QUOTA = 128 << 20
LARGE = "x" * 900_000
"""Value of nearly the maximum size of an object."""


@pytest.mark.fires("VkgatewayDatastoreFilling", "VkgatewayDatastoreTenantsHeld")
def test_a_tenant_fills_etcd(platform: Platform, guest: Cluster, prometheus: Prometheus) -> None:
    limit_etcd(platform)
    eventually(lambda: prometheus.query(f'vkgateway_datastore_bytes{{what="quota"}} == {QUOTA}'), what="the new quota")
    connect = partial(etcd.root_client, PlatformPaths(platform.data_dir), port=platform.status()["ports"]["etcd"])
    call_etcd(connect, free_history)
    names = map("large-{}".format, itertools.count())
    held, filling = ("VkgatewayDatastoreTenantsHeld", ""), ("VkgatewayDatastoreFilling", "")
    fill(connect, guest, names, until=lambda: held in prometheus.firing())
    platform.compute.kubectl("annotate", "tenant", "guest", "vkgateway.io/writable=true")
    prometheus.wait_until_silent(*held)
    fill(connect, guest, names, until=lambda: filling in prometheus.firing())


def limit_etcd(platform: Platform) -> None:
    """Restart the platform's etcd with a small quota."""
    pid, ports = platform.pid_of("etcd"), platform.status()["ports"]
    spec = etcd.process_spec(
        PlatformPaths(platform.data_dir),
        program=Path(os.readlink(f"/proc/{pid}/exe")),
        port=ports["etcd"],
        peer_port=ports["etcd-peer"],
        durable=True,
    )
    limited = [f"--quota-backend-bytes={QUOTA}" if each.startswith("--quota-backend") else each for each in spec.argv]
    changed = msgspec.structs.replace(spec, argv=tuple(limited))
    asyncio.run(SupervisorClient.for_data_dir(platform.data_dir).ensure_process(changed))


async def free_history(maintenance: EtcdMaintenance) -> None:
    """Free the pages of history, and return free pages to the file system."""
    await maintenance.compact((await maintenance.member_status()).revision)
    await maintenance.defragment()


def call_etcd(connect: Callable[[], EtcdClient], call: Callable[[EtcdMaintenance], Coroutine[object, object, T]]) -> T:
    """Return what a call to etcd returns."""

    async def run() -> T:
        async with connect() as client:
            return await call(client.maintenance)

    return asyncio.run(run())


def fill(
    connect: Callable[[], EtcdClient], cluster: Cluster, names: Iterator[str], *, until: Callable[[], bool]
) -> None:
    """Create large objects until a condition is true.

    A reserve of the quota stays free: a full etcd would refuse the writes of all tenants.
    """

    def is_reached() -> bool:
        status = call_etcd(connect, EtcdMaintenance.member_status)
        free = 0.93 * QUOTA - status.size
        if free < len(LARGE) and status.size_in_use < 0.85 * QUOTA:  # large objects do not fit in its free pages
            call_etcd(connect, free_history)
        batch = [config_map(next(names)) for _ in range(min(10, int(free / len(LARGE))))]
        if batch:
            document = json.dumps({"apiVersion": "v1", "kind": "List", "items": batch})
            cluster.try_kubectl("create", "-f", "-", stdin=document)
        return until()

    eventually(is_reached, seconds=240, what="large objects suffice")


def config_map(name: str) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"},
        "data": {"text": LARGE},
    }

"""Processes and objects of the platform: etcd, compute cluster, gateway."""

import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import FIELD_MANAGER
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource
from vkgateway.settings import file as settingsfile
from vkgateway_platform.embedded import compute, etcd, gateway_process, network
from vkgateway_platform.embedded.gateway_steps import GatewaySteps
from vkgateway_platform.embedded.hollow.nodes import DOMAIN_LABEL, POOL_LABEL
from vkgateway_platform.embedded.options import PORTS
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import ensure_pki
from vkgateway_platform.embedded.realnode.options import NodeNetwork
from vkgateway_platform.embedded.record import PlatformRecord

RECORD = PlatformRecord(number=4, interface="vkg4", address="10.213.4.1", ports=dict(PORTS))


@pytest.fixture
def paths(tmp_path: Path) -> PlatformPaths:
    return PlatformPaths(tmp_path)


def etcd_flags(paths: PlatformPaths, *, durable: bool = True) -> tuple[str, ...]:
    return etcd.process_spec(paths, program=Path("/etcd"), port=2379, peer_port=2380, durable=durable).argv


def test_etcd_requires_client_certificates(paths: PlatformPaths) -> None:
    flags = etcd_flags(paths)
    assert {"--client-cert-auth=true", "--peer-client-cert-auth=true"} <= set(flags)
    assert not [flag for flag in flags if "http://" in flag]


def test_etcd_compacts_automatically(paths: PlatformPaths) -> None:
    assert {"--auto-compaction-mode=periodic", "--auto-compaction-retention=2m"} <= set(etcd_flags(paths))


def test_etcd_waits_for_the_disk_unless_told_otherwise(paths: PlatformPaths) -> None:
    assert "--unsafe-no-fsync" not in etcd_flags(paths)
    assert "--unsafe-no-fsync" in etcd_flags(paths, durable=False)


def test_services_have_the_addresses_that_the_real_node_routes() -> None:
    assert compute.plane_spec(RECORD).service_cidr == NodeNetwork(4).service_subnet


@pytest.mark.parametrize("letter", ["a", "ä"])
def test_long_paths_with_a_common_prefix_have_different_aliases(letter: str) -> None:
    first, second = (network.interface_alias(Path("/", letter * 200, letter * 100, name)) for name in ("one", "two"))
    assert first != second
    assert max(len(first.encode()), len(second.encode())) <= 255


def test_the_interface_has_the_address_that_the_real_node_expects() -> None:
    assert network.interface_address(4) == NodeNetwork(4).platform_address


def test_compute_cluster_has_the_requested_pools() -> None:
    pools = compute.compute_cluster(["a100", "real"], hollow={"a100": 4})["spec"]["pools"]
    assert [(pool["name"], pool["nodeSelector"]) for pool in pools] == [
        ("a100", {POOL_LABEL: "a100"}),
        ("real", {POOL_LABEL: "real"}),
    ]
    assert [pool.get("levels") for pool in pools] == [[DOMAIN_LABEL], None]


@pytest.mark.parametrize(
    ("pool", "nodes", "label"), [("a100", 4, "topology.kubernetes.io/zone"), ("a100", 1, ""), ("v100", 2, "")]
)
def test_pool_with_several_zones_has_virtual_nodes_by_zone(pool: str, nodes: int, label: str) -> None:
    (made,) = compute.compute_cluster([pool], hollow={pool: nodes})["spec"]["pools"]
    assert made["virtualNodesBy"] == label


def test_both_definitions_are_shipped() -> None:
    kinds = {document["spec"]["names"]["kind"] for document in compute.api_definitions()}
    assert kinds == {"Tenant", "ComputeCluster"}


@pytest.mark.parametrize(
    ("release", "version"),
    [("1.30.14", ""), ("1.33.13", ""), ("1.34.4", "v1beta1"), ("1.35.4", "v1beta1"), ("1.36.3", "v1")],
)
async def test_lean_pods_policy_depends_on_the_release(release: str, version: str) -> None:
    """An API server serves policies in one version only; another version cannot be applied."""
    record = msgspec.structs.replace(RECORD, real_node_why_not="disabled", kubernetes_version=release)
    policies = admission_policies("mutating", version)
    protection = admission_policies("validating", "v1")
    async with FakeApiServer() as server, server.client() as client:
        served = (*(policies if version else ()), *protection, Resource("api/v1", "endpoints", "Endpoints"))
        for resource in served:
            server.register(resource)
        objects = compute.initial_objects(record, pools=record.hollow_nodes)
        await apply_objects(client, objects, field_manager=FIELD_MANAGER)
        made = [found["metadata"]["name"] for resource in policies for found in server.store.all(resource)]
        protecting = [found["metadata"]["name"] for resource in protection for found in server.store.all(resource)]
    assert made == (["vkgateway-lean-pods"] * 2 if version else [])
    assert protecting == ["vkgateway-deletion-protection"] * 2


def admission_policies(kind: str, version: str) -> list[Resource]:
    """Return the resources of admission policies and of their bindings in a version."""
    prefix, name = f"apis/admissionregistration.k8s.io/{version}", f"{kind.title()}AdmissionPolicy"
    plurals = {f"{kind}admissionpolicies": name, f"{kind}admissionpolicybindings": f"{name}Binding"}
    return [Resource(prefix, plural, each, namespaced=False) for plural, each in plurals.items()]


@pytest.mark.parametrize(("release", "on"), [("1.33.13", False), ("1.34.4", True), ("1.35.4", True), ("1.36.3", False)])
def test_beta_policies_are_enabled_in_the_compute_cluster(paths: PlatformPaths, release: str, on: bool) -> None:
    record, now = msgspec.structs.replace(RECORD, kubernetes_version=release), datetime.datetime.now(datetime.UTC)
    files = compute.write_plane(paths, record=record, pki=ensure_pki(paths, now=now), now=now)
    programs = {"kube-apiserver": Path("/kube-apiserver")}
    argv = compute.process_spec("apiserver", record=record, files=files, programs=programs).argv
    assert ("--runtime-config=admissionregistration.k8s.io/v1beta1=true" in argv) == on
    assert any("MutatingAdmissionPolicy=true" in flag for flag in argv) == on


def test_the_service_kubernetes_leads_to_the_api_server() -> None:
    slice_of_api, endpoints = compute.own_endpoints(RECORD)
    assert slice_of_api["endpoints"][0]["addresses"] == ["10.213.4.1"]
    assert slice_of_api["ports"][0]["port"] == PORTS["compute-api"]
    assert endpoints["subsets"] == [{"addresses": [{"ip": "10.213.4.1"}], "ports": slice_of_api["ports"]}]
    assert endpoints["metadata"]["labels"] == {"endpointslice.kubernetes.io/skip-mirror": "true"}


def test_gateway_settings_are_read_back(paths: PlatformPaths) -> None:
    record = msgspec.structs.replace(RECORD, program_dirs=("/programs",), webhook_ranges=("127.0.0.1/32",))
    wanted = gateway_process.gateway_settings(paths, record=record)
    assert wanted.control_planes.webhook_ranges == ("127.0.0.1/32",)
    gateway_process.process_spec(paths, wanted)
    assert settingsfile.load_settings(paths.gateway.config_file, environment={}) == wanted
    assert wanted.arbiter.notice_seconds == 5
    assert [Path(log).parent for log in (wanted.arbiter.decision_log, wanted.arbiter.usage_log)] == [
        paths.gateway.arbiter_dir
    ] * 2
    assert {paths.gateway.arbiter_dir, paths.conformance_dir} < set(paths.list_all())
    assert paths.gateway.config_file.stat().st_mode & 0o777 == 0o600


def test_gateway_uses_the_chosen_templates(paths: PlatformPaths) -> None:
    record = PlatformRecord(address="10.213.4.1", ports=dict(PORTS), templates_dir="/mine")
    assert gateway_process.gateway_settings(paths, record=record).control_planes.templates_dir == "/mine"
    assert gateway_process.gateway_settings(paths, record=RECORD).control_planes.templates_dir == ""


def test_changed_settings_restart_the_gateway(paths: PlatformPaths) -> None:
    def digest(address: str) -> str:
        record = PlatformRecord(address=address, ports=dict(PORTS))
        return gateway_process.process_spec(
            paths, gateway_process.gateway_settings(paths, record=record)
        ).short_digest()

    assert digest("10.213.4.1") == digest("10.213.4.1") != digest("10.213.5.1")


def test_error_if_all_numbers_are_taken() -> None:
    with pytest.raises(UnavailableError, match="all 256 platform numbers are taken"):
        network.free_number(taken=[f"vkg{number}" for number in range(256)])


def test_gateway_stops_before_its_clusters(paths: PlatformPaths) -> None:
    gateway = gateway_process.process_spec(paths, gateway_process.gateway_settings(paths, record=RECORD))
    store = etcd.process_spec(paths, program=Path("/etcd"), port=1, peer_port=2, durable=True)
    assert gateway.stop_rank > 50 > store.stop_rank


@pytest.mark.parametrize(
    ("runs", "result"), [(True, "stopped; tenants' control planes keep running"), (False, "disabled")]
)
async def test_disabled_gateway_is_stopped(paths: PlatformPaths, *, runs: bool, result: str) -> None:
    class Processes:
        """A supervisor of at most one process."""

        def __init__(self) -> None:
            self.names = ["gateway"] if runs else []

        async def list_processes(self, prefix: str) -> list[str]:
            assert prefix == "gateway"
            return list(self.names)

        async def remove_process(self, name: str) -> None:
            self.names.remove(name)

    supervisor: Any = Processes()
    record = msgspec.structs.replace(RECORD, real_node_why_not="disabled")
    async with Client("http://127.0.0.1:1") as api:
        steps = GatewaySteps(paths, record=record, cache_dir=None, supervisor=supervisor)
        (step,) = steps.build_steps(enabled=False, api=api)
        remark = await step.run()
    assert remark == f"{result}; `vkgateway serve --config {paths.gateway.config_file}` runs one by hand"
    assert supervisor.names == []
    wanted = gateway_process.gateway_settings(paths, record=record)
    assert settingsfile.load_settings(paths.gateway.config_file, environment={}) == wanted, (
        "what the one by hand serves with"
    )


def test_servers_use_batch_scheduling(paths: PlatformPaths) -> None:
    gateway = gateway_process.process_spec(paths, gateway_process.gateway_settings(paths, record=RECORD))
    store = etcd.process_spec(paths, program=Path("/etcd"), port=1, peer_port=2, durable=True)
    assert gateway.batch
    assert store.batch

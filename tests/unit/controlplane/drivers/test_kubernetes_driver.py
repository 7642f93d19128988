"""The driver `kubernetes` against a management cluster: objects, addresses, failures, removal."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.addresses import Addresses
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.waiting import wait_until
from tests.unit.controlplane.planes import AUTHORITIES
from tests.unit.controlplane.test_provisioner import World, tenant
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import ConflictError, InputError, UnavailableError
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import DEPLOYMENTS, ENDPOINT_SLICES, NAMESPACES, NETWORK_POLICIES, PODS, SECRETS, SERVICES
from vkgateway.planes.drivers.base import Driver, DriverContext, ServerEndpoint
from vkgateway.planes.drivers.kubernetes.driver import KubernetesDriver, create_driver
from vkgateway.planes.drivers.kubernetes.names import MOUNT
from vkgateway.planes.plane import COMPONENTS, tenant_plane_spec

NAMESPACE = "vkgateway-tenant-alpha"
PLANE = tenant_plane_spec("alpha", address="10.215.0.21", port=6443, etcd_endpoints=("https://10.0.0.1:2379",))


class ManagementWorld(World):
    """A provisioner whose control planes are objects of a management cluster; each call creates the driver again."""

    def __init__(self, server: FakeApiServer, folder: Path, *, management: FakeApiServer, client: Client) -> None:
        super().__init__(server, folder)
        self.cluster = management.store
        self.requests = management.requests
        self.client = client
        self.parameters: dict[str, Any] = {}

    @property
    def local(self) -> ClusterIdentity:
        """The management cluster as a compute cluster."""
        return ClusterIdentity("local", self.cluster.get(NAMESPACES, "kube-system")["metadata"]["uid"])

    def create_driver(self) -> Driver:
        return create_driver(
            DriverContext(
                data_dir=Path("/nonexistent"),
                address="10.0.0.1",
                kubelet_port=10250,
                authorities=AUTHORITIES,
                management=self.client,
                forwarder="10.213.0.2:54",
                settings={"parameters": self.parameters},
            )
        )

    def pod_spec(self, deployment: str = "control-plane") -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.get(DEPLOYMENTS, deployment, NAMESPACE)["spec"]["template"]["spec"]
        return found

    def publish_pods(self, service: str, *addresses: str, port: int = 6443, ready: bool = True) -> None:
        """Write the EndpointSlice of a Service, as Kubernetes does for its pods."""
        name = f"{service}-x1"
        labels = self.cluster.get(SERVICES, service, NAMESPACE)["metadata"]["labels"]
        document = {
            "metadata": {"name": name, "labels": labels | {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address], "conditions": {"ready": ready}} for address in addresses],
            "ports": [{"name": "any", "port": port, "protocol": "TCP"}],
        }
        if self.cluster.find(ENDPOINT_SLICES, name, NAMESPACE) is None:
            self.cluster.create(ENDPOINT_SLICES, document, NAMESPACE)
        else:
            self.cluster.update(ENDPOINT_SLICES, document, name=name, namespace=NAMESPACE)


@contextlib.asynccontextmanager
async def start_world(folder: Path) -> AsyncIterator[ManagementWorld]:
    """Start a management cluster, with the rights of the driver only, and the API server of a tenant."""
    async with (
        FakeApiServer() as server,
        FakeApiServer(rights=Rights.of_driver()) as management,
        management.client("management") as client,
    ):
        Addresses(management.store)
        management.store.create(NAMESPACES, {"metadata": {"name": "kube-system"}})
        yield ManagementWorld(server, folder, management=management, client=client)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ManagementWorld]:
    async with start_world(tmp_path) as world:
        yield world


async def test_control_plane_is_a_deployment_behind_a_service(world: ManagementWorld) -> None:
    made = await world.provisioner().provision(tenant())
    assert made.url == "https://10.215.0.21:6443"
    containers = world.pod_spec()["containers"]
    assert [container["name"] for container in containers] == list(COMPONENTS)
    assert all(container["image"].startswith("registry.k8s.io/kube-") for container in containers)
    assert {"--bind-address=0.0.0.0", "--advertise-address=10.215.0.21"} <= set(containers[0]["args"])
    service = world.cluster.get(SERVICES, "api", NAMESPACE)["spec"]
    labels = world.cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


async def test_each_container_sees_the_files_that_its_flags_name_and_no_key_of_another(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    spec = world.pod_spec()
    stored = world.cluster.get(SECRETS, "files", NAMESPACE)["data"]
    keys = {volume["name"]: {item["key"] for item in volume["secret"]["items"]} for volume in spec["volumes"]}
    for container in spec["containers"]:
        (mount,) = container["volumeMounts"]
        named = {argument.rpartition("/")[2] for argument in container["args"] if f"={MOUNT}/" in argument}
        assert named <= keys[mount["name"]] <= stored.keys()
    assert "ca.key" not in keys["apiserver-files"] | keys["scheduler-files"]
    assert "sa.key" not in keys["scheduler-files"]
    assert not any("admin.kubeconfig" in found for found in keys.values())


async def test_pods_meet_the_restricted_level(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    enforced = world.cluster.get(NAMESPACES, NAMESPACE)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    assert enforced == "restricted"
    spec = world.pod_spec()
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}


async def test_control_planes_are_not_pods_of_their_tenant(world: ManagementWorld) -> None:
    """The label of forwarded objects would count them as the tenant's pods, and open them to the tenant's pods."""
    await world.provisioner().provision(tenant())
    for resource in (NAMESPACES, DEPLOYMENTS, SERVICES, SECRETS, NETWORK_POLICIES):
        found = world.cluster.all(resource)
        assert found
        assert all("vkgateway.io/tenant" not in one["metadata"].get("labels", {}) for one in found)


async def test_probes_need_no_credentials_where_the_release_allows_it(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    server = world.pod_spec()["containers"][0]
    assert server["readinessProbe"]["httpGet"]["path"].startswith("/readyz")
    assert server["livenessProbe"]["httpGet"]["path"] == "/livez?exclude=etcd", "no restart helps against etcd"
    assert any(argument.startswith("--authentication-config=") for argument in server["args"])
    assert not any(argument.startswith("--anonymous-auth") for argument in server["args"])
    new = tenant()
    old = msgspec.structs.replace(new, spec=msgspec.structs.replace(new.spec, kubernetes_version="1.31.14"))
    await world.provisioner().provision(old)
    server = world.pod_spec()["containers"][0]
    assert server["readinessProbe"]["tcpSocket"]
    assert "--anonymous-auth=false" in server["args"]


async def test_second_provision_changes_nothing(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    before = {resource.kind: world.cluster.all(resource) for resource in (DEPLOYMENTS, SECRETS, SERVICES)}
    await world.provisioner().provision(tenant())
    assert {resource.kind: world.cluster.all(resource) for resource in (DEPLOYMENTS, SECRETS, SERVICES)} == before


async def test_control_plane_is_loaded_after_a_restart(world: ManagementWorld) -> None:
    made = await world.provisioner().provision(tenant())
    loaded = await world.provisioner().load_existing(tenant())
    assert loaded is not None
    assert (loaded.url, loaded.kubelet_clients) == (made.url, made.kubelet_clients)
    assert made.kubelet_clients


async def test_foreign_namespace_is_neither_adopted_nor_deleted(world: ManagementWorld) -> None:
    world.cluster.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": {"team": "other"}}})
    with pytest.raises(ConflictError, match=f"namespace {NAMESPACE} exists and is not the one of tenant 'alpha'"):
        await world.provisioner().provision(tenant())
    await world.provisioner().deprovision("alpha")
    assert world.cluster.get(NAMESPACES, NAMESPACE)["metadata"]["labels"] == {"team": "other"}


async def test_deprovision_deletes_the_namespace(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    await world.provisioner().deprovision("alpha")
    assert world.cluster.find(NAMESPACES, NAMESPACE) is None
    assert world.cluster.find(DEPLOYMENTS, "control-plane", NAMESPACE) is None


async def test_changed_certificates_are_delivered_to_running_pods(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    labels = world.cluster.get(DEPLOYMENTS, "control-plane", NAMESPACE)["spec"]["selector"]["matchLabels"]
    world.cluster.create(PODS, {"metadata": {"name": "server-0", "labels": labels}, "spec": {}}, NAMESPACE)
    world.cluster.delete(SECRETS, "files", NAMESPACE)
    await world.provisioner().provision(tenant())
    assert "vkgateway.io/mounted" in world.cluster.get(PODS, "server-0", NAMESPACE)["metadata"]["annotations"]


async def test_namespace_is_deleted_after_the_ends_of_its_pods(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    world.cluster.create(PODS, {"metadata": {"name": "server-0"}, "spec": {}}, NAMESPACE)
    removal = asyncio.create_task(world.provisioner().deprovision("alpha"))
    await wait_until(lambda: world.cluster.find(DEPLOYMENTS, "control-plane", NAMESPACE) is None)
    await asyncio.sleep(0)
    assert "deletionTimestamp" not in world.cluster.get(NAMESPACES, NAMESPACE)["metadata"]
    world.cluster.delete(PODS, "server-0", NAMESPACE)
    await removal
    assert world.cluster.find(NAMESPACES, NAMESPACE) is None


async def test_unknown_parameter_is_an_error_that_lists_the_known_ones(world: ManagementWorld) -> None:
    world.parameters["registri"] = "registry.example.org"
    with pytest.raises(InputError, match=r"controlPlanes\.parameters: .*registri") as caught:
        world.create_driver()
    assert "registry" in caught.value.hint


async def test_name_server_is_a_pod_that_reads_the_tenants_services(world: ManagementWorld) -> None:
    servers = world.create_driver().name_servers
    assert servers is not None
    with pytest.raises(UnavailableError, match="no certificate yet"):
        await servers.ensure_server("alpha", world.local, {})
    await world.provisioner().provision(tenant())
    names = {"web.default.svc.cluster.local": "10.0.0.9"}
    with pytest.raises(UnavailableError, match="not known yet"):
        await servers.ensure_server("alpha", world.local, names)
    config = world.cluster.get(SECRETS, "names-local", NAMESPACE)["data"]
    assert base64.b64decode(config["hosts"]) == b"10.0.0.9 web.default.svc.cluster.local\n"
    await servers.remove_stale(set())
    assert world.cluster.find(DEPLOYMENTS, "names-local", NAMESPACE) is None
    assert world.cluster.find(DEPLOYMENTS, "control-plane", NAMESPACE) is not None


async def test_changed_names_are_delivered_to_running_pods_once(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    driver = world.create_driver()
    servers = driver.name_servers
    assert servers is not None
    labels = {"vkgateway.io/control-plane": "alpha", "app.kubernetes.io/component": "names-local"}
    world.cluster.create(PODS, {"metadata": {"name": "names-1", "labels": labels}, "spec": {}}, NAMESPACE)
    world.cluster.create(PODS, {"metadata": {"name": "other"}, "spec": {}}, NAMESPACE)

    async def serve(**addresses: str) -> str:
        with pytest.raises(UnavailableError):
            await servers.ensure_server("alpha", world.local, addresses)
        assert "annotations" not in world.cluster.get(PODS, "other", NAMESPACE)["metadata"]
        return str(world.cluster.get(PODS, "names-1", NAMESPACE)["metadata"]["annotations"]["vkgateway.io/mounted"])

    first = await serve(web="10.0.0.9")
    assert await serve(web="10.0.0.8") != first
    assert await serve(web="10.0.0.9") == first
    before = [one for one in world.requests if "/pods" in one]
    await serve(web="10.0.0.9")
    assert [one for one in world.requests if "/pods" in one] == before


class Listener:
    """A listener that records the tenants of each report."""

    def __init__(self) -> None:
        self.moved: list[str] = []
        self.changed: list[str] = []

    def addresses_changed(self, tenant: str) -> None:
        self.moved.append(tenant)

    def control_plane_changed(self, tenant: str) -> None:
        self.changed.append(tenant)

    def owns_address(self, tenant: str, address: str) -> bool:
        return False

    def is_of_other_tenant(self, tenant: str, address: str) -> bool:
        return False


@contextlib.asynccontextmanager
async def running(driver: Driver) -> AsyncIterator[Listener]:
    """Run the driver within the block, with its watches complete."""
    assert isinstance(driver, KubernetesDriver)
    watches: list[Reflector[Any]] = [driver._addresses._slices, *driver._objects._reflectors.values()]
    listener = Listener()
    task = asyncio.create_task(driver.run(listener))
    try:
        await wait_until(lambda: all(watch.is_complete for watch in watches))
        yield listener
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_compute_pods_reach_the_ready_pods_and_not_the_service(world: ManagementWorld) -> None:
    made = await world.provisioner().provision(tenant())
    endpoint = ServerEndpoint(made.address, made.port)
    driver = world.create_driver()
    with pytest.raises(UnavailableError, match="not known yet"):
        await driver.endpoints.reachable_from("alpha", world.local, endpoint=endpoint)
    async with running(driver) as listener:
        assert await driver.endpoints.reachable_from("alpha", world.local, endpoint=endpoint) == []
        world.publish_pods("api", "10.2.0.7", "10.2.0.6")
        await wait_until(lambda: listener.moved == ["alpha"])
        found = await driver.endpoints.reachable_from("alpha", world.local, endpoint=endpoint)
        assert found == [ServerEndpoint("10.2.0.6", 6443), ServerEndpoint("10.2.0.7", 6443)]
        assert await driver.endpoints.running("alpha", endpoint=endpoint) == found
        world.publish_pods("api", "10.2.0.7", ready=False)
        await wait_until(lambda: listener.moved == ["alpha", "alpha"])
        assert await driver.endpoints.reachable_from("alpha", world.local, endpoint=endpoint) == []


async def test_pods_of_another_cluster_cannot_reach_pod_addresses(world: ManagementWorld) -> None:
    made = await world.provisioner().provision(tenant())
    endpoint = ServerEndpoint(made.address, made.port)
    driver = world.create_driver()
    async with running(driver):
        world.publish_pods("api", "10.2.0.7")
        for cluster, reason in (
            (
                ClusterIdentity("far", "another uid"),
                "compute cluster 'far' cannot reach the tenant's API server",
            ),
            (ClusterIdentity("new"), "compute cluster 'new' is not identified yet"),
        ):
            with pytest.raises(UnavailableError, match=reason):
                await driver.endpoints.reachable_from("alpha", cluster, endpoint=endpoint)


async def test_name_server_answers_at_its_pods(world: ManagementWorld) -> None:
    await world.provisioner().provision(tenant())
    driver = world.create_driver()
    servers = driver.name_servers
    assert servers is not None
    async with running(driver) as listener:
        with pytest.raises(UnavailableError, match="not ready yet"):
            await servers.ensure_server("alpha", world.local, {})
        world.publish_pods("names-local", "10.2.0.9", port=1053)
        await wait_until(lambda: listener.moved == ["alpha"])
        assert await servers.ensure_server("alpha", world.local, {}) == [ServerEndpoint("10.2.0.9", 1053)]

"""The registry of drivers, and a driver without files and ports of this machine behind the same protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.controlplane.drivers import pod_driver
from tests.unit.controlplane.drivers.pod_driver import FakeCluster
from tests.unit.controlplane.planes import AUTHORITIES
from tests.unit.controlplane.test_provisioner import World, tenant
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import ConflictError, InputError, UnavailableError
from vkgateway.kube.client import Client
from vkgateway.planes.drivers import driver_set as registry
from vkgateway.planes.drivers.base import Driver, DriverContext
from vkgateway.planes.drivers.driver_set import driver_factory
from vkgateway.planes.drivers.process.driver import ProcessDriver
from vkgateway.settings import file as settingsfile


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with FakeApiServer() as server, server.client("management") as client:
        yield client


def context(client: Client, data_dir: Path, **parameters: str) -> DriverContext:
    return DriverContext(
        data_dir=data_dir,
        address="10.213.0.1",
        kubelet_port=10352,
        authorities=AUTHORITIES,
        management=client,
        forwarder="10.213.0.2:53",
        settings={"driver": "any", "cacheDir": "", "parameters": parameters},
    )


def test_unknown_driver_is_an_error_that_lists_the_available_ones(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("controlPlanes: {driver: pods}")
    with pytest.raises(InputError, match=r"controlPlanes\.driver: driver 'pods' does not exist") as caught:
        settingsfile.load_settings(file, environment={})
    assert caught.value.hint == "Available drivers: kubernetes, process."


def test_registered_driver_needs_no_other_change(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = FakeCluster()
    factories = {**registry.DRIVERS, "pods": lambda given: pod_driver.create_driver(cluster, given)}
    monkeypatch.setattr(registry, "DRIVERS", factories)
    variables = {
        "VKGATEWAY_CONTROL_PLANES_DRIVER": "pods",
        "VKGATEWAY_CONTROL_PLANES_PARAMETERS": "registry=registry.example.org/kubernetes",
    }
    settings = settingsfile.load_settings(environment=variables).control_planes
    driver = driver_factory(settings.driver)(context(client, tmp_path, **settings.parameters))
    assert isinstance(driver, pod_driver.PodDriver)


async def test_process_driver_has_name_servers_if_there_is_a_forwarder(client: Client, tmp_path: Path) -> None:
    driver: Driver = driver_factory("process")(context(client, tmp_path))
    assert isinstance(driver, ProcessDriver)
    assert driver.name_servers is not None
    listening = driver.name_servers.listening_range
    assert listening is not None
    assert (listening.address, listening.other_ports) == ("10.213.0.1", (10352,))


def test_process_driver_refuses_parameters(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"controlPlanes\.parameters: .* found: registry"):
        driver_factory("process")(context(client, tmp_path, registry="registry.example.org"))


class PodWorld(World):
    """A provisioner whose control planes run as pods; each call creates the driver again, as a restart does."""

    def __init__(self, server: FakeApiServer, folder: Path, management: Client) -> None:
        super().__init__(server, folder)
        self.cluster = FakeCluster()
        self.context = context(management, folder / "unused", registry="registry.example.org")

    def create_driver(self) -> Driver:
        return pod_driver.create_driver(self.cluster, self.context)


@pytest.fixture
async def world(client: Client, tmp_path: Path) -> AsyncIterator[PodWorld]:
    async with FakeApiServer() as server:
        yield PodWorld(server, tmp_path, client)


async def test_pod_driver_uses_neither_files_nor_ports_of_this_machine(world: PodWorld, tmp_path: Path) -> None:
    made = await world.provisioner().provision(tenant())
    assert not (tmp_path / "unused").exists()
    assert made.url == "https://10.96.0.10:6443"
    pod = world.cluster.pods["alpha", "apiserver"]
    assert pod.image.startswith("registry.example.org/kube-apiserver:v1.")
    assert {"--bind-address=0.0.0.0", "--advertise-address=10.96.0.10"} <= set(pod.arguments)
    mounted = [
        value for value in (a.partition("=")[2] for a in pod.arguments) if value.startswith(str(pod_driver.MOUNT))
    ]
    assert mounted
    assert {Path(path).name for path in mounted} <= world.cluster.secrets["alpha", "files"].keys()


async def test_tenants_in_pods_share_a_port_at_different_addresses(world: PodWorld) -> None:
    made = [await world.provisioner().provision(tenant(name)) for name in ("alpha", "beta")]
    assert {plane.port for plane in made} == {6443}
    assert len({plane.address for plane in made}) == 2


async def test_control_plane_in_pods_is_loaded_after_a_restart(world: PodWorld) -> None:
    made = await world.provisioner().provision(tenant())
    loaded = await world.provisioner().load_existing(tenant())
    assert loaded is not None
    assert (loaded.url, loaded.kubelet_clients) == (made.url, made.kubelet_clients)
    assert made.kubelet_clients


async def test_second_provision_changes_no_pod_and_no_certificate(world: PodWorld) -> None:
    await world.provisioner().provision(tenant())
    before = dict(world.cluster.pods), dict(world.cluster.secrets)
    await world.provisioner().provision(tenant())
    assert (world.cluster.pods, world.cluster.secrets) == before


async def test_provision_is_retried_until_the_service_has_an_address(world: PodWorld) -> None:
    world.cluster.pending_addresses = 1
    with pytest.raises(UnavailableError, match="no address yet"):
        await world.provisioner().provision(tenant())
    assert (await world.provisioner().provision(tenant())).address == "10.96.0.10"


async def test_port_that_the_driver_cannot_serve_is_refused(world: PodWorld) -> None:
    with pytest.raises(ConflictError, match="serve at port 6443, not 20001"):
        await world.provisioner().provision(tenant(port=20001))


async def test_each_name_server_in_a_pod_has_its_own_address(world: PodWorld) -> None:
    await world.provisioner().provision(tenant())
    servers = world.create_driver().name_servers
    assert servers is not None
    assert servers.listening_range is None
    with pytest.raises(UnavailableError, match="no certificate yet"):
        await servers.ensure_server("beta", ClusterIdentity("local"), {})
    names = {"web.default.svc.cluster.local": "10.96.0.20"}
    (first,) = await servers.ensure_server("alpha", ClusterIdentity("local"), names)
    (second,) = await servers.ensure_server("alpha", ClusterIdentity("remote"), {})
    assert first.port == second.port == 53
    assert first.address != second.address
    assert world.cluster.secrets["alpha", "names-local"]["hosts"] == b"10.96.0.20 web.default.svc.cluster.local\n"
    await servers.remove_stale({"remote"})
    assert ("alpha", "names-local") not in world.cluster.pods
    assert ("alpha", "names-remote") in world.cluster.pods


async def test_deprovision_removes_everything_from_the_cluster(world: PodWorld) -> None:
    await world.provisioner().provision(tenant())
    await world.provisioner().deprovision("alpha")
    assert [*world.cluster.pods, *world.cluster.secrets, *world.cluster.services] == []

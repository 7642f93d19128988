"""Control planes of tenants on real programs: creation, interruption, attacks, repair, removal."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import msgspec
import psutil
import pytest
import pytest_asyncio

from tests.e2e.controlplane.world import World, run_world
from tests.support.waiting import wait_until
from vkgateway.api.objects import Meta
from vkgateway.api.types import Tenant
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import DEPLOYMENTS, NAMESPACES, PODS, SECRETS, SERVICE_ACCOUNTS
from vkgateway.planes.access import ControlPlane
from vkgateway.planes.etcd.client import EtcdClient
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.errors import EtcdDenied, EtcdError, EtcdNotFound, EtcdUnavailable
from vkgateway.planes.etcd.ranges import KeyRange
from vkgateway.planes.etcd.tenancy import Tenancy
from vkgateway.planes.provisioner import Step

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

MAKING = (Step.CREDENTIALS, Step.PROGRAMS, Step.DATASTORE, Step.PROCESSES, Step.OBJECTS, Step.SERVING)
REMOVING = (Step.ERASING, Step.FORGETTING)


class Stopped(Exception):  # noqa: N818 - the gateway dies here
    pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with run_world(tmp_path_factory.mktemp("platform")) as place:
        yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def alpha(place: World) -> ControlPlane:
    return await place.provisioner().provision(tenant("alpha"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def beta(place: World) -> ControlPlane:
    return await place.provisioner().provision(tenant("beta"))


def tenant(name: str) -> Tenant:
    return Tenant(metadata=Meta(name=name))


def stop_at(step: Step) -> Callable[[Step], Awaitable[None]]:
    async def on_step(reached: Step) -> None:
        if reached is step:
            raise Stopped

    return on_step


async def wait_for_controllers(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for the work of a control plane's controllers, which may just have started, as long as other tests do."""
    await wait_until(condition, seconds=120, interval=0.1)


async def test_admin_works_in_the_tenant_cluster(place: World, alpha: ControlPlane, beta: ControlPlane) -> None:
    kubeconfig = place.kubeconfig("alpha")
    assert (await place.kubectl(kubeconfig, "create", "namespace", "team"))[0] == 0
    code, output = await place.kubectl(kubeconfig, "-n", "team", "create", "deployment", "web", "--image=x")
    assert code == 0, output
    async with alpha.create_client() as client:
        await wait_for_controllers(lambda: _count_pods(client, "team"))
    async with beta.create_client() as client:
        with pytest.raises(errors.NotFound):
            await client.get(NAMESPACES, "team")


async def test_interrupted_provisioning_and_removal_complete(place: World) -> None:
    for step in MAKING:
        with pytest.raises(Stopped):
            await place.provisioner().provision(tenant("gamma"), on_step=stop_at(step))
    gamma = await place.provisioner().provision(tenant("gamma"))
    async with gamma.create_client() as client:
        await wait_for_controllers(lambda: _count_service_accounts(client))
    for step in REMOVING:
        with pytest.raises(Stopped):
            await place.provisioner().deprovision("gamma", on_step=stop_at(step))
    await place.provisioner().deprovision("gamma")
    await _check_removed(place, "gamma")


async def test_etcd_certificate_opens_only_the_tenants_keys(
    place: World, alpha: ControlPlane, beta: ControlPlane
) -> None:
    folder = place.data_dir / "tenants" / "alpha"
    tls = ClientTls(
        ca=(folder / "etcd-ca.crt").read_bytes(),
        cert=(folder / "etcd.crt").read_bytes(),
        key=(folder / "etcd.key").read_bytes(),
    )
    own_keys, all_keys = KeyRange.for_prefix("/tenants/alpha"), KeyRange(b"\0", b"\0")
    async with EtcdClient([place.endpoint], tls=tls) as etcd:
        assert await etcd.keys.count_range(own_keys) > 0
        for attempt in (
            etcd.keys.count_range(KeyRange.for_prefix("/tenants/beta")),
            etcd.keys.count_range(KeyRange.for_prefix("/compute")),
            etcd.keys.count_range(KeyRange(own_keys.start, b"/tenants/b")),
            etcd.keys.count_range(all_keys),
            etcd.keys.put("/tenants/beta/x", b""),
            etcd.keys.put("/tenants/alpha", b""),
            etcd.keys.delete_range(all_keys),
            etcd.auth.list_users(),
            etcd.auth.add_user("mallory"),
            etcd.auth.grant_role("tenant-alpha", role="root"),
            etcd.auth.grant_range("tenant-alpha", keys=all_keys),
        ):
            with pytest.raises(EtcdDenied):
                await attempt


async def test_tenant_ca_is_not_trusted_by_etcd(place: World, alpha: ControlPlane) -> None:
    record = await place.store().load("alpha")
    assert record is not None
    async with place.etcd_as("root", authority=record.credentials.ca) as etcd:
        with pytest.raises((EtcdUnavailable, EtcdDenied)):
            await etcd.auth.list_users()
    async with place.etcd_as("stranger") as etcd:
        with pytest.raises(EtcdError):
            await etcd.keys.count_range(KeyRange.for_prefix("/tenants/alpha"))


async def test_admin_has_no_rights_elsewhere(place: World, alpha: ControlPlane, beta: ControlPlane) -> None:
    record = await place.store().load("alpha")
    assert record is not None
    admin = record.credentials.admin
    for url, ca in ((beta.url, beta.ca), (place.management.server, place.management_ca())):
        async with Client.from_pem(url, ca=ca, cert=admin.cert_pem, key=admin.key_pem) as client:
            with pytest.raises(errors.Unauthorized):
                await client.list_all(NAMESPACES)


async def test_tokens_are_invalid_elsewhere(place: World, alpha: ControlPlane, beta: ControlPlane) -> None:
    async with alpha.create_client() as client:
        await wait_for_controllers(lambda: _count_service_accounts(client))
        response = await client.create(
            SERVICE_ACCOUNTS, {"spec": {}}, namespace="default", name="default", subresource="token"
        )
    token = msgspec.json.decode(response)["status"]["token"]
    assert await _http_status(alpha, "/api", token) == 200
    assert await _http_status(beta, "/api", token) == 401


async def test_anonymous_requests_are_refused(alpha: ControlPlane) -> None:
    assert await _http_status(alpha, "/api", "") == 401
    assert await _http_status(alpha, "/version", "") == 401


async def test_dead_process_is_restarted_and_the_cluster_continues(place: World, alpha: ControlPlane) -> None:
    before = {state.name: state.pid for state in await place.supervisor.list_processes("tenant/alpha")}
    for pid in before.values():
        psutil.Process(pid).kill()
    again = await place.provisioner().provision(tenant("alpha"))
    assert (again.url, again.ca) == (alpha.url, alpha.ca)
    async with again.create_client() as client:
        spec = {"containers": [{"name": "c", "image": "x"}]}
        labels = {"app": "later"}
        deployment = {
            "metadata": {"name": "later"},
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        await client.create(DEPLOYMENTS, deployment, namespace="default")
        await wait_for_controllers(lambda: _count_pods(client, "default"))


async def test_removal_deletes_one_tenant_completely(place: World, alpha: ControlPlane, beta: ControlPlane) -> None:
    await place.provisioner().deprovision("alpha")
    await _check_removed(place, "alpha")
    async with beta.create_client() as client:
        await client.get(NAMESPACES, "default")
    assert "tenant/beta/apiserver" in {state.name for state in await place.supervisor.list_processes()}
    assert await place.etcd.keys.count_range(KeyRange.for_prefix("/tenants/beta")) > 0


async def _check_removed(place: World, name: str) -> None:
    assert await place.etcd.keys.count_range(KeyRange.for_prefix(f"/tenants/{name}")) == 0
    assert name not in await Tenancy(place.etcd).list_tenants()
    with pytest.raises(EtcdNotFound):
        await place.etcd.auth.ranges_of(f"tenant-{name}")
    assert await place.supervisor.list_processes(f"tenant/{name}") == []
    secrets = await place.management.list_all(SECRETS, namespace="vkgateway-system")
    assert not [item for item in secrets.items if f'"tenant-{name}"'.encode() in bytes(item)]
    assert not (place.data_dir / "tenants" / name).exists()
    assert not list((place.data_dir / "logs").glob(f"tenant.{name}.*"))
    tenant_folder = str(place.data_dir / "tenants" / name)
    running = [found.info["cmdline"] or [] for found in psutil.process_iter(["cmdline"])]
    assert not [argv for argv in running if any(tenant_folder in argument for argument in argv)]


async def _count_pods(client: Client, namespace: str) -> int:
    return len((await client.list_all(PODS, namespace=namespace)).items)


async def _count_service_accounts(client: Client) -> int:
    return len((await client.list_all(SERVICE_ACCOUNTS, namespace="default")).items)


async def _http_status(control_plane: ControlPlane, path: str, token: str) -> int:
    """Return the API server's HTTP status for a bearer of `token` without a certificate."""
    context = ssl.create_default_context(cadata=control_plane.ca.decode())
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(control_plane.url + path, ssl=context) as response,
    ):
        return response.status

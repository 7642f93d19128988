"""Tests of the daemon process without its gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Collection, Mapping
from pathlib import Path

import aiohttp
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.machine import patience
from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.clusters import prerequisites
from vkgateway.kube import errors, kubeconfig
from vkgateway.kube.backoff import Backoff
from vkgateway.kube.leader_election import LeaderElector
from vkgateway.kube.resources import CRDS, NAMESPACES, PRIORITY_CLASSES
from vkgateway.planes.etcd.errors import EtcdUnavailable
from vkgateway.planes.etcd.quota import StoreUsage
from vkgateway.planes.pki import Authority
from vkgateway.serve import certificate_authority, daemon, serving, startup
from vkgateway.serve.addresses import GatewayAddress
from vkgateway.serve.health import HealthServer
from vkgateway.settings import config


async def test_failed_renewal_of_certificate_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    renewals: list[str] = []
    twice = asyncio.Event()

    def load(_context: ssl.SSLContext, *, cert: bytes, key: bytes) -> None:
        renewals.append("tried")
        if len(renewals) == 1:
            raise OSError("no space left on device")
        twice.set()

    address = GatewayAddress(listen="127.0.0.1", advertised="127.0.0.1")
    monkeypatch.setattr(serving, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(serving, "load_identity", load)
    async with serving.kubelet_tls(Authority.create("kubelets"), address), asyncio.timeout(patience(30)):
        await twice.wait()


@pytest.mark.parametrize("helps", [True, False])
async def test_startup_frees_space_in_full_datastore(*, helps: bool) -> None:
    tried: list[str] = []

    class Datastore:
        blocked: Mapping[str, int] = {}

        async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:
            assert not exempt
            tried.append("look")
            if not helps:
                raise EtcdUnavailable("etcd did not do Status")
            return StoreUsage(in_use=1, file_size=1, quota=100)

    async def prepare() -> str:
        tried.append("prepare")
        if len(tried) > 4:
            return "done"
        if len(tried) == 1:
            raise errors.ServerError("connection refused")
        raise errors.ServerError("etcdserver: mvcc: database space exceeded")

    patience = startup.StartupRetry(Backoff(base=0.0, cap=0.0))
    assert await patience.retry_until_ready(prepare, remedy=lambda: startup.free_datastore_space(Datastore())) == "done"
    assert tried == ["prepare", "prepare", "look", "prepare", "look", "prepare"]


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (UnavailableError("Secret a/b holds no key", hint="Restore it."), "Secret a/b holds no key. Restore it."),
        (errors.Forbidden("PATCH /a: forbidden"), "PATCH /a: forbidden. Grant the permission: see deploy/rbac"),
    ],
)
async def test_startup_reports_what_is_missing_until_it_exists(failure: VkgatewayError, shown: str) -> None:
    patience = startup.StartupRetry(Backoff(base=0.0, cap=0.0))
    problems: list[str] = []

    async def prepare() -> str:
        problems.append(patience.problem)
        if len(problems) < 3:
            raise failure
        return "done"

    assert await patience.retry_until_ready(prepare) == "done"
    assert [problem[: len(shown)] for problem in problems] == ["", shown, shown]
    assert (patience.problem, patience.pending_reason) == ("", "")


async def test_startup_does_not_retry_what_cannot_succeed() -> None:
    async def prepare() -> None:
        raise errors.Invalid("PATCH /a: invalid")

    with pytest.raises(errors.Invalid):
        await startup.StartupRetry(Backoff(base=0.0, cap=0.0)).retry_until_ready(prepare)


async def test_gateway_is_live_but_not_ready_without_management_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the liveness probe would restart the gateway repeatedly."""
    async with FakeApiServer() as server:
        gone = server.url
    kubeconfig.write_file(tmp_path / "config", kubeconfig.build_document("management", server=gone, ca=""))
    settings = config.Config(
        data_dir=str(tmp_path),
        management_cluster=config.ManagementCluster(kubeconfig=str(tmp_path / "config")),
        datastore=datastore_settings(tmp_path),
        observability=config.Observability(port=0),
    )
    again = asyncio.Event()
    tries: list[str] = []
    served: list[HealthServer] = []
    listen = HealthServer.__aenter__

    async def take(*_: object) -> bool:
        tries.append("take")
        if len(tries) == 2:
            again.set()
        raise errors.ServerError("connection refused")

    async def enter(self: HealthServer) -> HealthServer:
        served.append(self)
        return await listen(self)

    monkeypatch.setattr(HealthServer, "__aenter__", enter)
    monkeypatch.setattr(LeaderElector, "try_acquire", take)
    work = asyncio.create_task(daemon._run_gateway(settings, files=1024))
    try:
        async with asyncio.timeout(patience(30)):
            await again.wait()
            assert served, "no prober can check its health"
            async with aiohttp.ClientSession(f"http://127.0.0.1:{served[0].port}") as session:
                async with session.get("/healthz") as answer:
                    assert answer.status == 200
                async with session.get("/readyz") as answer:
                    assert answer.status == 503
                    assert "[-]lease: connection refused\n" in await answer.text()
            connector = aiohttp.UnixConnector(str(tmp_path / "run/gateway.sock"))
            async with (
                aiohttp.ClientSession("http://gateway", connector=connector) as session,
                session.get("/metrics") as answer,
            ):
                assert answer.status == 200
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def datastore_settings(folder: Path) -> config.Datastore:
    """Return settings with an unused etcd."""
    ca = Authority.create("etcd")
    ca.write(folder, "ca")
    ca.issue("root", client=True).write(folder, "root")
    return config.Datastore(
        endpoints=("https://127.0.0.1:1",),
        ca=str(folder / "ca.crt"),
        ca_key=str(folder / "ca.key"),
        cert=str(folder / "root.crt"),
        key=str(folder / "root.key"),
    )


async def test_management_role_suffices_for_startup() -> None:
    """An admin created the definitions and the namespace at the installation."""
    async with FakeApiServer(rights=Rights.of_management()) as server, server.client() as client:
        for name in ("tenants", "computeclusters"):
            crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
            established = {"conditions": [{"type": "Established", "status": "True"}]}
            server.store.create(CRDS, crd | {"metadata": {"name": f"{name}.vkgateway.io"}, "status": established})
        server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        health = HealthServer(address="127.0.0.1", port=0, checks={})
        await startup.prepare_management_cluster(config.ManagementCluster(), client, health)
        await certificate_authority.ensure_authority(client)
        assert server.store.all(PRIORITY_CLASSES) == []


async def test_priority_classes_do_not_preempt_and_rank_above_default() -> None:
    async with FakeApiServer(rights=Rights.of_compute()) as server, server.client() as client:
        await prerequisites.ensure_prerequisites(client)
        classes = {one["metadata"]["name"]: one for one in server.store.all(PRIORITY_CLASSES)}
    assert classes.keys() == {"vkgateway-guaranteed", "vkgateway-low"}
    assert all(one["preemptionPolicy"] == "Never" for one in classes.values())
    assert classes["vkgateway-guaranteed"]["value"] > classes["vkgateway-low"]["value"] > 0

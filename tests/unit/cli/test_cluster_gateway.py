"""Tests of commands that reach a gateway in a cluster through its API server."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.forwarding import ForwardingApiServer
from tests.fakes.rights import Rights
from tests.unit.cli.gateway import Cli, gang, pool, tenant
from tests.unit.gateway.management import Management, over_tls
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube.resources import LEASES, NAMESPACES, PODS, SERVICE_ACCOUNTS
from vkgateway.planes.pki import Authority
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport
from vkgateway.serve import rbac

POD = "vkgateway-7d9f6-x2x4z"
STATE = ArbiterReport(pools=(pool(),), tenants=(tenant("alpha"),), gangs=(gang("alpha/research/job/train"),))


class _Reviewer(Management):
    """Management cluster that knows the tokens of the service account of readers as the user `operator`."""

    async def request(self, method: str, path: str, **given: Any) -> bytes:
        body = msgspec.json.decode(given["body"])
        if str(body["spec"].get("token", "")).startswith("token.vkgateway-system.vkgateway-state-reader."):
            body["spec"]["token"] = "operator"
        return await super().request(method, path, **given | {"body": msgspec.json.encode(body)})


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


@contextlib.asynccontextmanager
async def _cluster(*, lease: bool = True, pod: bool = True, account: bool = True) -> AsyncIterator[ForwardingApiServer]:
    """Serve a management cluster with a gateway as a pod, for a user with the shipped role only."""
    async with over_tls(_Reviewer(), Authority.create("gateway"), state=STATE) as url:
        port = int(url.rpartition(":")[2])
        rights = Rights(rbac.state_reader_roles())
        async with ForwardingApiServer(pods={POD: {9632: port}}, rights=rights) as server:
            server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
            if lease:
                spec = {"holderIdentity": f"{POD}/1a2b3c4d"}
                server.store.create(LEASES, {"metadata": {"name": "gateway"}, "spec": spec}, SYSTEM_NAMESPACE)
            if pod:
                ports = [{"name": "health", "containerPort": 9631}, {"name": "metrics", "containerPort": 9632}]
                document = {"metadata": {"name": POD}, "spec": {"containers": [{"name": "gateway", "ports": ports}]}}
                server.store.create(PODS, document, SYSTEM_NAMESPACE)
            if account:
                document = {"metadata": {"name": "vkgateway-state-reader"}}
                server.store.create(SERVICE_ACCOUNTS, document, SYSTEM_NAMESPACE)
            yield server


async def test_queue_reads_state_through_api_server(cli: Cli) -> None:
    async with _cluster() as server:
        kubeconfig = cli.kubeconfig(server.url)
        assert await cli("queue", "--gateway-kubeconfig", str(kubeconfig)) == 0, cli.err
        assert "train" in cli.out
        assert server.forwarded == [f"{SYSTEM_NAMESPACE}/{POD}:9632"]


async def test_variable_names_cluster_unless_machine_has_gateway(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async with _cluster() as server:
        monkeypatch.setenv("VKGATEWAY_KUBECONFIG", str(cli.kubeconfig(server.url)))
        assert await cli("top") == 0, cli.err
        assert len(server.forwarded) == 1
        async with cli.gateway(STATE):
            assert await cli("top") == 0, cli.err
        assert len(server.forwarded) == 1


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ({"lease": False}, "no gateway has served the cluster at http://"),
        ({"pod": False}, f"the gateway runs at '{POD}', which is not a pod in the namespace vkgateway-system"),
        ({"account": False}, "service account vkgateway-system/vkgateway-state-reader does not exist"),
    ],
)
async def test_what_is_missing_is_reported(cli: Cli, missing: dict[str, bool], problem: str) -> None:
    async with _cluster(**missing) as server:
        assert await cli("queue", "--gateway-kubeconfig", str(cli.kubeconfig(server.url))) == 5
    assert problem in cli.err


async def test_missing_permission_is_reported(cli: Cli) -> None:
    async with _cluster() as server:
        server.rights = Rights([])
        assert await cli("queue", "--gateway-kubeconfig", str(cli.kubeconfig(server.url))) == 5
    assert "needs the Role vkgateway-state-reader" in cli.err


async def test_unreachable_pod_is_reported(cli: Cli) -> None:
    async with _cluster() as server:
        server._pods[POD].clear()
        assert await cli("queue", "--gateway-kubeconfig", str(cli.kubeconfig(server.url))) == 5
    assert "the gateway's pod is unreachable: the kubelet of pod" in cli.err

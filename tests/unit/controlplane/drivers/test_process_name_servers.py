"""Tenants' name servers as processes: configuration, ports, repeated calls."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.support.machine import patience
from tests.unit.controlplane.fakes import FakePrograms, FakeSupervisor
from tests.unit.controlplane.planes import tenant_plane, write
from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import UnavailableError
from vkgateway.planes.drivers.process.name_servers import PORTS, ProcessNameServers, _has_acl, _is_port_free
from vkgateway.planes.name_server_config import render_hosts_file
from vkgateway.tenants.name_servers import ForwardingNameServers, retire_periodically

LOCAL = ClusterIdentity("local")
WEB = {"web.default.svc.cluster.local": "10.215.0.20"}


def name_servers(
    data_dir: Path, supervisor: FakeSupervisor, *, answers: bool = True, sources: tuple[str, ...] = (), acl: bool = True
) -> ProcessNameServers:
    return ProcessNameServers(
        data_dir=data_dir,
        supervisor=supervisor,
        programs=FakePrograms(),
        address="10.213.0.1",
        forwarder="10.213.0.2:54",
        sources=sources,
        can_bind=lambda _address, _port: True,
        answers=lambda _address, _port: answers,
        has_acl=lambda _: acl,
    )


@pytest.fixture
def alpha(tmp_path: Path) -> Path:
    write(tmp_path / "tenants" / "alpha", tenant_plane())
    return tmp_path / "tenants" / "alpha"


async def test_server_reads_the_tenants_services_with_its_own_certificate(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    (endpoint,) = await name_servers(tmp_path, supervisor).ensure_server("alpha", LOCAL, WEB)
    text = (alpha / "names-local" / "Corefile").read_text()
    port = endpoint.port
    assert port in PORTS
    assert text.startswith(f".:{port} {{\n")
    assert f"kubeconfig {alpha / 'coredns.kubeconfig'}\n" in text
    assert text.count("forward . 10.213.0.2:54\n") == 1
    assert text.count("bind 10.213.0.1\n") == 1
    assert (alpha / "names-local" / "hosts").read_text() == "10.215.0.20 web.default.svc.cluster.local\n"
    assert "tenant/alpha/names-local" in {state.name for state in await supervisor.list_processes("tenant/alpha")}


async def test_server_refuses_other_clients_and_restarts_when_the_sources_change(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    await name_servers(tmp_path, supervisor).ensure_server("alpha", LOCAL, WEB)
    corefile = alpha / "names-local" / "Corefile"
    assert "acl" not in corefile.read_text()
    (before,) = supervisor.specs.values()
    await name_servers(tmp_path, supervisor, sources=("10.214.0.0/24", "10.213.0.2/32")).ensure_server(
        "alpha", LOCAL, WEB
    )
    assert "  acl {\n    allow net 10.214.0.0/24 10.213.0.2/32\n    block\n  }\n" in corefile.read_text()
    (after,) = supervisor.specs.values()
    assert before.short_digest() != after.short_digest()


async def test_coredns_without_acl_answers_every_client(tmp_path: Path, alpha: Path) -> None:
    await name_servers(tmp_path, FakeSupervisor(), sources=("10.214.0.0/24",), acl=False).ensure_server(
        "alpha", LOCAL, WEB
    )
    assert "acl {" not in (alpha / "names-local" / "Corefile").read_text()


@pytest.mark.parametrize(("plugins", "found"), [("dns.acl\ndns.bind", True), ("dns.bind", False)])
def test_acl_support_is_read_from_the_list_of_plugins(tmp_path: Path, plugins: str, found: bool) -> None:
    program = tmp_path / "coredns"
    program.write_text(f"#!/bin/sh\nprintf '{plugins}'\n")
    program.chmod(0o755)
    assert _has_acl(program) is found


async def test_second_call_writes_only_changed_addresses(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    (endpoint,) = await name_servers(tmp_path, supervisor).ensure_server("alpha", LOCAL, WEB)
    corefile = (alpha / "names-local" / "Corefile").stat().st_mtime_ns
    assert await name_servers(tmp_path, supervisor).ensure_server("alpha", LOCAL, {}) == (endpoint,)
    assert (alpha / "names-local" / "Corefile").stat().st_mtime_ns == corefile
    assert (alpha / "names-local" / "hosts").read_text() == ""


@pytest.mark.usefixtures("alpha")
async def test_ports_of_servers_are_unique(tmp_path: Path) -> None:
    names = name_servers(tmp_path, FakeSupervisor())
    clusters = [ClusterIdentity(f"cluster-{number}") for number in range(20)]
    endpoints = [one for cluster in clusters for one in await names.ensure_server("alpha", cluster, {})]
    assert len(set(endpoints)) == 20


@pytest.mark.usefixtures("alpha")
async def test_server_is_unavailable_without_certificates_or_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match="no certificate yet"):
        await name_servers(tmp_path, FakeSupervisor()).ensure_server("beta", LOCAL, {})
    monkeypatch.setattr("vkgateway.planes.drivers.process.name_servers._READY_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="does not answer"):
        await name_servers(tmp_path, FakeSupervisor(), answers=False).ensure_server("alpha", LOCAL, {})


async def test_servers_of_removed_compute_clusters_are_removed(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    names = name_servers(tmp_path, supervisor)
    for cluster in ("local", "local-2", "east"):
        await names.ensure_server("alpha", ClusterIdentity(cluster), WEB)
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("names-local", "names-local-2", "apiserver"):
        (logs / f"tenant.alpha.{name}.log").touch()

    await names.remove_stale({"local-2", "east"})
    left = {state.name for state in await supervisor.list_processes("tenant/alpha")}
    assert left == {"tenant/alpha/names-local-2", "tenant/alpha/names-east"}
    assert not (alpha / "names-local").exists()
    assert sorted(file.name for file in logs.iterdir()) == [
        "tenant.alpha.apiserver.log",
        "tenant.alpha.names-local-2.log",
    ]
    (again,) = await names.ensure_server("alpha", LOCAL, WEB)
    assert again.port in PORTS, "a cluster of that name may return"


async def test_stale_servers_are_removed_once_the_compute_clusters_are_known(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    await name_servers(tmp_path, supervisor).ensure_server("alpha", LOCAL, WEB)
    servers = ForwardingNameServers(name_servers(tmp_path, supervisor), forwarder="10.213.0.2:54")
    answers: list[list[str] | None] = [None, ["local"], []]
    checks: list[bool] = []
    done = asyncio.Event()

    def known() -> list[str] | None:
        checks.append((alpha / "names-local").exists())
        if len(checks) > len(answers):
            done.set()
            return None
        return answers[len(checks) - 1]

    async with retire_periodically(servers, known, seconds=0), asyncio.timeout(patience(30)):
        await done.wait()
    assert checks[:4] == [True, True, True, False]


def test_hosts_file_is_sorted_by_name() -> None:
    assert render_hosts_file({"b.x": "10.0.0.2", "a.x": "10.0.0.1"}) == "10.0.0.1 a.x\n10.0.0.2 b.x\n"


def test_port_in_use_over_udp_is_not_free() -> None:
    address = "127.83.0.1"  # an address that no other program uses
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((address, 0))
        port = taken.getsockname()[1]
        assert not _is_port_free(address, port)
    assert _is_port_free(address, port)

"""Tenants' name servers as processes: their configuration, their ports, and what is done twice."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from tests.unit.controlplane.fakes import FakePrograms, FakeSupervisor
from tests.unit.controlplane.test_processes import plane, write
from vkgateway.controlplane.name_servers import PORTS, NameServerProcesses, _has_acl, _is_port_free, render_hosts_file
from vkgateway.gateway.name_servers import ProcessNameServers, retire_periodically
from vkgateway.model.errors import UnavailableError

WEB = {"web.default.svc.cluster.local": "10.215.0.20"}


def processes(
    data_dir: Path, supervisor: FakeSupervisor, *, answers: bool = True, sources: tuple[str, ...] = (), acl: bool = True
) -> NameServerProcesses:
    return NameServerProcesses(
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
    write(tmp_path / "tenants" / "alpha", plane())
    return tmp_path / "tenants" / "alpha"


async def test_it_reads_the_tenants_services_by_a_certificate_of_its_own(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    port = await processes(tmp_path, supervisor).ensure_server("alpha", "local", WEB)
    text = (alpha / "names-local" / "Corefile").read_text()
    assert port in PORTS
    assert text.startswith(f".:{port} {{\n")
    assert f"kubeconfig {alpha / 'coredns.kubeconfig'}\n" in text
    assert text.count("forward . 10.213.0.2:54\n") == 1
    assert text.count("bind 10.213.0.1\n") == 1
    assert (alpha / "names-local" / "hosts").read_text() == "10.215.0.20 web.default.svc.cluster.local\n"
    assert "tenant/alpha/names-local" in {state.name for state in await supervisor.list_processes("tenant/alpha")}


async def test_it_answers_pods_and_nodes_alone_and_starts_again_once_those_are_others(
    tmp_path: Path, alpha: Path
) -> None:
    supervisor = FakeSupervisor()
    await processes(tmp_path, supervisor).ensure_server("alpha", "local", WEB)
    corefile = alpha / "names-local" / "Corefile"
    assert "acl" not in corefile.read_text()
    (before,) = supervisor.specs.values()
    await processes(tmp_path, supervisor, sources=("10.214.0.0/24", "10.213.0.2/32")).ensure_server(
        "alpha", "local", WEB
    )
    assert "  acl {\n    allow net 10.214.0.0/24 10.213.0.2/32\n    block\n  }\n" in corefile.read_text()
    (after,) = supervisor.specs.values()
    assert before.short_digest() != after.short_digest()


async def test_a_coredns_that_cannot_refuse_answers_everybody(tmp_path: Path, alpha: Path) -> None:
    await processes(tmp_path, FakeSupervisor(), sources=("10.214.0.0/24",), acl=False).ensure_server(
        "alpha", "local", WEB
    )
    assert "acl" not in (alpha / "names-local" / "Corefile").read_text()


@pytest.mark.parametrize(("plugins", "found"), [("dns.acl\ndns.bind", True), ("dns.bind", False)])
def test_a_coredns_tells_whether_it_can_refuse(tmp_path: Path, plugins: str, found: bool) -> None:
    program = tmp_path / "coredns"
    program.write_text(f"#!/bin/sh\nprintf '{plugins}'\n")
    program.chmod(0o755)
    assert _has_acl(program) is found


async def test_another_time_changes_nothing_but_addresses_that_changed(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    port = await processes(tmp_path, supervisor).ensure_server("alpha", "local", WEB)
    corefile = (alpha / "names-local" / "Corefile").stat().st_mtime_ns
    assert await processes(tmp_path, supervisor).ensure_server("alpha", "local", {}) == port
    assert (alpha / "names-local" / "Corefile").stat().st_mtime_ns == corefile
    assert (alpha / "names-local" / "hosts").read_text() == ""


@pytest.mark.usefixtures("alpha")
async def test_no_two_have_the_same_port(tmp_path: Path) -> None:
    names = processes(tmp_path, FakeSupervisor())
    ports = [await names.ensure_server("alpha", f"cluster-{number}", {}) for number in range(20)]
    assert len(set(ports)) == 20


@pytest.mark.usefixtures("alpha")
async def test_without_certificates_or_an_answer_it_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnavailableError, match="no certificate yet"):
        await processes(tmp_path, FakeSupervisor()).ensure_server("beta", "local", {})
    monkeypatch.setattr("vkgateway.controlplane.name_servers._READY_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="does not answer"):
        await processes(tmp_path, FakeSupervisor(), answers=False).ensure_server("alpha", "local", {})


async def test_those_of_compute_clusters_that_went_are_ended(tmp_path: Path, alpha: Path) -> None:
    supervisor = FakeSupervisor()
    names = processes(tmp_path, supervisor)
    for cluster in ("local", "local-2", "east"):
        await names.ensure_server("alpha", cluster, WEB)
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
    assert await names.ensure_server("alpha", "local", WEB) in PORTS, "one of that name may come again"


async def test_what_compute_clusters_there_are_is_looked_at_as_long_as_that_is_known(
    tmp_path: Path, alpha: Path
) -> None:
    supervisor = FakeSupervisor()
    await processes(tmp_path, supervisor).ensure_server("alpha", "local", WEB)
    servers = ProcessNameServers(processes(tmp_path, supervisor), address="10.213.0.1", forwarder="10.213.0.2:54")
    answers: list[list[str] | None] = [None, ["local"], []]
    looks: list[bool] = []
    done = asyncio.Event()

    def known() -> list[str] | None:
        looks.append((alpha / "names-local").exists())
        if len(looks) > len(answers):
            done.set()
            return None
        return answers[len(looks) - 1]

    async with retire_periodically(servers, known, seconds=0), asyncio.timeout(30):
        await done.wait()
    assert looks[:4] == [True, True, True, False]


def test_addresses_are_told_in_a_steady_order() -> None:
    assert render_hosts_file({"b.x": "10.0.0.2", "a.x": "10.0.0.1"}) == "10.0.0.1 a.x\n10.0.0.2 b.x\n"


def test_a_port_is_free_only_over_udp_too() -> None:
    address = "127.83.0.1"  # where nobody else takes the port in between
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind((address, 0))
        port = taken.getsockname()[1]
        assert not _is_port_free(address, port)
    assert _is_port_free(address, port)

"""Renewal of credentials: tokens, certificates, authorities."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from vkgateway.api.errors import UnavailableError
from vkgateway.kube import bearer, errors, kubeconfig
from vkgateway.kube.client import Client
from vkgateway.kube.tls import load_identity
from vkgateway.planes.pki import Authority


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


async def test_token_stays_in_use_after_failed_renewal(path: Path) -> None:
    document = kubeconfig.build_document("alpha", server="https://10.0.0.1:6443", ca="")
    document["users"][0]["user"] = {"tokenFile": "token"}
    kubeconfig.write_file(path, document)
    (path.parent / "token").write_text("one")
    source = kubeconfig.load(path).client_config().token_source()
    assert isinstance(source, bearer.CachingTokenSource)
    assert await source() == "one"
    (path.parent / "token").unlink()
    source._expires_at = 0
    assert await source() == "one"
    (path.parent / "token").write_text("two")
    source._expires_at = 0
    assert await source() == "two"


async def test_hanging_plugin_times_out_for_all_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    async def fetch() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(60)
        return "late"

    monkeypatch.setattr(bearer, "FETCH_TIMEOUT_SECONDS", 0.05)
    source = bearer.CachingTokenSource(fetch)
    failed = await asyncio.gather(source(), source(), source(), return_exceptions=True)
    assert [str(error) for error in failed] == ["no token within 0.05 s"] * 3
    assert calls == 1


def from_plugin(path: Path, command: str, args: list[str]) -> bearer.TokenSource:
    """Return the token source of a kubeconfig with this exec plugin."""
    document = kubeconfig.build_document("alpha", server="https://10.0.0.1:6443", ca="")
    document["users"][0]["user"] = {"exec": {"apiVersion": "v1", "command": command, "args": args}}
    kubeconfig.write_file(path, document)
    source = kubeconfig.load(path).client_config().token_source()
    assert source is not None
    return source


@pytest.fixture
async def started(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    """The processes that the library starts. The fixture waits for their end."""
    processes: list[asyncio.subprocess.Process] = []
    start = asyncio.create_subprocess_exec

    async def noted(*args: Any, **options: Any) -> asyncio.subprocess.Process:
        processes.append(await start(*args, **options))
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", noted)
    yield processes
    async with asyncio.timeout(patience(10)):
        for process in processes:
            await process.wait()


async def test_hanging_plugin_is_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch, started: list[asyncio.subprocess.Process]
) -> None:
    file = path.parent / "pid"
    source = from_plugin(path, "sh", ["-c", f"echo $$ > {file}; exec sleep 60"])
    importlib.import_module("kubernetes_asyncio.config.exec_provider")  # takes most of the time
    monkeypatch.setattr(bearer, "FETCH_TIMEOUT_SECONDS", patience(1.5))  # the plugin starts within it
    with pytest.raises(UnavailableError, match=r"no token within \S+ s"):
        await source()
    process = Path("/proc", file.read_text().strip())
    async with asyncio.timeout(patience(10)):
        while process.exists():  # noqa: ASYNC110, ASYNC240 - another process
            await asyncio.sleep(0.01)
    assert len(started) == 1


async def test_plugin_runs_with_busybox_timeout(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alpine Linux has BusyBox' timeout(1), which accepts only these short options."""
    busybox = path.parent / "busybox"
    busybox.write_text('#!/bin/sh\n[ "$1 $2 $3" = "-k 1 30" ] || exit 1\nshift 3\nexec "$@"\n')
    busybox.chmod(0o755)
    (path.parent / "timeout").symlink_to(busybox)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    credential = {"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "one"}}
    source = from_plugin(path, "echo", [json.dumps(credential)])
    assert await source() == "one"


async def test_children_of_hanging_plugin_are_killed(
    path: Path, monkeypatch: pytest.MonkeyPatch, started: list[asyncio.subprocess.Process]
) -> None:
    file = path.parent / "pid"
    source = from_plugin(path, "sh", ["-c", f"sleep 60 & echo $! > {file}; wait"])
    importlib.import_module("kubernetes_asyncio.config.exec_provider")  # takes most of the time
    monkeypatch.setattr(bearer, "FETCH_TIMEOUT_SECONDS", patience(1.5))  # the plugin starts within it
    monkeypatch.setattr("os.isatty", lambda _descriptor: False)
    with pytest.raises(UnavailableError, match=r"no token within \S+ s"):
        await source()
    process = Path("/proc", file.read_text().strip())
    async with asyncio.timeout(patience(10)):
        while _runs(process):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)
    assert len(started) == 1


def _runs(process: Path) -> bool:
    """Return whether the process exists and is not a zombie: the reaper of orphans may be slow."""
    try:
        return " Z " not in (process / "stat").read_text()
    except OSError:
        return False


async def test_client_adopts_renewed_credentials(path: Path, server: FakeApiServer) -> None:
    server.token = "one"
    kubeconfig.write_file(path, kubeconfig.build_document("alpha", server=server.url, ca="", token="one"))
    async with Client.from_kubeconfig(path) as client:
        await client.request("GET", "/version")
        server.token = "two"
        with pytest.raises(errors.Unauthorized):
            await client.request("GET", "/version")
        client._renewed_at = float("-inf")
        kubeconfig.write_file(path, kubeconfig.build_document("alpha", server=server.url, ca="", token="two"))
        with pytest.raises(errors.Unauthorized):
            await client.request("GET", "/version")
        await client.request("GET", "/version")
        assert await client.authorization_headers() == {"Authorization": "Bearer two"}


async def test_client_adopts_renewed_authority(path: Path) -> None:
    old, new = Authority.create("old"), Authority.create("new")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = new.issue("server", ips=("127.0.0.1",), server=True)
    load_identity(context, cert=pair.cert_pem, key=pair.key_pem)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    server = f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    kubeconfig.write_file(path, kubeconfig.build_document("alpha", server=server, ca=old.cert_pem))
    try:
        async with Client.from_kubeconfig(path) as client:
            kubeconfig.write_file(path, kubeconfig.build_document("alpha", server=server, ca=new.cert_pem))
            with pytest.raises(errors.Unreachable, match="certificate verify failed"):
                await client.request("GET", "/version")
            assert await client.request("GET", "/version") == b"ok"
    finally:
        listening.close()
        await listening.wait_closed()


@pytest.mark.parametrize(
    ("changed", "same"),
    [({"token": "two", "context": "b"}, True), ({"ca": b"B"}, False), ({"server": "https://b"}, False)],
)
def test_same_server_depends_on_authority_not_on_credentials(changed: dict[str, Any], same: bool) -> None:
    known = kubeconfig.ClientConfig(context="a", server="https://a", ca=b"A", token="one")
    assert known.is_same_server(replace(known, **changed)) is same


async def test_invalid_kubeconfig_keeps_credentials(path: Path, server: FakeApiServer) -> None:
    server.token = "one"
    kubeconfig.write_file(path, kubeconfig.build_document("alpha", server=server.url, ca="", token="one"))
    async with Client.from_kubeconfig(path) as client:
        kubeconfig.write_file(path, {})
        server.token = "two"
        with pytest.raises(errors.Unauthorized):
            await client.request("GET", "/version")
        server.token = "one"
        await client.request("GET", "/version")

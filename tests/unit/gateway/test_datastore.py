"""Tests of renewal of the gateway's client certificate for etcd."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from tests.support.machine import patience
from vkgateway.api.errors import InputError
from vkgateway.planes.etcd.client import EtcdClient
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.errors import EtcdAuthDisabled
from vkgateway.planes.etcd.pb import etcd_pb2 as pb
from vkgateway.planes.pki import Authority, KeyPair, cert_fingerprint
from vkgateway.serve.datastore import LazyDatastore
from vkgateway.settings.config import Datastore

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


class Etcd:
    """Fake etcd that records client certificates and rejects expired ones.

    A defragmentation lasts until `done` is set.
    """

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.callers: list[str] = []
        self.port = 0
        self.begun, self.done = asyncio.Event(), asyncio.Event()

    async def defragment(self, _request: bytes, _context: grpc.ServicerContext) -> pb.Empty:
        self.begun.set()
        await self.done.wait()
        return pb.Empty()

    def auth_status(self, _request: bytes, context: grpc.ServicerContext) -> pb.AuthStatusResponse:
        (shown,) = context.auth_context()["x509_pem_cert"]  # a list, unlike in the stubs
        self.callers.append(cert_fingerprint(bytes(shown)))
        return pb.AuthStatusResponse(enabled=False)

    async def serve(self) -> grpc.aio.Server:
        own = self.authority.issue("etcd", ips=("127.0.0.1",), server=True)
        server = grpc.aio.server()
        method = grpc.unary_unary_rpc_method_handler(
            self.auth_status, response_serializer=pb.AuthStatusResponse.SerializeToString
        )
        handler = grpc.method_handlers_generic_handler("etcdserverpb.Auth", {"AuthStatus": method})
        slow = grpc.unary_unary_rpc_method_handler(self.defragment, response_serializer=pb.Empty.SerializeToString)
        upkeep = grpc.method_handlers_generic_handler("etcdserverpb.Maintenance", {"Defragment": slow})
        server.add_generic_rpc_handlers((handler, upkeep))
        credentials = grpc.ssl_server_credentials(
            [(own.key_pem, own.cert_pem)], root_certificates=self.authority.cert_pem, require_client_auth=True
        )
        self.port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        return server


@pytest.fixture
async def etcd() -> AsyncIterator[Etcd]:
    found = Etcd(Authority.create("etcd"))
    server = await found.serve()
    yield found
    await server.stop(grace=None)


def _settings(etcd: Etcd, folder: Path) -> Datastore:
    return Datastore(
        endpoints=(f"https://127.0.0.1:{etcd.port}",), cert=str(folder / "root.crt"), key=str(folder / "root.key")
    )


async def _ask(datastore: LazyDatastore) -> None:
    with pytest.raises(EtcdAuthDisabled):
        await datastore.ensure_tenant("alpha")


async def test_renewed_certificate_is_used_without_restart(etcd: Etcd, tmp_path: Path) -> None:
    old, new = (etcd.authority.issue("root", client=True) for _ in range(2))
    old.write(tmp_path, "root")
    async with LazyDatastore.from_settings(_settings(etcd, tmp_path), authority=etcd.authority) as datastore:
        await _ask(datastore)
        new.write(tmp_path, "root")
        await _ask(datastore)
        await _ask(datastore)
    assert etcd.callers == [cert_fingerprint(pair.cert_pem) for pair in (old, new, new)]


async def test_renewal_replaces_expired_certificate(etcd: Etcd, tmp_path: Path) -> None:
    """A running gateway continues when the certificate is replaced, for example by `vkgateway up`."""
    made = NOW - datetime.timedelta(days=400)
    etcd.authority.issue("root", client=True, now=made).write(tmp_path, "root")
    async with LazyDatastore.from_settings(_settings(etcd, tmp_path), authority=etcd.authority) as datastore:
        etcd.authority.issue("root", client=True).write(tmp_path, "root")
        await _ask(datastore)


async def test_users_and_roles_are_not_enabled_with_the_certificate_of_another_user(etcd: Etcd, tmp_path: Path) -> None:
    """The gateway would lock itself out."""
    etcd.authority.issue("alice", client=True).write(tmp_path, "root")
    async with LazyDatastore.from_settings(_settings(etcd, tmp_path), authority=etcd.authority) as datastore:
        with pytest.raises(EtcdAuthDisabled, match="'alice'") as refused:
            await datastore.require_auth(enable=True)
    assert "common name is root" in refused.value.hint


async def test_pair_that_does_not_match_is_refused(etcd: Etcd, tmp_path: Path) -> None:
    for name in ("crt", "key"):
        pair = etcd.authority.issue("root", client=True)
        (tmp_path / f"root.{name}").write_bytes(pair.cert_pem if name == "crt" else pair.key_pem)
    with pytest.raises(InputError, match=r"datastore\.key is not the key of datastore\.cert"):
        LazyDatastore.from_settings(_settings(etcd, tmp_path), authority=etcd.authority)


@pytest.mark.parametrize("broken", ["half", "torn", "gone"])
async def test_incomplete_pair_keeps_current_certificate(etcd: Etcd, tmp_path: Path, broken: str) -> None:
    old, new = (etcd.authority.issue("root", client=True) for _ in range(2))
    old.write(tmp_path, "root")
    async with LazyDatastore.from_settings(_settings(etcd, tmp_path), authority=etcd.authority) as datastore:
        await _ask(datastore)
        _break(tmp_path, new, broken)
        await _ask(datastore)
        new.write(tmp_path, "root")
        await _ask(datastore)
    assert etcd.callers == [cert_fingerprint(pair.cert_pem) for pair in (old, old, new)]


def _break(folder: Path, new: KeyPair, how: str) -> None:
    if how == "half":
        (folder / "root.key").write_bytes(new.key_pem)
    elif how == "torn":
        (folder / "root.crt").write_bytes(new.cert_pem[:100])
    else:
        (folder / "root.crt").unlink()


async def test_long_calls_survive_certificate_renewal(etcd: Etcd) -> None:
    """A cut connection would look like a cancellation of the caller and end the monitor."""
    old, new = (etcd.authority.issue("root", client=True) for _ in range(2))
    first, second = (ClientTls(ca=etcd.authority.cert_pem, cert=pair.cert_pem, key=pair.key_pem) for pair in (old, new))
    async with EtcdClient([f"https://127.0.0.1:{etcd.port}"], tls=first, timeout=patience(5)) as client:
        for _ in range(2):
            etcd.begun.clear()
            etcd.done.clear()
            under_way = asyncio.create_task(client.maintenance.defragment())
            await etcd.begun.wait()
            client.connection.renew(second)
            assert await client.auth.is_enabled() is False
            assert not under_way.done()
            etcd.done.set()
            await under_way
    assert etcd.callers == [cert_fingerprint(new.cert_pem)] * 2


@contextlib.asynccontextmanager
async def _slow(port: int) -> AsyncIterator[int]:
    """Yield a port that forwards to another port after a delay of 0.25 s."""
    passing: set[asyncio.Task[None]] = set()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.25)
        there, back = await asyncio.open_connection("127.0.0.1", port)
        for source, sink in ((reader, back), (there, writer)):
            passing.add(asyncio.create_task(_pass(source, sink)))

    listening = await asyncio.start_server(join, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        await asyncio.wait(passing, timeout=patience(5))


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(65536):
            sink.write(piece)
    sink.close()


async def test_slow_server_gets_time_for_handshake(etcd: Etcd) -> None:
    pair = etcd.authority.issue("root", client=True)
    tls = ClientTls(ca=etcd.authority.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    async with _slow(etcd.port) as port, EtcdClient([f"https://127.0.0.1:{port}"], tls=tls) as client:
        assert await client.auth.is_enabled() is False


async def test_close_does_not_wait_for_calls_on_old_connection(etcd: Etcd) -> None:
    pair = etcd.authority.issue("root", client=True)
    tls = ClientTls(ca=etcd.authority.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    client = EtcdClient([f"https://127.0.0.1:{etcd.port}"], tls=tls)
    under_way = asyncio.create_task(client.maintenance.defragment())
    await etcd.begun.wait()
    client.connection.renew(tls)
    async with asyncio.timeout(patience(10)):
        await client.connection.close()
        await asyncio.wait([under_way])

"""Tests of the certificates of a managed etcd."""

from __future__ import annotations

import asyncio
import base64
import datetime
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.fakes.rights import Rights
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NAMESPACES, SECRETS
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.pki import Authority, alternative_names, common_name, is_matching_pair
from vkgateway.serve.datastore import ManagedCertificates, open_datastore
from vkgateway.settings.config import Datastore, ManagedDatastore

YEAR = 365 * 24 * 3600.0
SETTINGS = Datastore(
    endpoints=("https://vkgateway-etcd-client.vkgateway-system.svc:2379", "https://[fd00::0:1]:2379"),
    managed=ManagedDatastore(secret_prefix="vkgateway-etcd", server_names=("*.etcd.vkgateway-system.svc.",)),
)


def _certificates(client: Client, clock: FakeClock | None = None) -> ManagedCertificates:
    made = ManagedCertificates.from_settings(SETTINGS, client)
    made._clock = clock or FakeClock(origin=_now())
    return made


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _data(server: FakeApiServer, name: str) -> dict[str, bytes]:
    secret = server.store.get(SECRETS, f"vkgateway-etcd-{name}", SYSTEM_NAMESPACE)
    return {key: base64.b64decode(value) for key, value in secret["data"].items()}


@pytest.fixture
async def server() -> Any:
    async with FakeApiServer(rights=Rights.of_management()) as server:
        server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        yield server


async def test_missing_secrets_are_created(server: FakeApiServer, client: Client) -> None:
    identity = await _certificates(client).ensure()
    authority, etcd, root = (_data(server, name) for name in ("authority", "server", "client"))
    assert set(authority) == {"ca.crt", "ca.key"}
    assert set(etcd) == set(root) == {"ca.crt", "tls.crt", "tls.key"}
    for pair in (etcd, root):
        assert pair["ca.crt"] == authority["ca.crt"] == identity.authority.cert_pem
        assert is_matching_pair(pair["tls.crt"], pair["tls.key"])
        assert identity.authority.has_signed(pair["tls.crt"])
    assert common_name(root["tls.crt"]) == "root"
    assert identity.tls.cert == root["tls.crt"]


async def test_server_certificate_serves_clients_and_peers(server: FakeApiServer, client: Client) -> None:
    await _certificates(client).ensure()
    cert = _data(server, "server")["tls.crt"]
    assert alternative_names(cert) == {
        "localhost",
        "127.0.0.1",
        "vkgateway-etcd-client.vkgateway-system.svc",
        "fd00::1",
        "*.etcd.vkgateway-system.svc",
    }
    assert common_name(cert) == "vkgateway-etcd-server"
    usages = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}


async def test_second_call_writes_nothing(server: FakeApiServer, client: Client) -> None:
    first = await _certificates(client).ensure()
    server.requests.clear()
    assert (await _certificates(client).ensure()).tls == first.tls
    assert all(request.startswith("GET") for request in server.requests)


async def test_replicas_that_start_together_agree(server: FakeApiServer, client: Client) -> None:
    found = await asyncio.gather(*(_certificates(client).ensure() for _ in range(3)))
    assert len({identity.authority.cert_pem for identity in found}) == 1
    assert len({identity.tls.cert for identity in found}) == 1


async def test_certificates_are_renewed_before_they_expire(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(origin=_now())
    certificates = _certificates(client, clock)
    first = await certificates.ensure()
    etcd = _data(server, "server")
    clock.seconds = YEAR * 0.7
    renewed = await certificates.ensure()
    assert renewed.authority.cert_pem == first.authority.cert_pem
    assert certificates.identity.tls.cert != first.tls.cert
    assert _data(server, "server")["tls.crt"] != etcd["tls.crt"]


async def test_new_name_renews_certificate_of_server_only(server: FakeApiServer, client: Client) -> None:
    first = await _certificates(client).ensure()
    more = ManagedCertificates(
        client, prefix="vkgateway-etcd", namespace=SYSTEM_NAMESPACE, server_names=["etcd.example"]
    )
    assert (await more.ensure()).tls == first.tls
    assert "etcd.example" in alternative_names(_data(server, "server")["tls.crt"])


async def test_renewal_of_other_replica_is_kept(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(origin=_now())
    certificates = _certificates(client, clock)
    await certificates.ensure()
    clock.seconds = YEAR * 0.7
    server.fail("PATCH", "/secrets/vkgateway-etcd-client", status=409, reason="Conflict")
    kept = _data(server, "client")["tls.crt"]
    assert (await certificates.ensure()).tls.cert == kept


def _other_pair() -> tuple[bytes, bytes]:
    pair = Authority.create("other").issue("root", client=True)
    return pair.cert_pem, pair.key_pem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: {}, r"Secret vkgateway-system/vkgateway-etcd-client holds no tls\.crt and tls\.key"),
        (lambda data: data | {"tls.key": _other_pair()[1]}, r"-client: tls\.key is not the key of tls\.crt"),
        (
            lambda data: data | dict(zip(("tls.crt", "tls.key"), _other_pair(), strict=True)),
            r"-client: the authority in Secret vkgateway-etcd-authority did not sign tls\.crt",
        ),
    ],
)
async def test_foreign_secret_is_reported_and_kept(
    server: FakeApiServer, client: Client, change: Any, problem: str
) -> None:
    await _certificates(client).ensure()
    stored = change(_data(server, "client"))
    server.store.delete(SECRETS, "vkgateway-etcd-client", SYSTEM_NAMESPACE)
    data = {key: base64.b64encode(pem).decode() for key, pem in stored.items()}
    secret = {"metadata": {"name": "vkgateway-etcd-client"}, "data": data}
    server.store.create(SECRETS, secret, SYSTEM_NAMESPACE)
    with pytest.raises(UnavailableError, match=problem) as caught:
        await _certificates(client).ensure()
    assert caught.value.hint
    assert _data(server, "client") == stored


async def test_foreign_authority_is_reported(server: FakeApiServer, client: Client) -> None:
    secret = {"metadata": {"name": "vkgateway-etcd-authority"}, "data": {"tls.crt": ""}}
    server.store.create(SECRETS, secret, SYSTEM_NAMESPACE)
    with pytest.raises(UnavailableError, match="vkgateway-system/vkgateway-etcd-authority holds no certificate"):
        await _certificates(client).ensure()


async def test_daily_renewal_continues_after_failure(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(origin=_now())
    certificates = _certificates(client, clock)
    first = await certificates.ensure()
    server.fail("GET", "/secrets/vkgateway-etcd-authority", status=503, times=1)
    work = asyncio.create_task(certificates.renew_daily())
    await server.until(lambda: certificates.identity.tls.cert != first.tls.cert)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    assert set(clock.sleeps) == {24 * 3600.0}


async def test_standby_leaves_renewal_to_leader(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock(origin=_now())
    first = await _certificates(client, clock).ensure()
    async with server.client() as guarded:
        standby = _certificates(guarded.guard_writes(WriteGate()), clock)
        assert (await standby.ensure()).tls == first.tls
        clock.seconds = YEAR * 0.7
        with pytest.raises(errors.NotLeader):
            await standby.ensure()
        renewed = await _certificates(client, clock).ensure()
        assert renewed.tls != first.tls
        assert (await standby.ensure()).tls == renewed.tls


async def test_datastore_uses_managed_certificates(server: FakeApiServer, client: Client) -> None:
    async def retry(attempt: Any) -> Any:
        try:
            return await attempt()
        except errors.ServerError:
            return await attempt()

    server.fail("GET", "/secrets/vkgateway-etcd-authority", status=503)
    async with open_datastore(SETTINGS, management=client, retry=retry) as (authority, datastore):
        assert authority.cert_pem == _data(server, "authority")["ca.crt"]
        assert datastore._tls.cert == _data(server, "client")["tls.crt"]

"""A control plane counts as serving once each of its API servers has a certificate for all names."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest

from tests.fakes.clock import FakeClock
from tests.unit.controlplane.fakes import FakeDriver
from tests.unit.controlplane.planes import ALPHA, tenant_plane
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.tls import load_identity
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.serving import find_missing_names, wait_for_names
from vkgateway.serve.authorization import server_context

ADDED = ("kube.example.com", "192.0.2.7", "2001:0db8::0007")
"""The last is not in the form that certificates have."""
PLANE = tenant_plane(names=ADDED)


def identity(*names: str) -> dict[str, bytes]:
    """Return a serving certificate of the tenant, and its key."""
    pair = ALPHA.ca.issue(
        "kube-apiserver",
        server=True,
        dns=tuple(name for name in names if "example" in name),
        ips=tuple(name for name in names if "example" not in name),
    )
    return {"cert": pair.cert_pem, "key": pair.key_pem}


@contextlib.asynccontextmanager
async def tls_server(*names: str) -> AsyncIterator[tuple[ServerEndpoint, ssl.SSLContext]]:
    """Run a server whose certificate has these names; later handshakes use what its context then has."""
    context = server_context(**identity(*names))

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield ServerEndpoint("127.0.0.1", server.sockets[0].getsockname()[1]), context


async def test_every_replica_must_serve_the_new_names() -> None:
    class LateClock(FakeClock):
        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            load_identity(late, **identity(*ADDED))

    clock = LateClock()
    async with tls_server(*ADDED) as (first, _), tls_server("old.example.com") as (second, late):
        driver = FakeDriver(servers=(first, second))
        await wait_for_names(PLANE, ca=ALPHA.ca.cert_pem, driver=driver, clock=clock, find_missing=find_missing_names)
    assert len(clock.sleeps) == 1


async def test_missing_name_is_told_after_a_minute() -> None:
    clock = FakeClock()
    async with tls_server("kube.example.com", "192.0.2.7") as (server, _):
        driver = FakeDriver(servers=(server,))
        with pytest.raises(UnavailableError, match=r"'alpha' serves no certificate for 2001:db8::7 after 60 s"):
            await wait_for_names(
                PLANE, ca=ALPHA.ca.cert_pem, driver=driver, clock=clock, find_missing=find_missing_names
            )
    assert clock.seconds >= 60


async def test_plane_without_added_names_is_not_asked() -> None:
    clock = FakeClock()
    plane = tenant_plane()
    await wait_for_names(plane, ca=ALPHA.ca.cert_pem, driver=FakeDriver(), clock=clock, find_missing=find_missing_names)
    assert clock.sleeps == []


async def test_server_that_does_not_answer_or_has_another_authority_lacks_all_names() -> None:
    async with tls_server(*ADDED) as (server, _):
        names = ("kube.example.com",)
        assert await find_missing_names(server, ca=ALPHA.front_proxy_ca.cert_pem, names=names) == {"kube.example.com"}
        assert await find_missing_names(server, ca=ALPHA.ca.cert_pem, names=names) == frozenset()
    assert await find_missing_names(server, ca=ALPHA.ca.cert_pem, names=names) == {"kube.example.com"}

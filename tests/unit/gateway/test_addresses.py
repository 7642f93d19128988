"""Tests of the addresses at which the gateway listens and is reached."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.planes.pki import Authority, alternative_names
from vkgateway.serve import addresses, serving
from vkgateway.serve.addresses import AddressMonitor, GatewayAddress, find_gateway_address
from vkgateway.settings.config import Config, Kubelet


def _resolve_to(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    async def getaddrinfo(_host: str, _port: Any, **_: Any) -> list[Any]:
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_listen_address_is_advertised_by_default() -> None:
    found = await find_gateway_address(Config(address="10.0.0.1", kubelet=Kubelet(port=7)))
    assert found == GatewayAddress(listen="10.0.0.1", advertised="10.0.0.1", advertised_port=7)


async def test_primary_address_is_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "primary_address", lambda: "10.0.0.9")
    assert (await find_gateway_address(Config())).advertised == "10.0.0.9"


async def test_name_is_resolved_and_in_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve_to(monkeypatch, "10.96.0.20")
    kubelet = Kubelet(advertise_address="vkgateway-kubelet.vkgateway-system.svc", advertise_port=443)
    found = await find_gateway_address(Config(address="0.0.0.0", kubelet=kubelet))
    assert (found.advertised, found.advertised_port, found.machine_address) == ("10.96.0.20", 443, "10.96.0.20")
    issued = serving.issue_certificate(Authority.create("kubelets"), found)
    assert alternative_names(issued.cert_pem) == {"10.96.0.20", "vkgateway-kubelet.vkgateway-system.svc"}


async def test_certificate_has_listen_and_advertised_address() -> None:
    found = await find_gateway_address(Config(address="10.0.0.1", kubelet=Kubelet(advertise_address="192.0.2.1")))
    assert found.certificate_ips == ("10.0.0.1", "192.0.2.1")
    assert found.machine_address == "10.0.0.1"


async def test_name_that_does_not_resolve_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve_to(monkeypatch)
    with pytest.raises(UnavailableError, match=r"advertiseAddress: 'kubelet\.example' does not resolve"):
        await find_gateway_address(Config(address="::", kubelet=Kubelet(advertise_address="kubelet.example")))


async def test_loopback_is_never_advertised(monkeypatch: pytest.MonkeyPatch) -> None:
    _resolve_to(monkeypatch, "127.0.0.1")
    with pytest.raises(InputError, match=r"kubelet\.example, which resolves to 127\.0\.0\.1"):
        await find_gateway_address(Config(address="::", kubelet=Kubelet(advertise_address="kubelet.example")))


async def _problem_after_check(address: GatewayAddress) -> str:
    clock = FakeClock()
    monitor = AddressMonitor(address, clock=clock)
    work = asyncio.create_task(monitor.run())
    async with asyncio.timeout(patience(5)):
        while len(clock.sleeps) < 2 and not work.done():  # noqa: ASYNC110 - the fake clock has no event
            await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    return monitor.problem()


@pytest.mark.parametrize(
    ("resolved", "problem"),
    [
        (("10.96.0.20",), ""),
        (("10.96.0.30", "10.96.0.20"), ""),
        ((), ""),
        (("10.96.0.30",), "kubelet.svc resolves to 10.96.0.30, but nodes have the address 10.96.0.20. Restart"),
    ],
)
async def test_changed_address_is_reported(
    monkeypatch: pytest.MonkeyPatch, resolved: tuple[str, ...], problem: str
) -> None:
    _resolve_to(monkeypatch, *resolved)
    address = GatewayAddress(listen="0.0.0.0", advertised="10.96.0.20", advertised_name="kubelet.svc")
    found = await _problem_after_check(address)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


async def test_advertised_ip_address_is_not_checked() -> None:
    assert await _problem_after_check(GatewayAddress(listen="10.0.0.1", advertised="10.0.0.1")) == ""

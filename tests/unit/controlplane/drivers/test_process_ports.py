"""Ports of API servers on this machine."""

from __future__ import annotations

import socket

import pytest

from vkgateway.api.errors import ConflictError, InputError, UnavailableError
from vkgateway.planes.drivers.process.ports import choose_port, is_port_free


def always_free(address: str, port: int) -> bool:
    return True


def test_port_of_another_tenant_is_not_chosen() -> None:
    assigned = dict.fromkeys(range(20000, 20005), "other")
    port = choose_port(
        "a", requested=0, assigned=assigned, address="x", ports=range(20000, 20006), can_bind=always_free
    )
    assert port == 20005


def test_port_in_use_is_not_chosen() -> None:
    ports = range(20000, 20003)
    first = choose_port("a", requested=0, assigned={}, address="x", ports=ports, can_bind=always_free)
    second = choose_port(
        "a", requested=0, assigned={}, address="x", ports=ports, can_bind=lambda address, port: port != first
    )
    assert first != second


def test_error_names_the_range_if_no_port_is_free() -> None:
    with pytest.raises(UnavailableError, match="no port from 20000 to 20001 is free"):
        choose_port(
            "a", requested=0, assigned={}, address="x", ports=range(20000, 20002), can_bind=lambda address, port: False
        )


def test_port_check_reports_a_used_port_and_a_foreign_address() -> None:
    address = "127.83.0.2"  # an address that no other program uses
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_port_free(address, port)
    assert is_port_free(address, port)
    with pytest.raises(InputError, match=r"192\.0\.2\.1"):
        is_port_free("192.0.2.1", port)


def test_port_of_another_tenant_is_refused() -> None:
    with pytest.raises(ConflictError, match=r"port 20001 belongs to tenant 'beta'"):
        choose_port("a", requested=20001, assigned={20001: "beta"}, address="x", can_bind=always_free)

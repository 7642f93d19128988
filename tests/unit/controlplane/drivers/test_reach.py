"""Tests of the addresses that API servers of a machine may connect to."""

from __future__ import annotations

import ipaddress

import pytest

from vkgateway.api.errors import InputError
from vkgateway.planes.drivers.process import egress as reach
from vkgateway.planes.drivers.process.egress import canonical_address, is_in_ranges, is_outside
from vkgateway.planes.webhook_ranges import Address, parse_webhook_range


@pytest.fixture
def own_addresses(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the addresses of the machine, which a test may change."""
    own = {"127.0.0.1", "::1", "10.20.0.5", "8.8.4.4", "2606:4700::5"}

    def is_own(address: Address) -> bool:
        return str(address) in own or address.is_loopback

    monkeypatch.setattr(reach, "_is_own", is_own)
    return own


@pytest.mark.parametrize(
    ("address", "outside"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::808:808", True),
        ("10.216.0.9", False),
        ("192.168.1.1", False),
        ("172.16.0.1", False),
        ("100.64.0.1", False),
        ("100.100.100.200", False),
        ("127.0.0.1", False),
        ("127.1.2.3", False),
        ("0.0.0.0", False),
        ("169.254.169.254", False),
        ("168.63.129.16", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%lo", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("fd00:ec2::254", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:169.254.169.254", False),
        ("::7f00:1", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("64:ff9b:1::a00:1", False),
        ("2002:a00:1::1", False),
        ("2002:7f00:1::1", False),
    ],
)
def test_only_public_addresses_are_outside(address: str, outside: bool) -> None:
    assert is_outside(address) is outside


@pytest.mark.parametrize("address", ["8.8.4.4", "::ffff:8.8.4.4", "64:ff9b::808:404", "2606:4700::5"])
@pytest.mark.usefixtures("own_addresses")
def test_public_addresses_of_this_machine_are_not_outside(address: str) -> None:
    assert not is_outside(address)


@pytest.mark.parametrize(
    ("address", "ranges", "opened"),
    [
        ("10.20.3.4", ["10.20.0.0/16"], True),
        ("::ffff:10.20.3.4", ["10.20.0.0/16"], True),
        ("fd12::7", ["10.20.0.0/16", "fd12::/64"], True),
        ("10.21.0.1", ["10.20.0.0/16"], False),
        ("10.20.3.4", [], False),
        ("10.20.0.5", ["10.20.0.0/16"], False),
        ("10.20.0.5", ["10.20.0.0/16", "10.20.0.5/32"], True),
        ("127.0.0.1", ["0.0.0.0/0"], False),
        ("127.0.0.1", ["127.0.0.1/32"], True),
        ("127.0.0.2", ["127.0.0.1/32"], False),
        ("::1", ["::/0"], False),
        ("::1", ["::1/128"], True),
        ("169.254.169.254", ["0.0.0.0/0"], False),
        ("fd00:ec2::254", ["fd00::/8"], False),
        ("fe80::1", ["::/0"], False),
        ("0.0.0.0", ["0.0.0.0/0"], False),
        ("224.0.0.1", ["0.0.0.0/0"], False),
    ],
)
@pytest.mark.usefixtures("own_addresses")
def test_ranges_open_private_addresses_and_none_of_this_machine(address: str, ranges: list[str], opened: bool) -> None:
    assert is_in_ranges(address, [parse_webhook_range(text) for text in ranges]) is opened


def test_addresses_of_this_machine_are_recognized() -> None:
    assert not is_in_ranges("127.0.0.9", [parse_webhook_range("0.0.0.0/0")])
    assert canonical_address("::ffff:10.0.0.1") == ipaddress.ip_address("10.0.0.1")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("10.20.0.1/16", "is not a CIDR"),
        ("webhooks.example.org", "is not a CIDR"),
        ("127.0.0.0/8", "has loopback addresses"),
        ("127.0.0.0/31", "has loopback addresses"),
        ("169.254.0.0/16", "has link-local or other addresses"),
        ("169.254.169.254/32", "has link-local or other addresses"),
        ("fe80::/64", "has link-local or other addresses"),
        ("fd00:ec2::254/128", "has link-local or other addresses"),
        ("224.0.0.0/4", "has link-local or other addresses"),
        ("0.0.0.0/32", "has link-local or other addresses"),
        ("::ffff:10.0.0.0/104", "has IPv4-mapped addresses"),
    ],
)
def test_range_that_opens_nothing_is_an_error(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint) as caught:
        parse_webhook_range(text)
    assert caught.value.hint

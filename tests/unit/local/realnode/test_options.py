"""Names and addresses of two platforms' nodes never collide, and invalid options are refused."""

import ipaddress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.api.errors import InputError
from vkgateway_platform.embedded.realnode.options import PROGRAMS, NodeNetwork, RealNodeOptions

numbers = st.integers(min_value=0, max_value=255)
OPTIONS = RealNodeOptions(
    directory=Path("/data/node"),
    number=7,
    programs={name: Path("/bin", name) for name in PROGRAMS},
    api_server="https://10.213.7.1:6443",
)


def networks_of(number: int) -> list[ipaddress.IPv4Network]:
    network = NodeNetwork(number)
    addresses = (network.platform_address, network.node_address, network.host_address)
    ranges = (network.pod_subnet, network.service_subnet)
    return [ipaddress.IPv4Network(text) for text in (*addresses, *ranges)]


@given(numbers, numbers)
def test_two_platforms_share_no_address(one: int, other: int) -> None:
    mine, theirs = networks_of(one), networks_of(other)
    if one != other:
        assert not any(a.overlaps(b) for a in mine for b in theirs)


@given(numbers)
def test_addresses_of_one_platform_are_distinct(number: int) -> None:
    networks = networks_of(number)
    assert not any(a.overlaps(b) for index, a in enumerate(networks) for b in networks[:index])


@given(numbers)
def test_node_and_machine_share_a_link_of_two_addresses(number: int) -> None:
    network = NodeNetwork(number)
    link = ipaddress.IPv4Interface(f"{network.node_address}/31").network
    assert set(link) == {ipaddress.IPv4Address(network.node_address), ipaddress.IPv4Address(network.host_address)}


@given(numbers)
def test_interface_names_are_short_enough_for_linux(number: int) -> None:
    assert len(NodeNetwork(number).host_link) <= 15


@pytest.mark.parametrize("number", [-1, 256])
def test_number_out_of_range_is_refused(number: int) -> None:
    with pytest.raises(InputError, match=rf"platform number {number} is not between 0 and 255"):
        NodeNetwork(number)


def test_relative_directory_is_refused() -> None:
    with pytest.raises(InputError, match="'node' is not an absolute path"):
        replace(OPTIONS, directory=Path("node"))


def test_missing_programs_are_named() -> None:
    with pytest.raises(InputError, match="the path of ctr, kubelet"):
        replace(OPTIONS, programs={n: p for n, p in OPTIONS.programs.items() if n not in {"ctr", "kubelet"}})


def test_name_service_is_the_tenth_service_address() -> None:
    assert OPTIONS.cluster_dns == "10.215.7.10"
    assert replace(OPTIONS, service_subnet="10.96.0.0/12").cluster_dns == "10.96.0.10"

"""Service ranges are unique per tenant and avoid ranges in use elsewhere."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.api.errors import InputError
from vkgateway.planes.service_ranges import ServiceRanges

RANGES = ServiceRanges.parse("10.160.0.0/16", prefix=20)


def test_ranges_are_unique_until_none_is_left() -> None:
    given: dict[str, str] = {}
    for number in range(16):
        given[RANGES.choose_range(f"t{number}", assigned=given)] = f"t{number}"
    assert len(given) == 16
    assert all(ipaddress.ip_network(cidr).prefixlen == 20 for cidr in given)
    assert RANGES.choose_range("another", assigned=given) == ""


def test_search_starts_at_a_range_that_depends_on_the_name() -> None:
    first = RANGES.choose_range("alpha", assigned={})
    assert RANGES.choose_range("alpha", assigned={first: "alpha"}) == first
    assert RANGES.choose_range("alpha", assigned={first: "beta"}) != first


@pytest.mark.parametrize("taken", ["10.160.0.0/17", "10.0.0.0/8", "10.160.17.0/28", "2001:db8::/32"])
def test_taken_ranges_are_skipped(taken: str) -> None:
    chosen = {RANGES.choose_range(f"t{number}", assigned={}, taken=[taken]) for number in range(60)} - {""}
    parsed = ipaddress.ip_network(taken)
    assert not [cidr for cidr in chosen if parsed.version == 4 and ipaddress.ip_network(cidr).overlaps(parsed)]
    assert bool(chosen) is (taken != "10.0.0.0/8")


def test_ranges_may_be_ipv6() -> None:
    ranges = ServiceRanges.parse("fd00:1::/48", prefix=112)
    chosen = ranges.choose_range("alpha", assigned={})
    assert ipaddress.ip_network(chosen).subnet_of(ipaddress.ip_network("fd00:1::/48"))  # type: ignore[arg-type]
    assert ranges.choose_range("alpha", assigned={chosen: "beta"}) not in ("", chosen)


@pytest.mark.parametrize(
    ("within", "prefix"),
    [("10.0.0.1/8", 20), ("10.0.0.0/8", 7), ("10.0.0.0/8", 11), ("10.0.0.0/8", 29), ("x", 20), ("fd00::/48", 64)],
)
def test_invalid_range_or_prefix_is_refused(within: str, prefix: int) -> None:
    with pytest.raises(InputError, match="services"):
        ServiceRanges.parse(within, prefix=prefix)


@given(st.lists(st.text("abc", min_size=1, max_size=8), unique=True, max_size=16))
def test_ranges_of_tenants_do_not_overlap(names: list[str]) -> None:
    given: dict[str, str] = {}
    for name in names:
        given[RANGES.choose_range(name, assigned=given)] = name
    networks = [ipaddress.ip_network(cidr) for cidr in given]
    assert not any(one.overlaps(other) for one in networks for other in networks if one is not other)

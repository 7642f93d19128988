"""Names: validation of tenant names, and unique names in compute clusters."""

import re

import pytest

from vkgateway.api import names
from vkgateway.api.errors import InputError


@pytest.mark.parametrize("name", ["a", "team-a", "a1", "x" * 32])
def test_valid_tenant_name_is_accepted(name: str) -> None:
    names.validate_tenant_name(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "is empty"),
        ("x" * 33, "33 characters"),
        ("a--b", "'--'"),
        ("Team", "capital"),
        ("1a", "digit"),
        ("a-", "DNS label"),
        ("a_b", "DNS label"),
        ("a\n", "DNS label"),
    ],
)
def test_invalid_tenant_name_is_refused_with_its_rule(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        names.validate_tenant_name(name)
    assert repr(name) in str(caught.value)
    assert caught.value.hint
    assert caught.value.exit_code == 2


def test_short_compute_namespace_is_not_hashed() -> None:
    assert names.compute_namespace("alpha", "default") == "alpha--default"
    assert len(names.compute_namespace("a" * 32, "n" * 29)) == 63
    assert names.compute_namespace("a" * 32, "n" * 29).endswith("n" * 29)


def test_compute_namespace_over_63_characters_is_hashed() -> None:
    one = names.compute_namespace("a" * 32, "n" * 62 + "1")
    two = names.compute_namespace("a" * 32, "n" * 62 + "2")
    assert len(one) == len(two) == 63
    assert one != two
    assert one.startswith("a" * 32 + "--")


@pytest.mark.parametrize("key", ["vkgateway.io/tenant", "x.vkgateway.io/y", "platform.vkgateway.io/pool"])
def test_key_is_reserved(key: str) -> None:
    assert names.is_reserved(key)


@pytest.mark.parametrize("key", ["app", "vkgateway.io", "notvkgateway.io/x", "example.com/vkgateway.io"])
def test_key_is_not_reserved(key: str) -> None:
    assert not names.is_reserved(key)


def test_token_secret_name_fits_length_limit() -> None:
    assert names.token_secret_name("web", "u").startswith("web-")
    assert names.token_secret_name("web", "u").endswith("-token")
    assert len(names.token_secret_name("p" * 253, "u")) <= 253
    assert names.token_secret_name("p" * 237 + "." + "q" * 15, "u")[237] == "-"
    assert names.token_secret_name("web", "u") != names.token_secret_name("web", "v")


@pytest.mark.parametrize(
    ("pool", "value", "cluster", "name"),
    [
        ("a100", "", "local", "a100.local"),
        ("a100", "zone-a", "local", "a100.zone-a.local"),
        ("a100", "eu-west-1a", "berlin", "a100.eu-west-1a.berlin"),
    ],
)
def test_virtual_node_name(pool: str, value: str, cluster: str, name: str) -> None:
    assert names.virtual_node_name(pool, cluster, value) == name


@pytest.mark.parametrize("value", ["Zone_A", "a.b", "-", "x" * 63, "\N{GREEK SMALL LETTER ALPHA}"])
@pytest.mark.parametrize(("pool", "cluster"), [("a100", "local"), ("p" * 31, "c" * 31)])
def test_every_label_value_gets_unique_virtual_node_name(pool: str, value: str, cluster: str) -> None:
    name = names.virtual_node_name(pool, cluster, value)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", name)
    others = ["zone-a", "a-b", "y" * 63, ""]
    assert name not in {names.virtual_node_name(pool, cluster, other) for other in others}

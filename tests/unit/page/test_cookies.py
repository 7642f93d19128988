"""Tests of session cookies."""

from __future__ import annotations

import pytest

from tests.fakes.clock import FakeClock
from vkgateway.page.cookies import LIFETIME, CookieSealer, cookie_header, read_cookie


def test_a_cookie_opens_with_the_same_secret_only() -> None:
    value, credentials = CookieSealer(b"secret").seal("token-1", "alpha")
    assert CookieSealer(b"secret").open(value, key=credentials.key) == credentials
    assert (credentials.token, credentials.tenant) == ("token-1", "alpha")
    assert CookieSealer(b"other").open(value, key=credentials.key) is None


def test_a_cookie_opens_with_its_key_only() -> None:
    """Every port of the page's host receives the cookie."""
    value, credentials = CookieSealer(b"secret").seal("token-1", "alpha")
    _, other = CookieSealer(b"secret").seal("token-1", "alpha")
    assert len(credentials.key) >= 20
    for key in ("", other.key, credentials.key[:-1], "é"):
        assert CookieSealer(b"secret").open(value, key=key) is None


def test_a_cookie_hides_its_token() -> None:
    value, credentials = CookieSealer(b"secret").seal("token-1", "alpha")
    assert "token-1" not in value
    assert "token-1" not in repr(credentials)


def test_a_cookie_ends_after_its_lifetime() -> None:
    clock = FakeClock()
    sealer = CookieSealer(b"secret", clock=clock)
    value, credentials = sealer.seal("token-1", "")
    clock.seconds += LIFETIME - 1
    assert sealer.open(value, key=credentials.key) is not None
    clock.seconds += 2
    assert sealer.open(value, key=credentials.key) is None


@pytest.mark.parametrize("value", ["", "x", "====", "é", "AAAA", "A" * 5000])
def test_invalid_cookies_are_no_session(value: str) -> None:
    assert CookieSealer(b"secret").open(value, key="") is None


@pytest.mark.parametrize("position", [0, 5, 20, -10])
def test_a_changed_cookie_is_no_session(position: int) -> None:
    value, credentials = CookieSealer(b"secret").seal("token-1", "alpha")
    letters = list(value)
    letters[position] = "A" if letters[position] != "A" else "E"
    assert CookieSealer(b"secret").open("".join(letters), key=credentials.key) is None


def test_headers() -> None:
    header = "a=b; vkgateway-session=xyz; __Host-vkgateway-session=uvw; c=d"
    assert (read_cookie(header, secure=False), read_cookie(header, secure=True)) == ("xyz", "uvw")
    assert read_cookie("vkgateway-session=xyz", secure=True) == read_cookie("", secure=False) == ""
    header = cookie_header("xyz", secure=True)
    assert header.startswith("__Host-vkgateway-session=xyz; ")
    assert all(part in header for part in ("HttpOnly", "SameSite=Strict", "; Secure", "Path=/"))
    assert cookie_header("xyz", secure=False).startswith("vkgateway-session=xyz; ")
    assert "Secure" not in cookie_header("xyz", secure=False)
    assert "Max-Age=0" in cookie_header("", secure=True)

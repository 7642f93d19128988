"""Routes of addresses that a platform invents."""

from __future__ import annotations

import pytest

from vkgateway.api.errors import VkgatewayError
from vkgateway_platform.embedded import network


def test_each_platform_has_unreachable_routes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    routes: set[str] = set()

    def run_ip(*arguments: str) -> str:
        kind, action, *rest = arguments
        if kind == "route":
            (routes.add if action == "replace" else routes.remove)(" ".join(rest))
        return "[]"

    monkeypatch.setattr(network, "_run_ip", run_ip)
    network.close_ranges(3)
    network.close_ranges(7)
    assert "unreachable 10.232.0.0/14 metric 20003" in routes
    assert "unreachable 10.214.7.0/24 metric 20007" in routes
    monkeypatch.setattr(network, "owned_interfaces", lambda _owner: ["vkg3"])
    network.remove_interfaces("me")
    assert {route.rsplit(" ", 1)[1] for route in routes} == {"20007"}


def test_machine_without_such_routes_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: str) -> str:
        raise VkgatewayError("RTNETLINK answers: Operation not supported")

    monkeypatch.setattr(network, "_run_ip", refuse)
    network.close_ranges(3)

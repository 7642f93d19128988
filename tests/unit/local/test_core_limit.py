"""Limit on the cores of a program of the platform."""

from __future__ import annotations

import os

import pytest

from vkgateway_platform.embedded import core_limit


@pytest.mark.parametrize(("there", "used"), [(1, "1"), (2, "1"), (3, "1"), (4, "2"), (96, "48")])
def test_limit_is_half_of_the_cores_at_least_one(monkeypatch: pytest.MonkeyPatch, there: int, used: str) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(there)))
    assert core_limit.limit_cores() == {"GOMAXPROCS": used}

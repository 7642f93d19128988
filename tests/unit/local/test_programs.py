"""Programs of a platform: an optional real node whose programs are missing delays nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.test_steps import Heard
from vkgateway_platform.embedded import startup
from vkgateway_platform.embedded.options import RealNodeChoice, UpOptions
from vkgateway_platform.embedded.realnode.options import PROGRAMS as REAL_NODE
from vkgateway_platform.embedded.record import PlatformRecord

CORE = set(startup.PROGRAMS)


class Programs:
    """A resolver that can fetch everything; `present` exists already."""

    present: frozenset[str] = frozenset()

    def __init__(self, **_: Any) -> None: ...

    async def has_programs(self, *names: str) -> bool:
        return self.present.issuperset(names)

    async def resolve(self, *names: str) -> dict[str, Path]:
        return {name: Path(name) for name in names}


@pytest.fixture(autouse=True)
def _resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "Resolver", Programs)


async def found(choice: RealNodeChoice, *, why_not: str | None = None) -> set[str]:
    wanted = PlatformRecord(real_node=choice, real_node_why_not=why_not)
    return set(await startup._resolve_programs(wanted, UpOptions(), report=Heard()))


async def test_up_does_not_wait_for_the_programs_of_an_optional_node() -> None:
    assert await found("auto") == CORE


async def test_optional_node_is_part_of_up_if_all_its_programs_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Programs, "present", frozenset(REAL_NODE[1:]))
    assert await found("auto") == CORE
    monkeypatch.setattr(Programs, "present", frozenset(REAL_NODE))
    assert await found("auto") == CORE | set(REAL_NODE)


async def test_up_waits_for_the_programs_of_a_required_node() -> None:
    assert await found("yes") == CORE | set(REAL_NODE)


async def test_platform_without_a_real_node_needs_none_of_its_programs() -> None:
    assert await found("no", why_not="not wanted") == CORE

"""Programs of a platform: without those of a real node, there is no real node or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.local.test_steps import Heard
from vkgateway.local import startup
from vkgateway.local.options import RealNodeChoice, UpOptions
from vkgateway.local.record import PlatformRecord
from vkgateway.programs.binaries.errors import UnknownVersionError


class NoKubelet:
    """Finds every program but the kubelet."""

    def __init__(self, **_: Any) -> None: ...

    async def resolve(self, *names: str) -> dict[str, Path]:
        if "kubelet" in names:
            raise UnknownVersionError("kubelet 1.30.14 cannot be had")
        return {name: Path(name) for name in names}


@pytest.fixture(autouse=True)
def _no_kubelet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "Resolver", NoKubelet)


async def found(choice: RealNodeChoice, *, why_not: str | None = None) -> tuple[PlatformRecord, dict[str, Path]]:
    wanted = PlatformRecord(kubernetes_version="1.30.14", real_node=choice, real_node_why_not=why_not)
    return await startup._resolve_programs(wanted, UpOptions(), report=Heard())


async def test_no_real_node_without_its_programs() -> None:
    record, programs = await found("auto")
    assert record.real_node_why_not == "its programs cannot be had: kubelet 1.30.14 cannot be had"
    assert set(programs) == set(startup.PROGRAMS)


async def test_required_real_node_without_programs_is_an_error() -> None:
    with pytest.raises(UnknownVersionError):
        await found("yes")


async def test_platform_without_a_real_node_needs_none_of_its_programs() -> None:
    record, programs = await found("no", why_not="not wanted")
    assert record.real_node_why_not == "not wanted"
    assert set(programs) == set(startup.PROGRAMS)

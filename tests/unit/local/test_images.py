"""Loading images where there is nothing to load them into."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.operators.test_operators import Silent
from vkgateway.cli.main import run
from vkgateway.local import images, record
from vkgateway.local.paths import Paths
from vkgateway.local.record import PlatformRecord
from vkgateway.model.errors import UnavailableError


def test_without_a_platform_there_is_no_node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.tar").touch()
    assert run(["image", "load", str(tmp_path / "web.tar"), "--data-dir", str(tmp_path / "none")]) == 3
    assert "there is no platform" in capsys.readouterr().err


def test_an_archive_that_there_is_not_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["image", "load", str(tmp_path / "web.tar")]) == 2
    assert "web.tar" in capsys.readouterr().err


async def test_a_platform_without_a_real_node_says_why(tmp_path: Path) -> None:
    record.save(Paths(tmp_path).record, PlatformRecord(real_node_why_not="no root"))
    with pytest.raises(UnavailableError, match="no real node: no root"):
        await images.present(tmp_path, report=Silent())


async def test_a_real_node_that_does_not_run_says_how_to_start_it(tmp_path: Path) -> None:
    record.save(Paths(tmp_path).record, PlatformRecord(number=255, interface="vkg255"))
    with pytest.raises(UnavailableError, match="the real node does not run") as caught:
        await images.present(tmp_path, report=Silent())
    assert "vkgateway up" in caught.value.hint

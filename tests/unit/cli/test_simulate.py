"""Tests of `vkgateway simulate`: what it prints, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.gateway import Cli

SMALL = ("simulate", "--nodes", "4x8", "--tenants", "2", "--duration", "1h", "--run", "5m", "--sizes", "1=1,8=1")


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


async def test_a_table_tells_metrics_and_waits(cli: Cli) -> None:
    assert await cli(*SMALL) == 0, cli.err
    assert "allocation" in cli.out
    assert any(line.split()[:3] == ["vkgateway", "guaranteed", "all"] for line in cli.out.splitlines())
    assert "vkgateway: done" in cli.err


async def test_json_is_the_same_for_the_same_seed(cli: Cli) -> None:
    found = []
    for seed in ("5", "5", "6"):
        assert await cli(*SMALL, "--seed", seed, "-o", "json") == 0, cli.err
        (one,) = json.loads(cli.out)
        found.append({name: value for name, value in one.items() if not name.startswith("cycle")})
    assert found[0] == found[1]
    assert found[0] != found[2]
    assert found[0]["gangs"] == found[0]["ended"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nodes", "64"), "Write 64x8"),
        (("--duration", "soon"), "Write a number and ms, s, m, h, d or w"),
        (("--sizes", "8"), "Write 1=35,8=50,64=15"),
        (("--policy", "best"), "Available: vkgateway"),
        (("--policy", "nothing.here:At"), "cannot be loaded"),
        (("--run", "0s"), "is not above zero"),
    ],
)
async def test_errors_name_value_and_way_out(cli: Cli, options: tuple[str, ...], message: str) -> None:
    assert await cli(*SMALL, *options) == 2
    assert message in " ".join(cli.err.split())
    assert options[1] in cli.err or options[1] == "0s"

"""Tests of `vkgateway top` against a gateway with a given state."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from tests.unit.cli.gateway import NOON, Cli, gang, pool, tenant
from tests.unit.gateway.management import Management, over_tls
from vkgateway.cli import top
from vkgateway.planes.pki import Authority
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport

STATE = ArbiterReport(
    time=NOON,
    pools=(pool(), pool("v100", fragmentation=0.0)),
    tenants=(tenant("alpha"), tenant("beta", limit=16.5, borrowed=6)),
    gangs=(gang("alpha/ns/gang/x"),),
)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


async def test_pools_and_tenants_are_shown(cli: Cli) -> None:
    async with cli.gateway(STATE):
        assert await cli("top") == 0, cli.err
    pools, tenants = cli.out.split("\n\n")
    titles, first, _ = (line.split() for line in pools.splitlines())
    assert titles[:6] == ["POOL", "NODES", "RESOURCE", "UNITS", "GUARANTEED", "USED"]
    shown = "a100.local 3/4 nvidia.com/gpu 24 20 8 6 3 1 9.5 8 1/2 16% 16 5+2"
    assert first == shown.split()
    rows = [line.split() for line in tenants.splitlines()]
    assert rows[1] == ["alpha", "a100.local", "8", "8", "-", "8", "0", "16", "2+1"]
    assert rows[2] == ["beta", "a100.local", "8", "8", "16.5", "8", "6", "16", "2+1"]


def test_reduced_guarantee_shows_cells() -> None:
    assert top.format_guarantee(tenant("alpha", guarantee=16, kept=8, reduced="2x8 -> 8")) == "8 (2x8 -> 8)"


async def test_json_leaves_out_gangs(cli: Cli) -> None:
    async with cli.gateway(STATE):
        assert await cli("top", "-o", "json") == 0
    state = json.loads(cli.out)
    assert state.keys() == {"time", "pools", "tenants", "halfLife", "shares"}
    assert state["pools"][0]["usableNodes"] == 3


async def test_watch_without_terminal_prints_repeatedly(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    async def passes(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(top, "asyncio", SimpleNamespace(sleep=passes))
    async with cli.gateway(STATE):
        assert await cli("top", "--watch", "--interval", "0.5") == 130
    assert looks == [0.5] * 3
    assert cli.out.count("v100.local") == 3


def test_watch_on_terminal_draws_tables() -> None:
    page = io.StringIO()
    Console(file=page, width=200).print(top._render_live(STATE))
    text = page.getvalue()
    assert "12:00:00 UTC" in text
    assert "FRAGMENTED" in text
    assert "v100.local" in text


async def test_missing_platform_is_an_error(cli: Cli) -> None:
    assert await cli("top") == 5
    assert "gateway.yaml does not exist" in cli.err


async def test_unreachable_gateway_is_an_error(cli: Cli) -> None:
    cli.configure(observability={})
    assert await cli("top") == 5
    assert f"unix://{cli.folder}/run/gateway.sock" in cli.err


async def test_gateway_option_selects_gateway(cli: Cli) -> None:
    async with cli.gateway(STATE):
        assert await cli("top", "--gateway", f"unix://{cli.folder}/said.sock", "-o", "yaml") == 0
        for address in ("127.0.0.1", "http://127.0.0.1:9631"):
            assert await cli("top", "--gateway", address) == 2
            assert "https://HOST:9632" in cli.err


@pytest.mark.parametrize(
    ("token", "code", "message"), [("operator", 0, ""), ("prometheus", 5, "state-reader"), ("", 5, "Unauthorized")]
)
async def test_https_requires_token(cli: Cli, token: str, code: int, message: str) -> None:
    authority = Authority.create("test")
    (cli.folder / "ca.crt").write_bytes(authority.cert_pem)
    (cli.folder / "token").write_text(f"{token}\n")
    async with over_tls(Management(), authority, state=STATE) as url:
        line = ("--gateway", url, "--gateway-ca", f"{cli.folder}/ca.crt", "--gateway-token-file", f"{cli.folder}/token")
        assert await cli("top", *line, "-o", "json") == code
        assert message in cli.err

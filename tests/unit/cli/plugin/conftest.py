"""The plugin, and a tenant's API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.machine import patience
from tests.unit.cli.plugin.tool import ReviewingApiServer, Tool, tenant_server
from vkgateway.cli.plugin import connection, rights, values


@pytest.fixture(autouse=True)
def _patient_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Extend the plugin's limits, which are short for people who wait; tests about a limit set it again."""
    monkeypatch.setattr(connection, "FIRST_ANSWER_SECONDS", patience(20))
    monkeypatch.setattr(rights, "REVIEW_SECONDS", patience(20))
    monkeypatch.setattr(values, "_SECONDS", patience(20))


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(tmp_path, capsys)


@pytest.fixture
async def server(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReviewingApiServer]:
    """Yield a tenant's API server, to which the current context leads."""
    async with tenant_server() as found:
        tool.use(monkeypatch, found.url)
        yield found

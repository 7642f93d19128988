"""The plugin, and a tenant's API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.cli.plugin.tool import ReviewingApiServer, Tool, tenant_server


@pytest.fixture
def tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(tmp_path, capsys)


@pytest.fixture
async def server(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ReviewingApiServer]:
    """Yield a tenant's API server, to which the current context leads."""
    async with tenant_server() as found:
        tool.use(monkeypatch, found.url)
        yield found

"""Client of the gateway's Unix socket."""

from __future__ import annotations

from pathlib import Path

import aiohttp


async def read_page(data_dir: Path, path: str) -> str:
    """Return a page such as `/metrics`."""
    connector = aiohttp.UnixConnector(str(data_dir / "run/gateway.sock"))
    async with aiohttp.ClientSession("http://gateway", connector=connector) as session, session.get(path) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.text()

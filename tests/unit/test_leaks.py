"""What the tests' own watch over leaks sees."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests import conftest


async def test_what_is_left_behind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, before = asyncio.get_running_loop(), asyncio.all_tasks()
    sessions = conftest._count_sessions(monkeypatch)
    files = set(conftest._files(loop))
    task = asyncio.create_task(asyncio.sleep(60), name="forgotten")
    session = aiohttp.ClientSession()
    server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)

    assert "forgotten" in "".join(conftest._tasks(before))
    assert len(list(conftest._sessions(sessions))) == 1
    assert "accept_connection" in "".join(set(conftest._files(loop)) - files)

    task.cancel()
    server.close()
    await session.close()
    await asyncio.gather(task, server.wait_closed(), return_exceptions=True)
    assert not [*conftest._tasks(before), *conftest._sessions(sessions), *(set(conftest._files(loop)) - files)]

"""Work that runs in the background of a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def background_task(work: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[None]:
    """Run `work` within the block; it is cancelled at the end of the block, and its error is ignored."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

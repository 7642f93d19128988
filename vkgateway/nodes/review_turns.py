"""Turns of callers who are not known yet. Their reviews cost something, and anybody can request them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final
from weakref import WeakValueDictionary

from vkgateway.nodes.stream_limiter import StreamLimiter, TooManyStreamsError

REVIEWS_PER_ADDRESS: Final = 2
REVIEWS_PER_TENANT: Final = 8
"""Concurrent reviews of unknown callers: by one tenant's API server, in total and for one address."""
CALLERS_PER_ADDRESS: Final = 16
CALLERS: Final = 128
"""Unknown callers that have a turn or wait for one: of one address at a tenant, and in total."""
WAIT_SECONDS: Final = 5.0


class ReviewTurns:
    """Turns by address first: callers of an address wait for each other, and addresses alternate."""

    def __init__(self) -> None:
        self._callers = StreamLimiter(CALLERS_PER_ADDRESS, total=CALLERS, what="reviews of tokens of unknown callers")
        self._slots: WeakValueDictionary[tuple[str, ...], asyncio.Semaphore] = WeakValueDictionary()
        """Slots of a tenant, and of an address at a tenant, while a caller holds them or waits for them."""

    @contextlib.asynccontextmanager
    async def take_turn(self, tenant: str, address: str) -> AsyncIterator[None]:
        """Run the block when a caller at an address has its turn. Raises TooManyStreamsError."""
        of_address = self._slots.setdefault((tenant, address), asyncio.Semaphore(REVIEWS_PER_ADDRESS))
        of_tenant = self._slots.setdefault((tenant,), asyncio.Semaphore(REVIEWS_PER_TENANT))
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._callers.hold_stream(f"{address} {tenant}"))
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await stack.enter_async_context(of_address)
                    await stack.enter_async_context(of_tenant)
            except TimeoutError as error:
                message = f"no review of the token within {WAIT_SECONDS:.0f} s, because others are waiting; try again"
                raise TooManyStreamsError(message) from error
            yield

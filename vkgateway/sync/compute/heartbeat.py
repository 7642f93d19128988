"""Asks a server regularly whether it still answers: a watch cannot tell silence from peace."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.model.errors import VkgatewayError

EVERY_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 2.0
"""Between two questions while there is no answer."""
_MAX_MISSED: Final = 2
"""Questions in a row without an answer: one may be lost with a connection that ends just then."""
_PATH: Final = "/version"
"""Open to everybody who is known to the server, and answered without its datastore."""


class Heartbeat:
    """Calls `on_change(answers, why)` when a server falls silent and when it answers again.

    Silence is noticed after 22 s at most, well before the 40 s after which Kubernetes gives a node up. Any answer
    counts, a refusal too. It begins with the belief that the server answers.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_change: Callable[[bool, str], None],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._sleep = sleep
        self._missed = 0

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._sleep(AGAIN_SECONDS if self._missed else EVERY_SECONDS)
            await self._send_probe()

    async def _send_probe(self) -> None:
        try:
            await self._client.request("GET", _PATH, timeout=TIMEOUT_SECONDS)
        except errors.Unreachable as error:
            self._count_missed(error.message)
            return
        except errors.ApiError:
            pass
        except VkgatewayError as error:
            # No credentials to ask with: a token file or plugin that fails for now.
            self._count_missed(str(error))
            return
        missed, self._missed = self._missed, 0
        if missed >= _MAX_MISSED:
            self._on_change(True, "")

    def _count_missed(self, why: str) -> None:
        self._missed += 1
        if self._missed == _MAX_MISSED:
            self._on_change(False, why)

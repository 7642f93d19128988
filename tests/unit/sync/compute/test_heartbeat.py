"""Detection of a silent server; a server that refuses requests is not silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from vkgateway.api.errors import InputError, VkgatewayError
from vkgateway.clusters.reachability import INTERVAL_SECONDS, RETRY_SECONDS, Heartbeat
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SystemClock

Answer = Callable[[], bytes]


class FakeServer(Client):
    """Server with prepared answers; it ends the test after the last one."""

    def __init__(self, *answers: VkgatewayError | None) -> None:
        self.answers = list(answers)

    async def request(self, *_args: object, **_options: object) -> bytes:
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer
        return b"{}"


SILENCE = errors.Unreachable("GET /version at local: timed out")
REFUSAL = errors.Forbidden("no", status=403)


async def beat(*answers: VkgatewayError | None) -> tuple[list[tuple[bool, str]], list[float]]:
    """Return the notifications, and the pause before each probe."""
    server = FakeServer(*answers)
    notifications: list[tuple[bool, str]] = []
    pauses: list[float] = []

    class CountedClock(SystemClock):
        async def sleep(self, seconds: float) -> None:
            if not server.answers:
                raise asyncio.CancelledError
            pauses.append(seconds)

    class Recorder:
        def set_answering(self, answering: bool, reason: str) -> None:
            notifications.append((answering, reason))

    heart = Heartbeat(server, Recorder(), clock=CountedClock())
    with pytest.raises(asyncio.CancelledError):
        await heart.run()
    return notifications, pauses


async def test_silent_server_is_reported_once_and_then_its_return() -> None:
    notifications, pauses = await beat(None, SILENCE, SILENCE, SILENCE, None, None)
    assert notifications == [(False, SILENCE.message), (True, "")]
    assert pauses == [INTERVAL_SECONDS, INTERVAL_SECONDS, RETRY_SECONDS, RETRY_SECONDS, RETRY_SECONDS, INTERVAL_SECONDS]


async def test_single_lost_answer_is_ignored() -> None:
    notifications, _ = await beat(SILENCE, None, SILENCE, None)
    assert notifications == []


async def test_missing_credentials_count_as_no_answer() -> None:
    notifications, _ = await beat(InputError("no token file"), InputError("no token file"), None)
    assert notifications == [(False, "no token file"), (True, "")]


async def test_refusal_counts_as_an_answer() -> None:
    notifications, _ = await beat(SILENCE, REFUSAL, SILENCE, SILENCE, REFUSAL)
    assert notifications == [(False, SILENCE.message), (True, "")]

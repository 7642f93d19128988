"""Whether a silent server is noticed, and one that only complains is not taken for silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.model.errors import InputError, VkgatewayError
from vkgateway.sync.compute.heartbeat import AGAIN_SECONDS, EVERY_SECONDS, Heartbeat

Answer = Callable[[], bytes]


class Server(Client):
    """Answers as it is told, and ends the test when it has nothing more to say."""

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
    """What was told, and the pauses before each question."""
    server = Server(*answers)
    told: list[tuple[bool, str]] = []
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        if not server.answers:
            raise asyncio.CancelledError
        pauses.append(seconds)

    heart = Heartbeat(server, on_change=lambda answers, why: told.append((answers, why)), sleep=sleep)
    with pytest.raises(asyncio.CancelledError):
        await heart.run()
    return told, pauses


async def test_a_server_that_falls_silent_is_told_of_once_and_then_that_it_is_back() -> None:
    told, pauses = await beat(None, SILENCE, SILENCE, SILENCE, None, None)
    assert told == [(False, SILENCE.message), (True, "")]
    assert pauses == [EVERY_SECONDS, EVERY_SECONDS, AGAIN_SECONDS, AGAIN_SECONDS, AGAIN_SECONDS, EVERY_SECONDS]


async def test_one_lost_answer_is_nothing() -> None:
    told, _ = await beat(SILENCE, None, SILENCE, None)
    assert told == []


async def test_without_credentials_there_is_no_answer() -> None:
    told, _ = await beat(InputError("no token file"), InputError("no token file"), None)
    assert told == [(False, "no token file"), (True, "")]


async def test_a_refusal_is_an_answer() -> None:
    told, _ = await beat(SILENCE, REFUSAL, SILENCE, SILENCE, REFUSAL)
    assert told == [(False, SILENCE.message), (True, "")]

"""Writes to overloaded servers are repeated."""

from __future__ import annotations

import pytest

from bench import persistence
from vkgateway.kube import errors


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistence, "_PAUSE", 0.0)


def overloaded() -> errors.ServerError:
    return errors.ServerError("the server is overloaded", status=504)


async def test_write_is_repeated_until_the_server_answers() -> None:
    answers: list[Exception | None] = [overloaded(), errors.Unreachable("no answer in time"), None]

    async def write() -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    await persistence.persist(write)
    assert answers == []


async def test_refused_write_is_not_repeated() -> None:
    tries: list[int] = []

    async def write() -> None:
        tries.append(1)
        raise errors.NotFound("no such pod", status=404)

    with pytest.raises(errors.NotFound):
        await persistence.persist(write)
    assert len(tries) == 1


async def test_server_that_stays_overloaded_is_an_error() -> None:
    async def write() -> None:
        raise overloaded()

    with pytest.raises(errors.ServerError):
        await persistence.persist(write)

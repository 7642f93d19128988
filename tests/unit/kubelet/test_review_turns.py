"""Unknown callers take turns by address, and never use up what known callers need."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import msgspec
import pytest

from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from tests.support.waiting import wait_until
from vkgateway.nodes import token_reviewer as review_turns
from vkgateway.nodes.limits import TooManyStreamsError
from vkgateway.nodes.target import NodeProxy
from vkgateway.nodes.token_reviewer import (
    ALLOWED_CACHE_SECONDS,
    CALLERS,
    CALLERS_PER_ADDRESS,
    REVIEWS_PER_ADDRESS,
    REVIEWS_PER_TENANT,
    TokenReviewer,
    User,
)

ATTACKER, OTHER = "10.0.0.66", "10.0.0.1"


class ApiServer:
    """API server whose reviews of other tokens than `good` wait for `release`."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.reviewed: list[str] = []

    async def request(self, _method: str, _path: str, *, body: bytes, **_: Any) -> bytes:
        token = msgspec.json.decode(body)["spec"]["token"]
        self.reviewed.append(token)
        if not token.startswith("good"):
            await self.release.wait()
            return b'{"status": {"authenticated": false}}'
        return msgspec.json.encode({"status": {"authenticated": True, "user": {"username": "jane"}}})


class Attacked:
    """A reviewer, with the API servers of two tenants, and unknown callers whose reviews hang."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.servers = {"alpha": ApiServer(), "beta": ApiServer()}
        self.reviewer = TokenReviewer(lambda tenant: cast("NodeProxy", self.servers[tenant]), clock=self.clock)
        self.attempts: list[asyncio.Task[User | None]] = []

    async def flood(self, count: int, *, address: str = ATTACKER, tenant: str = "alpha") -> None:
        """Try as many invalid tokens at once."""
        for number in range(count):
            review = self.reviewer.review_token(tenant, f"bad-{address}-{number}", address=address)
            self.attempts.append(asyncio.create_task(review))
        for _ in range(5):
            await asyncio.sleep(0)

    async def review(self, token: str = "good", *, address: str | None = OTHER, tenant: str = "alpha") -> str:
        """Return the name of a token's user."""
        async with asyncio.timeout(patience(5)):
            user = await self.reviewer.review_token(tenant, token, address=address)
        return user.username if user else ""


@pytest.fixture
async def attacked() -> AsyncIterator[Attacked]:
    made = Attacked()
    yield made
    for server in made.servers.values():
        server.release.set()
    await asyncio.gather(*made.attempts, return_exceptions=True)


async def test_flood_of_an_address_leaves_turns_for_others(attacked: Attacked) -> None:
    await attacked.flood(100)
    assert len(attacked.servers["alpha"].reviewed) == REVIEWS_PER_ADDRESS
    assert await attacked.review() == "jane"
    assert await attacked.review("good-2") == "jane"


async def test_flood_of_an_address_leaves_turns_at_other_tenants(attacked: Attacked) -> None:
    """Readers behind a proxy share its address."""
    await attacked.flood(100)
    assert await attacked.review(tenant="beta", address=ATTACKER) == "jane"


async def test_callers_of_an_address_wait_for_their_turn(attacked: Attacked) -> None:
    await attacked.flood(CALLERS_PER_ADDRESS - 1)
    waiting = asyncio.create_task(attacked.review(address=ATTACKER))
    await asyncio.sleep(0)
    with pytest.raises(TooManyStreamsError, match="16 reviews of tokens of unknown callers"):
        await attacked.review("good-2", address=ATTACKER)
    attacked.servers["alpha"].release.set()
    assert await waiting == "jane"


async def test_wait_for_a_turn_ends(attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(review_turns, "WAIT_SECONDS", 0.01)
    await attacked.flood(REVIEWS_PER_ADDRESS)
    with pytest.raises(TooManyStreamsError, match="try again"):
        await attacked.review(address=ATTACKER)


async def test_known_callers_need_no_turn(attacked: Attacked) -> None:
    assert await attacked.review() == "jane"
    await attacked.clock.sleep(ALLOWED_CACHE_SECONDS + 1)
    for number in range(CALLERS):
        await attacked.flood(CALLERS_PER_ADDRESS, address=f"10.1.0.{number}")
    assert len(attacked.servers["alpha"].reviewed) == 1 + REVIEWS_PER_TENANT
    assert await attacked.review() == "jane"
    assert await attacked.review("good-in-a-session", address=None) == "jane"


async def test_invalid_token_is_not_known_any_more(attacked: Attacked) -> None:
    server = attacked.servers["alpha"]
    assert await attacked.review() == "jane"
    await attacked.clock.sleep(ALLOWED_CACHE_SECONDS + 1)
    server.request = _refuse  # type: ignore[method-assign]
    assert await attacked.review() == ""
    await attacked.clock.sleep(ALLOWED_CACHE_SECONDS + 1)
    del server.request
    await attacked.flood(CALLERS_PER_ADDRESS, address=OTHER)
    with pytest.raises(TooManyStreamsError):
        await attacked.review()


async def test_invalid_tokens_do_not_displace_results_of_known_callers(attacked: Attacked) -> None:
    server = attacked.servers["alpha"]
    assert await attacked.review() == "jane"
    server.release.set()
    for number in range(300):
        assert await attacked.review(f"bad-{number}", address=ATTACKER) == ""
    assert await attacked.review() == "jane"
    assert server.reviewed.count("good") == 1


async def test_nothing_is_kept_of_addresses() -> None:
    turns = review_turns.ReviewTurns()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(3):
            await stack.enter_async_context(turns.take_turn("alpha", f"10.0.0.{number}"))
        assert len(turns._slots) == 4
    await wait_until(lambda: not turns._slots)


async def _refuse(*_: Any, **__: Any) -> bytes:
    return b'{"status": {"authenticated": false}}'

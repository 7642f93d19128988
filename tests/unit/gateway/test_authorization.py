"""Tests of authorization of metrics over TLS."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.fakes.clock import FakeClock
from tests.unit.gateway.management import Management, over_tls
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.nodes.token_reviewer import ALLOWED_CACHE_SECONDS, DENIED_CACHE_SECONDS
from vkgateway.planes.pki import Authority
from vkgateway.serve.authorization import OUTAGE_SECONDS


@asynccontextmanager
async def served(management: Management, clock: Clock = SYSTEM_CLOCK) -> AsyncIterator[aiohttp.ClientSession]:
    authority = Authority.create("test")
    async with over_tls(management, authority, clock=clock) as url:
        connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority.cert_pem.decode()))
        async with aiohttp.ClientSession(url, connector=connector) as session:
            yield session


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/healthz", "", 200),
        ("/readyz", "", 200),
        ("/metrics", "", 401),
        ("/metrics", "stranger", 401),
        ("/metrics", "nobody", 403),
        ("/metrics", "prometheus", 200),
        ("/metrics/", "nobody", 403),
        ("/arbiter/state", "", 401),
        ("/arbiter/state", "prometheus", 403),
        ("/arbiter/state", "operator", 200),
        ("/arbiter/what-if", "", 401),
        ("/arbiter/what-if", "prometheus", 403),
        ("/else", "operator", 403),
    ],
)
async def test_paths_are_authorized_by_role(path: str, token: str, status: int) -> None:
    async with served(Management()) as session, session.get(path, headers=bearer(token)) as answer:
        assert answer.status == status


async def test_basic_credentials_are_rejected() -> None:
    management = Management()
    headers = {"Authorization": "Basic operator"}
    async with served(management) as session, session.get("/metrics", headers=headers) as answer:
        assert answer.status == 401
    assert not management.asked


async def test_unreachable_management_cluster_rejects_all_callers() -> None:
    management = Management()
    management.away = True
    async with served(management) as session, session.get("/metrics", headers=bearer("operator")) as answer:
        assert answer.status == 503


async def test_accepted_token_reads_metrics_and_nothing_else_for_some_time_of_an_outage() -> None:
    management, clock = Management(), FakeClock()
    async with served(management, clock) as session:

        async def status(path: str, token: str) -> int:
            async with session.get(path, headers=bearer(token)) as answer:
                return answer.status

        assert await status("/metrics", "operator") == await status("/arbiter/state", "operator") == 200
        management.away = True
        await clock.sleep(OUTAGE_SECONDS - 1)
        assert await status("/metrics", "operator") == 200
        assert await status("/metrics", "prometheus") == await status("/arbiter/state", "operator") == 503
        await clock.sleep(1)
        assert await status("/metrics", "operator") == 503


async def test_revoked_token_reads_nothing_during_an_outage() -> None:
    management, clock = Management(), FakeClock()
    async with served(management, clock) as session:

        async def status() -> int:
            async with session.get("/metrics", headers=bearer("prometheus")) as answer:
                return answer.status

        assert await status() == 200
        management.refused.add("prometheus")
        await clock.sleep(ALLOWED_CACHE_SECONDS)
        assert await status() == 401
        management.away = True
        await clock.sleep(DENIED_CACHE_SECONDS)
        assert await status() == 503


async def test_reviews_are_cached() -> None:
    management = Management()
    async with served(management) as session:
        for _ in range(3):
            async with session.get("/metrics", headers=bearer("prometheus")) as answer:
                assert answer.status == 200
    assert len(management.asked) == 2

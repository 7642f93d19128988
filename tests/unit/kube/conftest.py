"""Fixtures of the client tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube.client import Client


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    """A fake API server."""
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    """A client of the fake API server."""
    async with server.client() as client:
        yield client

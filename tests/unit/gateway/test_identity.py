"""ID of the gateway: created once, the same for all replicas, never replaced."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube.resources import SECRETS
from vkgateway.serve.daemon import SECRET_NAME, ensure_identity


async def test_all_replicas_get_the_same_id() -> None:
    async with FakeApiServer(rights=Rights.of_management()) as server, server.client() as client:
        first = await asyncio.gather(*(ensure_identity(client) for _ in range(3)))
        assert len({*first, await ensure_identity(client)}) == 1
        assert first[0]


async def test_invalid_id_is_not_replaced() -> None:
    async with FakeApiServer() as server, server.client() as client:
        server.store.create(SECRETS, {"metadata": {"name": SECRET_NAME}, "data": {}}, SYSTEM_NAMESPACE)
        with pytest.raises(UnavailableError, match="holds no ID") as caught:
            await ensure_identity(client)
        assert "Restore the Secret" in caught.value.advice

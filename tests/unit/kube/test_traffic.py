"""Counts of requests and watches."""

from __future__ import annotations

import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import PODS
from vkgateway.kube.transport import WATCH


async def test_requests_are_counted_by_method(server: FakeApiServer, client: Client) -> None:
    await client.list_all(PODS)
    with pytest.raises(errors.NotFound):
        await client.get(PODS, "a", namespace="n")
    await client.create(PODS, {"metadata": {"name": "a"}}, namespace="n")
    assert client.traffic.requests == {"GET": 2, "POST": 1}


async def test_watch_is_open_within_its_block(server: FakeApiServer, client: Client) -> None:
    async with client.open_watch(PODS.path(), {"watch": True, "resourceVersion": "0"}):
        assert client.traffic.open_watches == 1
    assert client.traffic.open_watches == 0
    assert client.traffic.requests == {WATCH: 1}

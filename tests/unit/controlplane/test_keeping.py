"""What is kept comes back, whole; what is as it should be is not written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from vkgateway.controlplane.keeping import KEPT_ANNOTATION, kept, put_back
from vkgateway.kube.resources import CONFIG_MAPS

WANTED: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "rules", "namespace": "default", "annotations": {KEPT_ANNOTATION: "true"}},
    "data": {"rule": "one"},
}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


async def look(server: FakeApiServer) -> tuple[list[str], set[str]]:
    """Put back; returns what was, and the methods of the requests that it took."""
    before = len(server.requests)
    async with server.client() as client:
        changed = await put_back(client, [WANTED])
    return changed, {request.split()[0] for request in server.requests[before:]}


def data(server: FakeApiServer) -> Any:
    found = server.store.find(CONFIG_MAPS, "rules", "default")
    assert found is not None
    return found["data"]


def test_only_what_says_so_is_kept() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other", "annotations": None}}
    assert kept([other, WANTED]) == [WANTED]


async def test_what_was_deleted_is_made_again_and_then_left_alone(server: FakeApiServer) -> None:
    assert (await look(server))[0] == ["ConfigMap/rules"]
    assert data(server) == {"rule": "one"}

    assert await look(server) == ([], {"GET"})


@pytest.mark.parametrize(
    "changed", [{"rule": "two"}, {"rule": "one", "exception": "all"}, {}], ids=["changed", "added", "taken away"]
)
async def test_what_was_changed_becomes_what_it_was(server: FakeApiServer, changed: dict[str, str]) -> None:
    server.store.create(CONFIG_MAPS, {**WANTED, "data": changed})

    assert (await look(server))[0] == ["ConfigMap/rules"]

    assert data(server) == {"rule": "one"}


async def test_labels_of_the_tenant_are_no_change(server: FakeApiServer) -> None:
    metadata = {**WANTED["metadata"], "annotations": {"team": "a"}, "labels": {"a": "b"}}
    server.store.create(CONFIG_MAPS, {**WANTED, "metadata": metadata})

    assert await look(server) == ([], {"GET"})

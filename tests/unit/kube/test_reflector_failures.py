"""The reflector after a restore of the server's datastore, and without credentials."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.store import ObjectStore
from tests.unit.kube.test_reflector import put, remove, watching
from vkgateway.api.errors import InputError
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS
from vkgateway.kube.response_streams import ResponseStream


def back_up(server: FakeApiServer) -> ObjectStore:
    """Return a copy of the server's datastore."""
    copied = ObjectStore()
    copied.objects, copied.version = copy.deepcopy((server.store.objects, server.store.version))
    return copied


async def test_restored_datastore_causes_a_list() -> None:
    async with FakeApiServer() as server:
        put(server, "kept")
        put(server, "removed")
        backup = back_up(server)
        remove(server, "removed")
        put(server, "undone")
        async with Client(server.url, name="fake") as client, watching(client) as seen:
            await seen.wait_for_changes("+kept", "+undone")
            await server.stop()
            await seen.until(lambda: not seen.reflector.is_complete)
            server.store = backup
            await server.start()
            await seen.until(lambda: seen.reflector.is_complete)
            assert seen.names == ["kept", "removed"]
            await seen.wait_for_changes("~kept", "+removed", "-undone")


async def test_reused_version_in_restored_datastore_is_reported() -> None:
    """Versions are not unique after a restore: the list reports all objects once."""
    async with FakeApiServer() as server:
        put(server, "same")
        put(server, "other")
        backup = back_up(server)
        put(server, "other", n=1)
        put(server, "undone")
        was = server.store.get(CONFIG_MAPS, "other", "default")["metadata"]
        async with Client(server.url, name="fake") as client, watching(client) as seen:
            await seen.wait_for_changes("+other", "+same", "+undone")
            await server.stop()
            await seen.until(lambda: not seen.reflector.is_complete)
            server.store = backup
            put(server, "other", n=2)
            now = server.store.get(CONFIG_MAPS, "other", "default")["metadata"]
            assert (was["uid"], was["resourceVersion"]) == (now["uid"], now["resourceVersion"])
            await server.start()
            await seen.wait_for_changes("~other", "~same", "-undone")
            assert seen.reflector.store["default", "other"].data == {"n": 2}
            server.end_watches()
            put(server, "new")
            await seen.wait_for_changes("+new")


async def test_restarted_server_causes_no_list() -> None:
    async with FakeApiServer() as server:
        put(server, "a")
        async with Client(server.url, name="fake") as client, watching(client) as seen:
            await server.stop()
            await seen.until(lambda: not seen.reflector.is_complete)
            put(server, "b")
            await server.start()
            await seen.until(lambda: seen.reflector.is_complete)
            await seen.wait_for_changes("+a", "+b")
            assert seen.reflector.relist_count == 1


async def test_missing_credentials_are_retried() -> None:
    reads = 0

    async def token() -> str:
        nonlocal reads
        reads += 1
        if reads in (2, 3, 4):
            raise InputError("token file is not there")
        return "secret"

    async with FakeApiServer() as server, Client(server.url, token=token) as client:
        put(server, "a")
        async with watching(client) as seen:
            server.end_watches()
            await seen.until(lambda: len(seen.reachable) == 3)
            (_, _), (down, why), (up, _) = seen.reachable
            assert (down, up) == (False, True)
            assert "token file is not there" in why


async def test_lists_back_off_when_versions_expire_quickly() -> None:
    async with FakeApiServer() as server, Client(server.url, streaming_lists=False) as client:
        server.fail("GET", "resourceVersion=", status=410, reason="Expired", times=8)
        async with watching(client) as seen:
            await seen.until(lambda: seen.reflector.relist_count == 9)
            assert seen.sleeps == pytest.approx([0.15, 0.3, 0.6, 1.2, 2.4, 4.8, 9.6])


async def test_watches_back_off_when_server_ends_them_immediately(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeApiServer() as server, Client(server.url, name="fake") as client:
        put(server, "a")
        async with watching(client) as seen:
            watch = client.open_watch

            @contextlib.asynccontextmanager
            async def ended(*args: Any, **options: Any) -> AsyncIterator[ResponseStream]:
                async with watch(*args, **options) as stream:
                    server.end_watches()
                    yield stream

            monkeypatch.setattr(client, "open_watch", ended)
            server.end_watches()
            await seen.until(lambda: len(seen.sleeps) >= 7)
            assert seen.sleeps[:7] == pytest.approx([0.1, 0.1, 0.15, 0.3, 0.6, 1.2, 2.4])
            monkeypatch.undo()
            await seen.wait_for_changes("+a")
            put(server, "b")
            await seen.wait_for_changes("+b")
            server.end_watches()
            before = len(seen.sleeps)
            await seen.until(lambda: len(seen.sleeps) > before)
            assert seen.sleeps[before] == pytest.approx(0.1)
            assert seen.reflector.relist_count == 1

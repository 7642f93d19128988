"""The reflector: the store is correct and complete after all failures of the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from tests.support.machine import patience
from vkgateway.api.objects import Meta
from vkgateway.kube import reflector
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import CONFIG_MAPS, PODS


class View(msgspec.Struct):
    """A ConfigMap with an optional number in `data.n`."""

    metadata: Meta
    data: dict[str, int | str] = {}


def _decode(body: bytes) -> View:
    view = msgspec.json.decode(body, type=View)
    if view.data.get("n") == "poison":
        raise msgspec.ValidationError("poison")
    return view


class RecorderClock(FakeClock):
    """Clock that reports its sleeps to a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    async def sleep(self, seconds: float) -> None:
        self._recorder.handle_sleep(seconds)
        await super().sleep(seconds)


class Recorder:
    """A running reflector, and its callbacks."""

    def __init__(self, client: Client, **options: Any) -> None:
        self.changes: list[str] = []
        self.reachable: list[tuple[bool, str]] = []
        self.completed = 0
        self.sleeps: list[float] = []
        self._changed_event = asyncio.Event()
        self.reflector: Reflector[View] = Reflector(
            client,
            options.pop("resource", CONFIG_MAPS),
            decode=_decode,
            on_change=self._changed,
            on_reachable=self._reachable_changed,
            on_complete=self._completed,
            clock=RecorderClock(self),
            random=lambda: 0.5,
            **options,
        )

    def _changed(self, old: View | None, new: View | None) -> None:
        sign = "+" if old is None else "-" if new is None else "~"
        view = new or old
        assert view is not None
        if old is not None and new is not None:
            assert old.metadata.uid == new.metadata.uid
        self.changes.append(sign + view.metadata.name)
        self._changed_event.set()

    def _reachable_changed(self, reachable: bool, why: str) -> None:
        self.reachable.append((reachable, why))
        self._changed_event.set()

    def handle_sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self._changed_event.set()

    def _completed(self) -> None:
        assert self.reflector.is_complete
        self.completed += 1
        self._changed_event.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(patience(30)):
            while not condition():
                await self._changed_event.wait()
                self._changed_event.clear()

    async def wait_for_changes(self, *changes: str) -> None:
        """Wait for exactly these changes since the last call."""
        await self.until(lambda: len(self.changes) >= len(changes))
        assert self.changes == list(changes)
        self.changes.clear()

    @property
    def complete(self) -> list[bool]:
        """The state as a list, so that mypy does not narrow the type."""
        return [self.reflector.is_complete]

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.reflector.store)


@asynccontextmanager
async def watching(client: Client, *, complete: bool = True, **options: Any) -> AsyncIterator[Recorder]:
    seen = Recorder(client, **options)
    task = asyncio.create_task(seen.reflector.run())
    try:
        if complete:
            async with asyncio.timeout(patience(30)):
                await seen.reflector.wait_until_complete()
        yield seen
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def put(server: FakeApiServer, name: str, n: int | str = 0, **metadata: Any) -> None:
    """Create or update a ConfigMap."""
    found = server.store.find(CONFIG_MAPS, name, "default")
    if found is None:
        server.store.create(CONFIG_MAPS, {"metadata": {"name": name} | metadata, "data": {"n": n}})
    else:
        metadata = found["metadata"] | metadata
        server.store.update(
            CONFIG_MAPS, found | {"metadata": metadata, "data": {"n": n}}, name=name, namespace="default"
        )


def remove(server: FakeApiServer, name: str) -> None:
    server.store.delete(CONFIG_MAPS, name, "default")


both_lists = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "paged"])


_FROM_CACHE = "resourceVersion=1&resourceVersionMatch=NotOlderThan"


@pytest.mark.parametrize("single", [True, False])
async def test_first_list_of_single_server_comes_from_watch_cache(server: FakeApiServer, single: bool) -> None:
    for name in "abc":
        put(server, name)
    async with (
        Client(server.url, streaming_lists=False, single_server=single) as client,
        watching(client, page_size=2) as seen,
    ):
        assert seen.names == ["a", "b", "c"]
        server.fail("GET", "resourceVersion=", status=410, reason="Expired")
        server.end_watches()
        await seen.until(lambda: seen.reflector.relist_count == 2)
    lists = [request for request in server.requests if "limit=2" in request]
    assert [_FROM_CACHE in request for request in lists] == [single, False, False, False]
    assert ["continue=" in request for request in lists] == [False, True, False, True]


@both_lists
async def test_list_and_later_changes_are_reported(server: FakeApiServer, client: Client, streaming: bool) -> None:
    server.streaming_lists = streaming
    put(server, "a")
    put(server, "b")
    async with watching(client, page_size=1) as seen:
        assert seen.reachable == [(True, "")]
        assert seen.completed == 1
        await seen.wait_for_changes("+a", "+b")
        put(server, "c")
        put(server, "a", 1)
        remove(server, "b")
        await seen.wait_for_changes("+c", "~a", "-b")
        assert seen.names == ["a", "c"]
        assert seen.reflector.store["default", "a"].data == {"n": 1}
    paged = [request for request in server.requests if "limit=1" in request]
    assert len(paged) == (0 if streaming else 2)


async def test_selectors_limit_the_store(server: FakeApiServer, client: Client) -> None:
    put(server, "a", labels={"team": "x"})
    put(server, "b")
    async with watching(client, label_selector="team=x", namespace="default") as seen:
        await seen.wait_for_changes("+a")
        put(server, "b", labels={"team": "x"})
        put(server, "a", labels={})
        await seen.wait_for_changes("+b", "-a")
    assert server.requests[0].startswith("GET /api/v1/namespaces/default/configmaps?watch=true")
    assert "labelSelector=team%3Dx" in server.requests[0]


async def test_ended_watch_resumes_at_its_version(server: FakeApiServer, client: Client) -> None:
    put(server, "a")
    async with watching(client) as seen:
        await seen.wait_for_changes("+a")
        server.end_watches()
        put(server, "b")
        await seen.wait_for_changes("+b")
        assert seen.reflector.relist_count == 1
        assert seen.completed == 1
        assert seen.reachable == [(True, "")]
    assert "resourceVersion=101" in server.requests[-1]


async def test_single_lost_connection_changes_nothing(server: FakeApiServer, client: Client) -> None:
    async with watching(client, inactivity=patience(0.5)) as seen:
        await seen.until(lambda: seen.sleeps)
        put(server, "a")
        await seen.wait_for_changes("+a")
        assert seen.reflector.is_complete
        assert seen.reachable == [(True, "")]


async def test_occasional_lost_connections_change_nothing(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "_RESUME_PROOF_SECONDS", 0.01)
    async with watching(client, inactivity=patience(0.5)) as seen:
        await seen.until(lambda: len(seen.sleeps) > 2)
        put(server, "a")
        await seen.wait_for_changes("+a")
        assert seen.reachable == [(True, "")]
        assert seen.completed == 1


async def test_unreachable_server_is_reported_once(server: FakeApiServer, client: Client) -> None:
    put(server, "a")
    async with watching(client) as seen:
        server.fail("GET", "/configmaps", status=503, times=4)
        server.end_watches()
        await seen.until(lambda: len(seen.reachable) == 3)
        (_, first), (down, why), (up, _) = seen.reachable
        assert (first, down, up) == ("", False, True)
        assert "503" in why
        assert seen.completed == 2
        waits = [wait for wait in seen.sleeps if wait > 0.1]
        assert waits == sorted(waits)
        await seen.wait_for_changes("+a")


async def test_store_is_complete_again_after_watch_lasted(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching(client) as seen:
        server.fail("GET", "/configmaps", status=503, times=1000)
        server.end_watches()
        await seen.until(lambda: len(seen.reachable) == 2)
        assert not seen.reflector.is_complete
        assert not seen.reflector.state.is_reachable
        monkeypatch.setattr(reflector, "_RESUME_PROOF_SECONDS", 0.01)
        server.heal()
        await seen.reflector.wait_until_complete()
        assert seen.reflector.state.is_reachable


async def test_store_is_complete_after_first_bookmark(server: FakeApiServer, client: Client) -> None:
    async with watching(client) as seen:
        server.fail("GET", "/configmaps", status=503, times=2)
        server.end_watches()
        await seen.until(lambda: len(seen.reachable) == 2)
        await server.until(lambda: server.watches == 1)
        assert not seen.reflector.is_complete
        server.bookmark()
        await seen.reflector.wait_until_complete()
        assert seen.reflector.relist_count == 1


async def test_retry_after_of_server_is_respected(server: FakeApiServer, client: Client) -> None:
    async with watching(client) as seen:
        server.fail("GET", "/configmaps", status=429, retry_after=17)
        server.end_watches()
        await seen.until(lambda: any(wait >= 17 for wait in seen.sleeps))


@both_lists
@pytest.mark.parametrize("in_stream", [True, False], ids=["in-stream", "in-status"])
async def test_expired_version_causes_list_and_reports_differences(
    server: FakeApiServer, client: Client, streaming: bool, in_stream: bool
) -> None:
    server.streaming_lists = streaming
    for name in "abc":
        put(server, name)
    async with watching(client) as seen:
        await seen.wait_for_changes("+a", "+b", "+c")
        gate = server.hold("GET", "resourceVersion=")
        server.end_watches()
        await server.until(lambda: any("resourceVersion=" in request for request in server.requests))
        put(server, "b", 1)
        remove(server, "c")
        put(server, "d")
        server.store.compact()
        if not in_stream:
            server.fail("GET", "resourceVersion=", status=410, reason="Expired")
        gate.set()
        await seen.wait_for_changes("~b", "+d", "-c")
        assert seen.names == ["a", "b", "d"]
        await seen.until(lambda: seen.completed == 2)
        assert seen.reachable == [(True, "")]


async def test_replaced_object_is_deleted_before_addition(server: FakeApiServer, client: Client) -> None:
    put(server, "a")
    async with watching(client) as seen:
        await seen.wait_for_changes("+a")
        gate = server.hold("GET", "resourceVersion=")
        server.end_watches()
        await server.until(lambda: any("resourceVersion=" in request for request in server.requests))
        remove(server, "a")
        put(server, "a")
        server.store.compact()
        gate.set()
        await seen.wait_for_changes("-a", "+a")


async def test_expired_continue_token_causes_list_in_one_page(server: FakeApiServer, client: Client) -> None:
    server.streaming_lists = False
    for name in "abc":
        put(server, name)
    server.fail("GET", "continue=", status=410, reason="Expired")
    async with watching(client, page_size=2) as seen:
        await seen.wait_for_changes("+a", "+b", "+c")
        assert seen.reachable == [(True, "")]


async def test_refused_streaming_list_disables_them_for_client(server: FakeApiServer, client: Client) -> None:
    server.streaming_lists = False
    put(server, "a")
    async with watching(client) as first, watching(client, resource=PODS):
        await first.wait_for_changes("+a")
    tries = [request for request in server.requests if "sendInitialEvents" in request]
    assert len(tries) == 1


async def test_server_without_streaming_lists(server: FakeApiServer, client: Client) -> None:
    """The server ignores the parameters: it sends all objects, and its first bookmark is not the end marker."""
    server.ancient = True
    put(server, "a")
    async with watching(client, complete=False) as seen:
        await server.until(lambda: server.watches == 1)
        await seen.wait_for_changes("+a")
        assert seen.completed == 0
        server.bookmark()
        await seen.reflector.wait_until_complete()
        put(server, "b")
        await seen.wait_for_changes("+b")
        assert seen.reachable == [(True, "")]
    assert "limit=500" in server.requests[1]


async def test_truncated_list_is_not_complete(server: FakeApiServer, client: Client) -> None:
    put(server, "a")
    async with watching(client, complete=False) as seen:
        server.fail("GET", "sendInitialEvents", status=0, times=2)
        await seen.reflector.wait_until_complete()
        assert seen.reachable[0][0] is False
        assert seen.reachable[-1] == (True, "")


async def test_undecodable_object_keeps_last_state_and_store_is_incomplete(
    server: FakeApiServer, client: Client
) -> None:
    put(server, "a", 1)
    async with watching(client) as seen:
        await seen.wait_for_changes("+a")
        put(server, "a", "poison")
        put(server, "b")
        await seen.wait_for_changes("+b")
        assert seen.reflector.store["default", "a"].data == {"n": 1}
        assert seen.complete == [False]
        assert seen.reflector.state.unreadable_keys == {("default", "a")}
        put(server, "a", 2)
        await seen.wait_for_changes("~a")
        assert seen.complete == [True]
        put(server, "b", "poison")
        remove(server, "b")
        await seen.wait_for_changes("-b")
        assert seen.complete == [True]


async def test_permanent_refusal_is_reported_and_retried(server: FakeApiServer, client: Client) -> None:
    server.fail("GET", "/configmaps", status=403, reason="Forbidden", times=3)
    async with watching(client) as seen:
        assert seen.reachable[0][0] is False
        assert "403" in seen.reachable[0][1]
        assert seen.reachable[-1] == (True, "")


async def test_repeated_refusals_cause_a_list(server: FakeApiServer, client: Client) -> None:
    async with watching(client) as seen:
        server.fail("GET", "resourceVersion=", status=504, times=100)
        server.end_watches()
        await seen.until(lambda: seen.reflector.relist_count == 2)
        assert seen.reflector.is_complete


async def test_large_object_arrives_in_many_chunks(server: FakeApiServer, client: Client) -> None:
    async with watching(client) as seen:
        put(server, "big", "x" * 1_500_000)
        put(server, "small")
        await seen.wait_for_changes("+big", "+small")
        assert len(str(seen.reflector.store["default", "big"].data["n"])) == 1_500_000


async def test_pods_and_other_kinds_have_separate_stores(server: FakeApiServer, client: Client) -> None:
    async with watching(client, resource=PODS) as seen:
        put(server, "a")
        server.store.create(PODS, {"metadata": {"name": "p"}, "spec": {}})
        await seen.wait_for_changes("+p")


async def test_deeply_nested_object_is_undecodable(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoders raise RecursionError. In `managedFields`, tenants may nest values to any depth."""

    def decode(body: bytes) -> View:
        if b"poison" in body:
            raise RecursionError("maximum recursion depth exceeded while deserializing an object")
        return msgspec.json.decode(body, type=View)

    monkeypatch.setattr("tests.unit.kube.test_reflector._decode", decode)
    put(server, "a", 1)
    async with watching(client) as seen:
        await seen.wait_for_changes("+a")
        put(server, "a", "poison")
        put(server, "b")
        await seen.wait_for_changes("+b")
        assert seen.complete == [False]

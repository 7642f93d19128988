"""Rules of all tests: no test leaves tasks, sessions, connections or servers behind. The machine may be busy."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from hypothesis import HealthCheck, settings

from tests.support.machine import patience, slowness
from tests.support.times import (  # noqa: F401 - hooks of pytest
    pytest_collectreport,
    pytest_fixture_setup,
    pytest_runtest_makereport,
)

EXAMPLES = int(os.environ.get("VKGATEWAY_EXAMPLES", "50"))
"""Of each property; `make test-deep` has more."""
SEARCH = bool(os.environ.get("VKGATEWAY_SEARCH"))
"""Whether examples are new in each run. Otherwise they are fixed, so that a result depends on the code alone."""

settings.register_profile(
    "any machine",
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not SEARCH,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

_PATIENCE = 15.0
"""Seconds for what is closing already: TLS says goodbye over the network."""


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exempt the thousands of collected tests from garbage collection, which needs an eighth of the CPU otherwise."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)


_OF_USERS = (
    "VKGATEWAY_CONFIG",
    "VKGATEWAY_DATA_DIR",
    "VKGATEWAY_GATEWAY",
    "VKGATEWAY_GATEWAY_CA",
    "VKGATEWAY_GATEWAY_TOKEN_FILE",
    "VKGATEWAY_KUBECONFIG",
    "XDG_DATA_HOME",
)
"""Settings of a user's shell, which are for the user's own platform."""


def pytest_configure() -> None:
    """Measure the machine before the worker processes start: they inherit the result."""
    for name in _OF_USERS:
        os.environ.pop(name, None)
    slowness()


@pytest.fixture(autouse=True)
def _leaks(request: pytest.FixtureRequest) -> None:
    """Watch every test that runs in an event loop, from before its first fixture until after its last."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("leaves_nothing_behind")


@pytest.fixture
async def leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Fail the test where something of it is left in the event loop."""
    before = asyncio.all_tasks()
    sessions = _count_sessions(monkeypatch)
    yield
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience(_PATIENCE)
    while (left := [*_tasks(before), *_sessions(sessions), *_files(loop)]) and loop.time() < deadline:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.005)
    assert not left, f"left behind: {left}"


def _count_sessions(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[aiohttp.ClientSession]:
    """Note every session from now on; the notes keep none alive."""
    made: weakref.WeakSet[aiohttp.ClientSession] = weakref.WeakSet()
    init = aiohttp.ClientSession.__init__

    def noted(self: aiohttp.ClientSession, *args: object, **options: object) -> None:
        init(self, *args, **options)  # type: ignore[arg-type]
        made.add(self)

    monkeypatch.setattr(aiohttp.ClientSession, "__init__", noted)
    return made


def _tasks(before: set[asyncio.Task[object]]) -> Iterator[str]:
    current = asyncio.current_task()
    for task in asyncio.all_tasks() - before:
        if task is not current and not task.done():
            yield f"task {task!r}"


def _sessions(made: weakref.WeakSet[aiohttp.ClientSession]) -> Iterator[str]:
    return (f"session {session!r}" for session in made if not session.closed)


def _files(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Connections, servers and pipes that the loop still waits for.

    Not its own pipe to itself, nor the one that gRPC shares among all its channels in a loop.
    """
    own = loop._ssock.fileno()  # type: ignore[attr-defined]
    for key in loop._selector.get_map().values():  # type: ignore[attr-defined]
        waiting = repr(key.data[0] or key.data[1])
        if key.fd != own and "PollerCompletionQueue" not in waiting:
            yield f"file {key.fd} of {waiting}"

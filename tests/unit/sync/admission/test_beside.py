"""Objects beside pods: watched once they are wanted, found when they appear, and told of when they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.background import in_background
from tests.unit.sync.admission.samples import reference
from tests.unit.sync.world import until
from vkgateway.kube.resources import CRDS, Resource
from vkgateway.sync.admission import companion_objects as module
from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.translate.gangs import Kind, Reference

PODGROUPS = Resource("apis/scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup")
RAY_CLUSTERS = Resource("apis/ray.io/v1", "rayclusters", "RayCluster")
RAY = Reference("ray.io", "RayCluster", "rayclusters", "default", "ray")
CRD = {
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {"plural": "podgroups", "kind": "PodGroup"},
        "versions": [{"name": "v1beta1", "served": True}],
    },
}
GROUP = {"metadata": {"name": "train"}, "spec": {"minMember": 4}}


@asynccontextmanager
async def running(server: FakeApiServer) -> AsyncIterator[tuple[CompanionObjects, list[Reference]]]:
    changed: list[Reference] = []
    async with server.client() as client:
        beside = CompanionObjects("alpha", client, changed=changed.append)
        async with in_background(beside.run()):
            yield beside, changed


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as made:
        yield made


def asked(server: FakeApiServer, path: str) -> int:
    return sum(1 for request in server.requests if request == f"GET {path}")


async def test_an_object_that_is_there_is_found(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with running(server) as (beside, changed):
        assert beside.get_object(reference()) is None
        beside.watch_kind_of(reference())
        await until(lambda: beside.get_object(reference()))
        found = beside.get_object(reference())
        assert found is not None
        assert found["spec"] == {"minMember": 4}
        assert changed == [reference()]
        assert beside.get_object(reference("another")) is None


async def test_it_is_complete_once_each_kind_was_listed_or_is_not_there(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with running(server) as (beside, changed):
        said = [beside.is_complete]
        for wanted in (reference(), Reference("ray.io", "RayCluster", "rayclusters", "default", "ray")):
            beside.watch_kind_of(wanted)
            said.append(beside.is_complete)
            await until(lambda: beside.is_complete)
        assert said == [True, False, False]
        assert changed == [reference()]


async def test_nothing_is_asked_of_the_server_before_something_is_wanted(server: FakeApiServer) -> None:
    async with running(server):
        await asyncio.sleep(0.05)
    assert server.requests == []


async def test_a_kind_is_watched_once_however_many_of_it_are_wanted(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    async with running(server) as (beside, _):
        for number in range(5):
            beside.watch_kind_of(reference(f"train-{number}"))
        await until(lambda: server.watches)
        await asyncio.sleep(0.05)
        assert server.watches == 1
        assert asked(server, "/apis/scheduling.volcano.sh") == 1


async def test_what_comes_changes_and_goes_is_told(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    async with running(server) as (beside, changed):
        beside.watch_kind_of(reference())
        await until(lambda: server.watches)
        server.store.create(PODGROUPS, GROUP)
        await until(lambda: len(changed) == 1)
        server.store.update(PODGROUPS, {**GROUP, "spec": {"minMember": 5}}, name="train", namespace="default")
        await until(lambda: len(changed) == 2)
        found = beside.get_object(reference())
        assert found is not None
        assert found["spec"] == {"minMember": 5}
        server.store.delete(PODGROUPS, "train", "default")
        await until(lambda: len(changed) == 3)
        assert beside.get_object(reference()) is None
        assert changed == [reference()] * 3


async def test_a_kind_that_the_server_does_not_know_is_asked_for_again(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.05)
    async with running(server) as (beside, changed):
        beside.watch_kind_of(reference())
        await until(lambda: asked(server, "/apis/scheduling.volcano.sh") >= 3)
        assert changed == []

        server.register(PODGROUPS)
        server.store.create(PODGROUPS, GROUP)
        await until(lambda: beside.get_object(reference()))
        times = asked(server, "/apis/scheduling.volcano.sh")
        await asyncio.sleep(0.2)
        assert asked(server, "/apis/scheduling.volcano.sh") == times


async def test_a_kind_that_is_wanted_while_another_is_asked_for_is_watched_too(server: FakeApiServer) -> None:
    for resource in (PODGROUPS, RAY_CLUSTERS):
        server.register(resource)
    gate = server.hold("GET", "/apis/scheduling.volcano.sh")
    async with running(server) as (beside, _):
        beside.watch_kind_of(reference())
        await until(lambda: server.requests)
        beside.watch_kind_of(RAY)
        gate.set()
        await until(lambda: server.watches == 2)


async def test_a_kind_is_found_in_whichever_version_of_its_group_has_it(server: FakeApiServer) -> None:
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with running(server) as (beside, _):
        beside.watch_kind_of(reference())
        await until(lambda: beside.get_object(reference()))


async def test_a_kind_is_followed_into_the_version_that_is_served_next(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by an operator's upgrade that serves the older one no longer, or by that of a tenant's Kubernetes."""
    monkeypatch.setattr(module, "_RETRY", 0.05)
    later = Resource("apis/scheduling.volcano.sh/v1beta2", "podgroups", "PodGroup")
    server.register(PODGROUPS)
    for name in ("train", "goes"):
        server.store.create(PODGROUPS, {**GROUP, "metadata": {"name": name}})
    async with running(server) as (beside, changed):
        beside.watch_kind_of(reference())
        await until(lambda: len(changed) == 2)
        known = beside.get_object(reference())
        assert known is not None
        same = {key: known["metadata"][key] for key in ("uid", "resourceVersion")}

        server.unregister(PODGROUPS)
        await until(lambda: not beside.is_complete)
        assert beside.get_object(reference()), "what is known holds until there is something newer"
        server.store.create(later, {**GROUP, "metadata": {"name": "comes"}})
        server.store.create(later, {**GROUP, "spec": {"minMember": 5}})
        server.store.objects[later]["default", "train"]["metadata"].update(same)
        server.register(later)
        await until(lambda: beside.is_complete)

        found = beside.get_object(reference())
        assert found is not None
        assert found["spec"] == {"minMember": 5}
        assert beside.get_object(reference("goes")) is None
        assert beside.get_object(reference("comes"))
        assert {each.name for each in changed[2:]} == {"train", "goes", "comes"}


async def test_a_server_that_is_away_for_a_while_is_followed_in_the_same_version(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.05)
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with running(server) as (beside, changed):
        beside.watch_kind_of(reference())
        await until(lambda: beside.is_complete)
        server.fail("GET", "/apis", status=503, times=20)
        server.end_watches()
        await until(lambda: not beside.is_complete)
        server.heal()
        await until(lambda: beside.is_complete)
        assert changed == [reference()]
        times = asked(server, "/apis/scheduling.volcano.sh")
        await asyncio.sleep(0.2)
        assert asked(server, "/apis/scheduling.volcano.sh") == times


async def test_a_kind_that_no_version_has_is_not_watched(server: FakeApiServer) -> None:
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    async with running(server) as (beside, _):
        beside.watch_kind_of(reference())
        await until(lambda: asked(server, "/apis/scheduling.volcano.sh/v1"))
        await asyncio.sleep(0.05)
    assert server.watches == 0


async def test_one_unknown_kind_does_not_keep_others_waiting(server: FakeApiServer) -> None:
    server.register(RAY_CLUSTERS)
    async with running(server) as (beside, _):
        beside.watch_kind_of(reference())
        await until(lambda: server.requests)
        beside.watch_kind_of(RAY)
        await until(lambda: server.watches == 1)


@pytest.mark.parametrize("answer", [b"no json", b'{"preferredVersion": 7}', b"{}"])
async def test_a_server_that_answers_nonsense_of_a_kind_is_asked_again(answer: bytes) -> None:
    class Nonsense:
        def __init__(self) -> None:
            self.asked = 0

        name = "alpha"

        async def request(self, *_args: Any, **_options: Any) -> bytes:
            self.asked += 1
            return answer

        async def get(self, *_args: Any, **_options: Any) -> bytes:
            return answer

    client = Nonsense()
    beside = CompanionObjects("alpha", client, changed=lambda _reference: None)  # type: ignore[arg-type]
    async with in_background(beside.run()):
        beside.watch_kind_of(reference())
        await until(lambda: client.asked)
        await asyncio.sleep(0.02)


# -- whether a kind is served ------------------------------------------------------------------------------------------


async def test_a_kind_that_is_neither_in_discovery_nor_defined_is_not_served(server: FakeApiServer) -> None:
    server.register(RAY_CLUSTERS)
    async with running(server) as (beside, _):
        assert await beside.find_unserved([reference().object_kind, RAY.object_kind]) == {reference().object_kind}


async def test_a_kind_that_no_version_of_its_group_has_is_not_served(server: FakeApiServer) -> None:
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    async with running(server) as (beside, _):
        assert await beside.find_unserved([reference().object_kind]) == {reference().object_kind}


async def test_a_kind_that_was_installed_a_moment_ago_is_served(server: FakeApiServer) -> None:
    """What was heard before does not count: the pod that refers to it is younger."""
    async with running(server) as (beside, _):
        assert await beside.find_unserved([reference().object_kind]) == {reference().object_kind}
        server.register(PODGROUPS)
        assert await beside.find_unserved([reference().object_kind]) == frozenset()


async def test_a_kind_that_is_defined_and_not_in_discovery_yet_counts_as_served(server: FakeApiServer) -> None:
    server.store.create(CRDS, CRD)
    async with running(server) as (beside, _):
        assert await beside.find_unserved([reference().object_kind]) == frozenset()


@pytest.mark.parametrize(
    ("path", "status", "reason"),
    [
        ("/apis/scheduling.volcano.sh", 503, ""),
        ("/apis/scheduling.volcano.sh", 500, ""),
        ("/apis/scheduling.volcano.sh", 429, ""),
        ("/apis/scheduling.volcano.sh", 401, ""),
        ("/apis/scheduling.volcano.sh", 403, "Forbidden"),
        ("/apis/scheduling.volcano.sh", 0, ""),
        ("/apis/scheduling.volcano.sh/v1", 404, "NotFound"),
        ("/customresourcedefinitions/", 503, ""),
        ("/customresourcedefinitions/", 403, "Forbidden"),
        ("/customresourcedefinitions/", 0, ""),
        ("", 404, ""),
    ],
    ids=lambda value: str(value) or "-",
)
async def test_a_server_that_fails_serves_every_kind_for_all_that_is_known(
    server: FakeApiServer, path: str, status: int, reason: str
) -> None:
    """The last: a proxy before a server that is away answers 404 to everything, and no API server's Status."""
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    server.fail("GET", path, status=status, reason=reason, times=100)
    async with running(server) as (beside, _):
        assert await beside.find_unserved([reference().object_kind]) == frozenset()
        server.heal()
        assert await beside.find_unserved([reference().object_kind]) == {reference().object_kind}


async def test_a_kind_that_is_watched_is_not_asked_for(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    async with running(server) as (beside, _):
        beside.watch_kind_of(reference())
        await until(lambda: beside.is_complete)
        server.requests.clear()
        assert await beside.find_unserved([reference().object_kind]) == frozenset()
        assert server.requests == []


async def test_it_is_told_once_that_a_wanted_kind_is_not_served_and_once_that_it_is(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.02)
    told: list[Kind] = []
    async with server.client() as client:
        beside = CompanionObjects("alpha", client, changed=lambda _reference: None, kind_changed=told.append)
        async with in_background(beside.run()):
            server.fail("GET", "/apis/scheduling.volcano.sh", status=503, times=3)
            beside.watch_kind_of(reference())
            await until(lambda: asked(server, "/apis/scheduling.volcano.sh") >= 6)
            assert told == [reference().object_kind]
            server.register(PODGROUPS)
            await until(lambda: len(told) > 1)
            await asyncio.sleep(0.1)
            assert told == [reference().object_kind] * 2


async def test_what_was_heard_for_one_pod_is_no_news_when_the_kind_is_wanted(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a pod that waits for such a kind is read once."""
    monkeypatch.setattr(module, "_RETRY", 0.02)
    told: list[Kind] = []
    async with server.client() as client:
        beside = CompanionObjects("alpha", client, changed=lambda _reference: None, kind_changed=told.append)
        async with in_background(beside.run()):
            await beside.find_unserved([reference().object_kind])
            assert told == [reference().object_kind]
            beside.watch_kind_of(reference())
            await until(lambda: asked(server, "/apis/scheduling.volcano.sh") >= 4)
            assert told == [reference().object_kind]


async def test_a_kind_that_could_not_be_told_is_told_of_even_if_it_was_before(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a pod that waits since the error would wait for ever."""
    monkeypatch.setattr(module, "_RETRY", 0.02)
    told: list[Kind] = []
    async with server.client() as client:
        beside = CompanionObjects("alpha", client, changed=lambda _reference: None, kind_changed=told.append)
        async with in_background(beside.run()):
            beside.watch_kind_of(reference())
            await until(lambda: told)
            server.fail("GET", "/apis/scheduling.volcano.sh", status=503, times=100)
            assert await beside.find_unserved([reference().object_kind]) == frozenset()
            server.heal()
            await until(lambda: len(told) == 2)


async def test_a_kind_whose_definition_is_deleted_is_not_served_any_more_until_it_is_back(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.02)
    told: list[Kind] = []
    server.register(PODGROUPS)
    async with server.client() as client:
        beside = CompanionObjects("alpha", client, changed=lambda _reference: None, kind_changed=told.append)
        async with in_background(beside.run()):
            beside.watch_kind_of(reference())
            await until(lambda: beside.is_complete)
            server.unregister(PODGROUPS)
            await until(lambda: told == [reference().object_kind])
            assert await beside.find_unserved([reference().object_kind]) == {reference().object_kind}
            server.register(PODGROUPS)
            await until(lambda: told == [reference().object_kind] * 2)
            assert await beside.find_unserved([reference().object_kind]) == frozenset()


@pytest.mark.parametrize("item", [b"5", b"[]", b"null", b'"x"', b'{"metadata": 5}', b'{"metadata": {"name": 5}}'])
def test_what_is_no_object_is_unreadable(item: bytes) -> None:
    """A tenant may have a server of its own answer for a kind."""
    with pytest.raises(msgspec.DecodeError):
        module.decode_companion(item)

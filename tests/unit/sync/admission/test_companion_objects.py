"""Companion objects of pods: watched once wanted, found when they appear, and reported when they change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.waiting import let_pass, wait_until
from tests.unit.background import in_background
from tests.unit.sync.admission.samples import make_reference
from tests.unit.sync.scopes import tenant_scope
from vkgateway.kube.resources import CRDS, Resource
from vkgateway.scheduler.gangs import Kind, Reference
from vkgateway.scheduler.service import companion_objects as module
from vkgateway.scheduler.service.companion_objects import COMPANION_KINDS, COMPANIONS, CompanionObjects

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
async def run_objects(server: FakeApiServer) -> AsyncIterator[tuple[CompanionObjects, list[Reference]]]:
    changed: list[Reference] = []
    async with server.client() as client:
        scope = tenant_scope(client)
        scope.watches.add(COMPANIONS, changed.append)
        companions = CompanionObjects(scope)
        async with in_background(companions.run()):
            yield companions, changed


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


def count_requests(server: FakeApiServer, path: str) -> int:
    return sum(1 for request in server.requests if request == f"GET {path}")


async def test_existing_object_is_found(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with run_objects(server) as (companions, changed):
        assert companions.get_object(make_reference()) is None
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: companions.get_object(make_reference()))
        found = companions.get_object(make_reference())
        assert found is not None
        assert found["spec"] == {"minMember": 4}
        assert changed == [make_reference()]
        assert companions.get_object(make_reference("another")) is None


async def test_complete_once_each_kind_was_listed_or_is_not_served(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with run_objects(server) as (companions, changed):
        complete = [companions.is_complete]
        for wanted in (make_reference(), Reference("ray.io", "RayCluster", "rayclusters", "default", "ray")):
            companions.watch_kind_of(wanted)
            complete.append(companions.is_complete)
            await wait_until(lambda: companions.is_complete)
        assert complete == [True, False, False]
        assert changed == [make_reference()]


async def test_server_gets_no_request_before_an_object_is_wanted(server: FakeApiServer) -> None:
    async with run_objects(server):
        await let_pass(0.05)
    assert server.requests == []


async def test_kind_is_watched_once_for_any_number_of_objects(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    async with run_objects(server) as (companions, _):
        for number in range(5):
            companions.watch_kind_of(make_reference(f"train-{number}"))
        await wait_until(lambda: server.watches)
        await let_pass(0.05)
        assert server.watches == 1
        assert count_requests(server, "/apis/scheduling.volcano.sh") == 1


async def test_added_changed_and_deleted_objects_are_reported(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    async with run_objects(server) as (companions, changed):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: server.watches)
        server.store.create(PODGROUPS, GROUP)
        await wait_until(lambda: len(changed) == 1)
        server.store.update(PODGROUPS, {**GROUP, "spec": {"minMember": 5}}, name="train", namespace="default")
        await wait_until(lambda: len(changed) == 2)
        found = companions.get_object(make_reference())
        assert found is not None
        assert found["spec"] == {"minMember": 5}
        server.store.delete(PODGROUPS, "train", "default")
        await wait_until(lambda: len(changed) == 3)
        assert companions.get_object(make_reference()) is None
        assert changed == [make_reference()] * 3


async def test_unknown_kind_is_requested_again(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.05)
    async with run_objects(server) as (companions, changed):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: count_requests(server, "/apis/scheduling.volcano.sh") >= 3)
        assert changed == []

        server.register(PODGROUPS)
        server.store.create(PODGROUPS, GROUP)
        await wait_until(lambda: companions.get_object(make_reference()))
        times = count_requests(server, "/apis/scheduling.volcano.sh")
        await let_pass(0.2)
        assert count_requests(server, "/apis/scheduling.volcano.sh") == times


async def test_kind_wanted_during_discovery_of_another_is_watched(server: FakeApiServer) -> None:
    for resource in (PODGROUPS, RAY_CLUSTERS):
        server.register(resource)
    gate = server.hold("GET", "/apis/scheduling.volcano.sh")
    async with run_objects(server) as (companions, _):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: server.requests)
        companions.watch_kind_of(RAY)
        gate.set()
        await wait_until(lambda: server.watches == 2)


async def test_kind_is_found_in_any_version_of_its_group(server: FakeApiServer) -> None:
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with run_objects(server) as (companions, _):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: companions.get_object(make_reference()))


async def test_kind_is_followed_to_the_next_served_version(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade of an operator or of the tenant's Kubernetes may drop the older version."""
    monkeypatch.setattr(module, "_RETRY", 0.05)
    later = Resource("apis/scheduling.volcano.sh/v1beta2", "podgroups", "PodGroup")
    server.register(PODGROUPS)
    for name in ("train", "goes"):
        server.store.create(PODGROUPS, {**GROUP, "metadata": {"name": name}})
    async with run_objects(server) as (companions, changed):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: len(changed) == 2)
        known = companions.get_object(make_reference())
        assert known is not None
        same = {key: known["metadata"][key] for key in ("uid", "resourceVersion")}

        server.unregister(PODGROUPS)
        await wait_until(lambda: not companions.is_complete)
        assert companions.get_object(make_reference()), "what is known holds until there is something newer"
        server.store.create(later, {**GROUP, "metadata": {"name": "comes"}})
        server.store.create(later, {**GROUP, "spec": {"minMember": 5}})
        server.store.objects[later]["default", "train"]["metadata"].update(same)
        server.register(later)
        await wait_until(lambda: companions.is_complete)

        found = companions.get_object(make_reference())
        assert found is not None
        assert found["spec"] == {"minMember": 5}
        assert companions.get_object(make_reference("goes")) is None
        assert companions.get_object(make_reference("comes"))
        assert {each.name for each in changed[2:]} == {"train", "goes", "comes"}


async def test_version_is_retained_after_a_server_outage(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.05)
    server.register(PODGROUPS)
    server.store.create(PODGROUPS, GROUP)
    async with run_objects(server) as (companions, changed):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: companions.is_complete)
        server.fail("GET", "/apis", status=503, times=20)
        server.end_watches()
        await wait_until(lambda: not companions.is_complete)
        server.heal()
        await wait_until(lambda: companions.is_complete)
        assert changed == [make_reference()]
        times = count_requests(server, "/apis/scheduling.volcano.sh")
        await let_pass(0.2)
        assert count_requests(server, "/apis/scheduling.volcano.sh") == times


async def test_kind_without_served_version_is_not_watched(server: FakeApiServer) -> None:
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    async with run_objects(server) as (companions, _):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: count_requests(server, "/apis/scheduling.volcano.sh/v1"))
        await let_pass(0.05)
    assert server.watches == 0


async def test_unknown_kind_does_not_delay_others(server: FakeApiServer) -> None:
    server.register(RAY_CLUSTERS)
    async with run_objects(server) as (companions, _):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: server.requests)
        companions.watch_kind_of(RAY)
        await wait_until(lambda: server.watches == 1)


@pytest.mark.parametrize("answer", [b"no json", b'{"preferredVersion": 7}', b"{}"])
async def test_kind_is_requested_again_after_an_invalid_answer(answer: bytes) -> None:
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
    companions = CompanionObjects(tenant_scope(client))  # type: ignore[arg-type]
    async with in_background(companions.run()):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: client.asked)
        await wait_until(lambda: client.asked > 0)
        await let_pass(0.02)


# -- whether a kind is served ------------------------------------------------------------------------------------------


async def test_kind_without_discovery_and_definition_is_not_served(server: FakeApiServer) -> None:
    server.register(RAY_CLUSTERS)
    async with run_objects(server) as (companions, _):
        assert await companions.find_unserved([make_reference().object_kind, RAY.object_kind]) == {
            make_reference().object_kind
        }


async def test_kind_without_version_in_its_group_is_not_served(server: FakeApiServer) -> None:
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    async with run_objects(server) as (companions, _):
        assert await companions.find_unserved([make_reference().object_kind]) == {make_reference().object_kind}


async def test_just_installed_kind_is_served(server: FakeApiServer) -> None:
    """Earlier discovery results do not count, because the pod that refers to the kind is newer."""
    async with run_objects(server) as (companions, _):
        assert await companions.find_unserved([make_reference().object_kind]) == {make_reference().object_kind}
        server.register(PODGROUPS)
        assert await companions.find_unserved([make_reference().object_kind]) == frozenset()


async def test_defined_kind_missing_in_discovery_counts_as_served(server: FakeApiServer) -> None:
    server.store.create(CRDS, CRD)
    async with run_objects(server) as (companions, _):
        assert await companions.find_unserved([make_reference().object_kind]) == frozenset()


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
async def test_failing_server_counts_as_serving_every_kind(
    server: FakeApiServer, path: str, status: int, reason: str
) -> None:
    """In the last case, a proxy in front of a stopped server answers 404 without a Status object."""
    server.register(Resource("apis/scheduling.volcano.sh/v1", "queues", "Queue"))
    server.fail("GET", path, status=status, reason=reason, times=100)
    async with run_objects(server) as (companions, _):
        assert await companions.find_unserved([make_reference().object_kind]) == frozenset()
        server.heal()
        assert await companions.find_unserved([make_reference().object_kind]) == {make_reference().object_kind}


async def test_watched_kind_is_not_requested(server: FakeApiServer) -> None:
    server.register(PODGROUPS)
    async with run_objects(server) as (companions, _):
        companions.watch_kind_of(make_reference())
        await wait_until(lambda: companions.is_complete)
        server.requests.clear()
        assert await companions.find_unserved([make_reference().object_kind]) == frozenset()
        assert server.requests == []


async def test_change_of_serving_is_reported_once(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.02)
    changes: list[Kind] = []
    async with server.client() as client:
        scope = tenant_scope(client)
        scope.watches.add(COMPANION_KINDS, changes.append)
        companions = CompanionObjects(scope)
        async with in_background(companions.run()):
            server.fail("GET", "/apis/scheduling.volcano.sh", status=503, times=3)
            companions.watch_kind_of(make_reference())
            await wait_until(lambda: count_requests(server, "/apis/scheduling.volcano.sh") >= 6)
            assert changes == [make_reference().object_kind]
            server.register(PODGROUPS)
            await wait_until(lambda: len(changes) > 1)
            await let_pass(0.1)
            assert changes == [make_reference().object_kind] * 2


async def test_lookup_for_one_pod_is_not_reported_as_a_change(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod that waits for such a kind is read only once."""
    monkeypatch.setattr(module, "_RETRY", 0.02)
    changes: list[Kind] = []
    async with server.client() as client:
        scope = tenant_scope(client)
        scope.watches.add(COMPANION_KINDS, changes.append)
        companions = CompanionObjects(scope)
        async with in_background(companions.run()):
            await companions.find_unserved([make_reference().object_kind])
            assert changes == [make_reference().object_kind]
            companions.watch_kind_of(make_reference())
            await wait_until(lambda: count_requests(server, "/apis/scheduling.volcano.sh") >= 4)
            assert changes == [make_reference().object_kind]


async def test_kind_with_unknown_state_is_reported_again(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a pod that waits because of the error would wait forever."""
    monkeypatch.setattr(module, "_RETRY", 0.02)
    changes: list[Kind] = []
    async with server.client() as client:
        scope = tenant_scope(client)
        scope.watches.add(COMPANION_KINDS, changes.append)
        companions = CompanionObjects(scope)
        async with in_background(companions.run()):
            companions.watch_kind_of(make_reference())
            await wait_until(lambda: changes)
            server.fail("GET", "/apis/scheduling.volcano.sh", status=503, times=100)
            assert await companions.find_unserved([make_reference().object_kind]) == frozenset()
            server.heal()
            await wait_until(lambda: len(changes) == 2)


async def test_kind_with_deleted_definition_is_not_served_until_restored(
    server: FakeApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.02)
    changes: list[Kind] = []
    server.register(PODGROUPS)
    async with server.client() as client:
        scope = tenant_scope(client)
        scope.watches.add(COMPANION_KINDS, changes.append)
        companions = CompanionObjects(scope)
        async with in_background(companions.run()):
            companions.watch_kind_of(make_reference())
            await wait_until(lambda: companions.is_complete)
            server.unregister(PODGROUPS)
            await wait_until(lambda: changes == [make_reference().object_kind])
            assert await companions.find_unserved([make_reference().object_kind]) == {make_reference().object_kind}
            server.register(PODGROUPS)
            await wait_until(lambda: changes == [make_reference().object_kind] * 2)
            assert await companions.find_unserved([make_reference().object_kind]) == frozenset()


@pytest.mark.parametrize("item", [b"5", b"[]", b"null", b'"x"', b'{"metadata": 5}', b'{"metadata": {"name": 5}}'])
def test_invalid_object_is_unreadable(item: bytes) -> None:
    """A tenant may run its own server for a kind."""
    with pytest.raises(msgspec.DecodeError):
        module.decode_companion(item)

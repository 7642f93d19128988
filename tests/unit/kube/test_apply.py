"""Server-side apply of documents of any kind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.clock import FakeClock
from vkgateway.api.errors import InputError
from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery, apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, CRDS, NAMESPACES, Resource

WIDGETS = Resource("apis/example.org/v1", "widgets", "Widget", namespaced=False)
CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Cluster",
        "names": {"plural": "widgets", "kind": "Widget"},
        "versions": [{"name": "v1"}],
    },
}
WIDGET = {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "w"}}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}}


async def test_namespaces_and_definitions_are_applied_first(server: FakeApiServer, client: Client) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}}
    server.store.namespaces_must_exist = True
    stored = await apply_objects(client, [WIDGET, CONFIG_MAP, CRD, namespace], namespace="n")
    assert len(stored) == 4
    assert server.store.get(NAMESPACES, "n")
    assert server.store.get(CRDS, "widgets.example.org")
    assert server.store.get(WIDGETS, "w")
    assert server.store.get(CONFIG_MAPS, "c", "n")
    assert "PATCH /api/v1/namespaces/n/configmaps/c?fieldManager=vkgateway&force=true" in server.requests


async def test_apply_is_idempotent(server: FakeApiServer, client: Client) -> None:
    await apply_objects(client, [CONFIG_MAP])
    version = server.store.version
    await apply_objects(client, [CONFIG_MAP])
    assert server.store.version == version


async def test_apply_waits_until_definition_is_established(server: FakeApiServer, client: Client) -> None:
    class ServerClock(FakeClock):
        """Clock whose sleeps change the definition's status."""

        async def sleep(self, seconds: float) -> None:
            await super().sleep(seconds)
            if len(self.sleeps) == 1:  # a real server shows this status briefly
                server.store.update(CRDS, CRD | {"status": {"conditions": None}}, name="widgets.example.org")
            if len(self.sleeps) == 3:
                established = {"conditions": [{"type": "Established", "status": "True"}]}
                server.store.update(CRDS, CRD | {"status": established}, name="widgets.example.org", status=True)

    clock = ServerClock()

    server._define = lambda document: None  # type: ignore[method-assign]
    await apply_objects(client, [CRD], clock=clock)
    assert len(clock.sleeps) == 3


async def test_definition_not_established_in_time_is_an_error(server: FakeApiServer, client: Client) -> None:
    clock = FakeClock()
    server._define = lambda document: None  # type: ignore[method-assign]
    with pytest.raises(errors.ServerError, match=r"widgets\.example\.org at fake is not established"):
        await apply_objects(client, [CRD], timeout=5, clock=clock)
    assert clock.seconds >= 5 - 1e-6


async def test_unknown_kind_is_named(client: Client) -> None:
    with pytest.raises(errors.NotFound):
        await apply_objects(client, [WIDGET])
    other = WIDGET | {"apiVersion": "v1"}
    with pytest.raises(errors.NotFound, match="fake has no kind Widget in v1"):
        await apply_objects(client, [other])


@pytest.mark.parametrize("doc", [{}, {"kind": "X", "apiVersion": "v1"}, {"kind": "X", "metadata": {"name": "a"}}])
async def test_invalid_document_is_refused(client: Client, doc: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="needs apiVersion, kind and"):
        await apply_objects(client, [doc])


async def test_discovery_caches_resources(server: FakeApiServer, client: Client) -> None:
    server.register(WIDGETS)
    discovery = Discovery(client)
    for _ in range(2):
        assert await discovery.get_resource("example.org/v1", "Widget") == WIDGETS
    assert await discovery.get_resource("v1", "ConfigMap") == CONFIG_MAPS
    assert server.requests == ["GET /apis/example.org/v1"]

"""Tests of the gateway's CustomResourceDefinitions."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CRDS, NAMESPACES
from vkgateway.serve import definitions, startup
from vkgateway.serve.definitions import VERSION_ANNOTATION, DefinitionsError
from vkgateway.serve.health import HealthServer
from vkgateway.settings.config import ManagementCluster

Document = dict[str, Any]
_DIGESTS = {
    "computeclusters.vkgateway.io": (6, "70dc3ec0ddd50faa"),
    "tenants.vkgateway.io": (6, "2113c0488887ed8c"),
}


def test_changed_definition_gets_new_version() -> None:
    """Otherwise a gateway would accept older definitions. After a change, increase the annotation and this table."""
    found = {}
    for definition in definitions.load_definitions():
        text = msgspec.json.encode(definition["spec"], order="deterministic")
        version = definitions.definition_version(definition)
        found[definition["metadata"]["name"]] = (version, hashlib.sha256(text).hexdigest()[:16])
    assert found == _DIGESTS


def _installed(*, version: str | None = None, remove: str = "") -> list[Document]:
    """Return the definitions as an API server stores them, with another version and without a part of the spec."""
    found = copy.deepcopy(definitions.load_definitions())
    for definition in found:
        definition["spec"]["conversion"] = {"strategy": "None"}
        definition["spec"].pop(remove, None)
        if version is not None:
            definition["metadata"]["annotations"] = {VERSION_ANNOTATION: version} if version else {}
    return found


async def _check(client: Client, server: FakeApiServer, installed: list[Document]) -> str:
    for definition in installed:
        server.store.create(CRDS, definition)
    return await definitions.check_definitions(client)


async def test_installed_definitions_of_same_release_are_accepted(server: FakeApiServer, client: Client) -> None:
    assert await _check(client, server, _installed()) == ""
    assert not [request for request in server.requests if not request.startswith("GET")]


async def test_missing_definition_is_reported(server: FakeApiServer, client: Client) -> None:
    with pytest.raises(DefinitionsError, match=r"computeclusters\.vkgateway\.io is missing\. .*helm upgrade"):
        await _check(client, server, [])


@pytest.mark.parametrize("version", ["", "0", "latest"])
async def test_older_definition_is_reported(server: FakeApiServer, client: Client, version: str) -> None:
    with pytest.raises(DefinitionsError, match=r"version 0 and is older than the gateway.*helm upgrade"):
        await _check(client, server, _installed(version=version))


async def test_newer_and_changed_definitions_are_noticed(server: FakeApiServer, client: Client) -> None:
    text = await _check(client, server, _installed(version="99"))
    assert "tenants.vkgateway.io has version 99 and is newer than the gateway's chart" in text
    assert "helm upgrade" in text


async def test_changed_definition_is_noticed(server: FakeApiServer, client: Client) -> None:
    assert "tenants.vkgateway.io was changed" in await _check(client, server, _installed(remove="names"))


async def test_gateway_without_installation_changes_no_definition() -> None:
    async with FakeApiServer(rights=Rights.of_management()) as server, server.client() as client:
        for definition in _installed(version="99"):
            server.store.create(CRDS, definition)
        server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        health = HealthServer(address="127.0.0.1", port=0, checks={})
        settings = ManagementCluster(install_definitions=False)
        await startup.prepare_management_cluster(settings, client, health)
        assert not [request for request in server.requests if "PATCH /apis/apiextensions" in request]
    reply = health._readyz_reply()
    assert reply.status == 200
    assert b"[+]definitions ok: CustomResourceDefinition computeclusters.vkgateway.io has version 99" in reply.body

"""The client: encoded requests and errors."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.support.machine import patience
from vkgateway.api.errors import InputError
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS, KNOWN_RESOURCES, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Resource

POD: dict[str, Any] = {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": []}}


def _load(body: bytes) -> Any:
    return json.loads(body)


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (PODS, (), "/api/v1/pods"),
        (PODS, ("n",), "/api/v1/namespaces/n/pods"),
        (PODS, ("n", "a"), "/api/v1/namespaces/n/pods/a"),
        (PODS, ("n", "a", "status"), "/api/v1/namespaces/n/pods/a/status"),
        (NODES, (None, "x"), "/api/v1/nodes/x"),
        (NODES, ("ignored", "x"), "/api/v1/nodes/x"),
        (NAMESPACES, (None, "n", "status"), "/api/v1/namespaces/n/status"),
        (Resource("apis/g/v1", "things", "Thing"), ("n", "a:b/c?d"), "/apis/g/v1/namespaces/n/things/a:b%2Fc%3Fd"),
    ],
)
def test_resource_path(resource: Resource, arguments: tuple[str | None, ...], path: str) -> None:
    assert resource.path(*arguments) == path


def test_path_of_one_object_needs_its_name() -> None:
    with pytest.raises(InputError, match="the name of a Pod is empty"):
        PODS.path("n", "")


def test_every_known_resource_is_found_by_version_and_kind() -> None:
    for (api_version, kind), resource in KNOWN_RESOURCES.items():
        assert (resource.api_version, resource.kind) == (api_version, kind)


async def test_object_is_created_replaced_and_deleted(server: FakeApiServer, client: Client) -> None:
    created = _load(await client.create(PODS, POD, namespace="n"))
    assert created["metadata"]["namespace"] == "n"
    assert _load(await client.get(PODS, "a", namespace="n")) == created
    created["metadata"]["labels"] = {"x": "y"}
    replaced = _load(await client.replace(PODS, "a", created, namespace="n"))
    assert replaced["metadata"]["labels"] == {"x": "y"}
    status = {"status": {"phase": "Running"}}
    patched = _load(await client.patch(PODS, "a", status, namespace="n", subresource="status"))
    assert patched["status"]["phase"] == "Running"
    await client.delete(PODS, "a", namespace="n", uid=created["metadata"]["uid"], grace_period_seconds=0)
    with pytest.raises(errors.NotFound):
        await client.get(PODS, "a", namespace="n")


async def test_deletion_precondition_protects_successor(server: FakeApiServer, client: Client) -> None:
    server.store.create(CONFIG_MAPS, {"metadata": {"name": "a"}})
    with pytest.raises(errors.Conflict):
        await client.delete(CONFIG_MAPS, "a", namespace="default", uid="another")
    with pytest.raises(errors.Conflict):
        await client.delete(CONFIG_MAPS, "a", namespace="default", resource_version="1")
    assert server.store.find(CONFIG_MAPS, "a", "default")


async def test_patch_types(server: FakeApiServer, client: Client) -> None:
    server.store.create(CONFIG_MAPS, {"metadata": {"name": "a"}, "data": {"x": "1", "y": "2"}})

    async def patched(body: object, **how: Any) -> Any:
        return _load(await client.patch(CONFIG_MAPS, "a", body, namespace="default", **how))["data"]

    assert await patched({"data": {"x": None}}) == {"y": "2"}
    assert await patched({"data": {"x": "3"}}, kind="strategic") == {"x": "3", "y": "2"}
    assert await patched([{"op": "remove", "path": "/data/y"}], kind="json") == {"x": "3"}
    applied = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"z": "4"}}
    assert await patched(applied, kind="apply", field_manager="me", force=False) == {"x": "3", "z": "4"}
    assert server.requests[-1].endswith("?fieldManager=me&force=false")
    assert server.user_agents == {next(agent for agent in server.user_agents if agent.startswith("vkgateway/"))}


async def test_encoded_bytes_are_sent_unchanged(server: FakeApiServer, client: Client) -> None:
    await client.create(CONFIG_MAPS, b'{"metadata": {"name": "a"}, "data": {"k": "v"}}', namespace="default")
    stored = server.store.get(CONFIG_MAPS, "a", "default")
    assert stored["data"] == {"k": "v"}


async def test_subresource_of_named_object_is_created(server: FakeApiServer, client: Client) -> None:
    server.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": "sa"}})
    answer = await client.create(SERVICE_ACCOUNTS, {"spec": {}}, namespace="default", name="sa", subresource="token")
    assert _load(answer)["status"]["token"].startswith("token.default.sa")


async def test_pages_contain_every_object_once(server: FakeApiServer, client: Client) -> None:
    for number in range(7):
        server.store.create(CONFIG_MAPS, {"metadata": {"name": f"c{number}", "labels": {"odd": str(number % 2)}}})
    pages = [page async for page in client.list_pages(CONFIG_MAPS, limit=3)]
    assert [len(page.items) for page in pages] == [3, 3, 1]
    names = [_load(bytes(item))["metadata"]["name"] for page in pages for item in page.items]
    assert names == [f"c{number}" for number in range(7)]
    odd = [page async for page in client.list_pages(CONFIG_MAPS, label_selector="odd=1", namespace="default")]
    assert [len(page.items) for page in odd] == [3]
    assert len((await client.list_all(CONFIG_MAPS, field_selector="metadata.name=c2")).items) == 1


async def test_refusals_have_type_and_description(server: FakeApiServer, client: Client) -> None:
    server.fail("GET", "/pods", status=429, reason="TooManyRequests", retry_after=3)
    with pytest.raises(errors.TooManyRequests, match="GET /api/v1/namespaces/n/pods/a at fake") as caught:
        await client.get(PODS, "a", namespace="n")
    assert caught.value.retry_after == 3


async def test_lost_connection_is_unreachable(server: FakeApiServer, client: Client) -> None:
    server.fail("POST", "/pods", status=0)
    with pytest.raises(errors.Unreachable, match="at fake"):
        await client.create(PODS, POD, namespace="n")


async def test_silent_server_is_unreachable(server: FakeApiServer, client: Client) -> None:
    gate = server.hold("GET", "/pods")
    with pytest.raises(errors.Unreachable, match="no answer in time"):
        await client.get(PODS, "a", namespace="n", timeout=0.05)
    gate.set()


async def test_closed_port_is_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with Client(f"http://127.0.0.1:{taken.getsockname()[1]}", name="nobody") as client:
            with pytest.raises(errors.Unreachable, match="nobody"):
                await client.get(PODS, "a", namespace="n")


async def test_response_other_than_list_is_a_server_error(server: FakeApiServer, client: Client) -> None:
    with pytest.raises(errors.ServerError, match="not a list"):
        [page async for page in client.list_pages(Resource("version", "", "Version"))]


async def test_closed_client_refuses_requests(server: FakeApiServer) -> None:
    client = server.client()
    await client.request("GET", "/version")
    await client.close()
    with pytest.raises(errors.Unreachable, match="closed"):
        await client.request("GET", "/version")
    await client.close()


async def test_token_is_read_for_each_request(server: FakeApiServer) -> None:
    server.token = "second"
    tokens = iter(["first", "second", "second"])

    async def token() -> str:
        return next(tokens)

    async with Client(server.url, token=token) as client:
        with pytest.raises(errors.Unauthorized):
            await client.request("GET", "/version")
        await client.request("GET", "/version")
        assert await client.authorization_headers() == {"Authorization": "Bearer second"}


async def test_stream_returns_bytes_immediately(server: FakeApiServer, client: Client) -> None:
    async with client.open_watch("/api/v1/pods", {"watch": True}) as stream:
        server.store.create(PODS, POD)
        assert (await stream.read()).startswith(b'{"type":"ADDED"')
    server.fail("GET", "/pods", status=403)
    with pytest.raises(errors.Forbidden):
        async with client.open_watch("/api/v1/pods"):
            pass


async def test_silent_stream_is_unreachable(server: FakeApiServer, client: Client) -> None:
    async with client.open_watch("/api/v1/pods", {"watch": True}, inactivity=patience(0.5)) as stream:
        with pytest.raises(TimeoutError, match="no byte"):
            await stream.read()


async def test_path_prefix_of_server_is_kept(server: FakeApiServer) -> None:
    async with Client(server.url + "/k8s/clusters/c/") as client:
        with pytest.raises(errors.NotFound):
            await client.get(PODS, "a", namespace="n")
    assert server.requests == ["GET /k8s/clusters/c/api/v1/namespaces/n/pods/a"]


@pytest.mark.parametrize("server", ["", "nonsense", "ftp://x", "https://", "https://a..b", f"https://{'a' * 64}.b"])
def test_invalid_server_url_is_refused(server: str) -> None:
    with pytest.raises(InputError, match="not the URL"):
        Client(server)


async def test_page_of_large_objects_is_split_at_size_limit(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        body = {"metadata": {"name": f"c{number:02}"}, "data": {"x": "y" * 1000}}
        await client.create(CONFIG_MAPS, body, namespace="n")
    monkeypatch.setattr("vkgateway.kube.responses.MAX_BODY_BYTES", 5_000)

    names = [
        _load(bytes(item))["metadata"]["name"]
        async for page in client.list_pages(CONFIG_MAPS, limit=16)
        for item in page.items
    ]
    assert names == [f"c{number:02}" for number in range(20)]

    with pytest.raises(errors.ResponseTooLarge, match="longer than 5000 bytes"):
        await client.list_all(CONFIG_MAPS)


async def test_watch_opened_during_close_is_closed(server: FakeApiServer) -> None:
    async def token() -> str:
        await client.close()
        return "secret"

    client = Client(server.url, token=token)
    with pytest.raises(errors.Unreachable, match="is closed"):
        async with client.open_watch(PODS.path(), {"watch": True}):
            pass


async def test_missing_credentials_are_unreachable(server: FakeApiServer) -> None:
    async def token() -> str:
        raise InputError("the plugin failed", hint="log in")

    async with Client(server.url, token=token, name="alpha") as client:
        for asking in (client.request("GET", "/version"), client.authorization_headers()):
            with pytest.raises(errors.Unreachable, match="no credentials for alpha: the plugin failed") as caught:
                await asking
            assert caught.value.hint == "log in"


async def test_dry_run_stores_nothing(server: FakeApiServer, client: Client) -> None:
    tried = _load(await client.create(PODS, POD, namespace="n", dry_run=True))
    assert tried["metadata"]["name"] == "a"
    assert server.store.find(PODS, "a", "n") is None
    await client.create(PODS, POD, namespace="n")
    label = {"metadata": {"labels": {"x": "y"}}}
    tried = _load(await client.patch(PODS, "a", label, namespace="n", dry_run=True))
    assert tried["metadata"]["labels"] == {"x": "y"}
    assert "labels" not in server.store.get(PODS, "a", "n")["metadata"]

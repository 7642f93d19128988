"""Authentication at the kubelet endpoint, and its small replies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import Awaitable, Callable

import pytest

from tests.support.machine import patience
from tests.unit.kubelet.conftest import Endpoint
from vkgateway.api.errors import UnavailableError
from vkgateway.kube.tls import client_context
from vkgateway.nodes.identity import CN_PREFIX, certificate_fingerprint
from vkgateway.nodes.server import KubeletServer
from vkgateway.planes.pki import Authority

Make = Callable[..., Awaitable[Endpoint]]


async def test_healthz_on_kept_alive_connection(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    for _ in range(3):
        status, headers, body = await caller.request("GET", "/healthz")
        assert (status, body) == (200, b"ok")
        assert "connection" not in headers


async def test_client_without_certificate_is_refused(endpoint: Endpoint) -> None:
    async def get_health() -> int:
        caller = await endpoint.connect(client_context(ca=endpoint.authority.cert_pem))
        return (await caller.request("GET", "/healthz"))[0]

    assert await get_health() == 401


async def test_certificate_of_another_authority_is_refused(endpoint: Endpoint) -> None:
    keys = Authority.create("another").issue(f"{CN_PREFIX}alpha", client=True)
    caller = await endpoint.call(keys=keys)
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await caller.request("GET", "/healthz")


@pytest.mark.parametrize("cn", ["alpha", "vkgateway:tenant:", "vkgateway:tenant:../alpha", "vkgateway:tenant:A"])
async def test_certificate_without_tenant_is_refused(endpoint: Endpoint, cn: str) -> None:
    caller = await endpoint.call(keys=endpoint.issue(cn))
    status, headers, body = await caller.request("GET", "/healthz")
    assert (status, body) == (403, b"the client certificate names no tenant\n")
    assert headers["connection"] == "close"


async def test_tenant_not_admitted_is_refused(endpoint: Endpoint) -> None:
    caller = await endpoint.call("beta")
    status, _, body = await caller.request("GET", "/healthz")
    assert (status, body) == (403, b"tenant beta is not served here\n")


async def test_revocation_closes_and_refuses_connections(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    await caller.request("GET", "/healthz")
    endpoint.server.revoke_tenant("alpha")
    assert await caller.reader.read() == b""
    again = await endpoint.call()
    assert (await again.request("GET", "/healthz"))[0] == 403


async def test_tenant_revoked_before_first_request_is_refused(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    await asyncio.gather(*(connection.stream.wait_opened() for connection in endpoint.server._connections))
    endpoint.server.revoke_tenant("alpha")
    with contextlib.suppress(ConnectionResetError):
        assert await caller.reader.read() == b""


async def test_only_admitted_certificates_are_accepted(endpoint: Endpoint) -> None:
    old, new = endpoint.issue(f"{CN_PREFIX}alpha"), endpoint.issue(f"{CN_PREFIX}alpha")
    endpoint.server.admit_tenant(
        "alpha", fingerprints=[certificate_fingerprint(ssl.PEM_cert_to_DER_cert(new.cert_pem.decode()))]
    )
    assert (await (await endpoint.call(keys=new)).request("GET", "/healthz"))[0] == 200
    status, _, body = await (await endpoint.call(keys=old)).request("GET", "/healthz")
    assert (status, body) == (403, b"the client certificate of tenant alpha was replaced\n")


@pytest.mark.parametrize(
    ("method", "target", "status", "says"),
    [
        ("GET", "/", 404, b"does not serve '/'"),
        ("GET", "/metrics/slis", 404, b"'/metrics/slis'"),
        ("GET", "/stats", 404, b"does not serve"),
        ("GET", "/stats/summary/more", 404, b"does not serve"),
        ("POST", "/stats/summary", 405, b"only GET"),
        ("GET", "/containerLogs/default/web", 404, b"does not serve"),
        ("POST", "/containerLogs/default/web/main", 405, b"only GET"),
        ("GET", "/containerLogs/default/../main", 400, b"pod '.."),
        ("GET", "/containerLogs/a%2Fb/web/main", 400, b"namespace 'a/b'"),
        ("GET", "/containerLogs/default/web/ma%20in", 400, b"container 'ma in'"),
        ("GET", "/containerLogs/default/%ff/main", 400, b"URL cannot be read"),
        ("GET", "/exec/default/web/main?command=a&output=1", 400, b"needs an upgrade"),
        ("DELETE", "/exec/default/web/main", 405, b"only GET and POST"),
    ],
)
async def test_unknown_path_is_refused(endpoint: Endpoint, method: str, target: str, status: int, says: bytes) -> None:
    caller = await endpoint.call()
    found, _, body = await caller.request(method, target)
    assert (found, says in body) == (status, True), body
    assert endpoint.compute.asked == []


async def test_malformed_request_gets_one_reply(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    caller.writer.write(b"nonsense\r\n\r\n")
    status, _, _ = await caller.answer()
    assert status == 400
    assert await caller.reader.read() == b""


async def test_too_long_head_is_refused(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    caller.writer.write(b"GET /exec/default/web/main?command=" + b"a" * 300_000)
    status, headers, _ = await caller.answer()
    assert (status, headers["connection"]) == (431, "close")
    assert endpoint.compute.asked == []


async def test_name_length_is_limited(endpoint: Endpoint) -> None:
    caller = await endpoint.call()
    assert (await caller.request("GET", f"/containerLogs/default/{'a' * 253}/main"))[0] != 400
    assert endpoint.compute.asked[0].path.endswith(f"/pods/{'a' * 253}/log")
    status, _, body = await (await endpoint.call()).request("GET", f"/containerLogs/default/{'a' * 254}/main")
    assert (status, b"is not a valid name of a pod" in body) == (400, True)


async def test_pods_are_those_of_the_tenant(make: Make) -> None:
    async def pods(tenant: str, node: str, phase: str) -> list[bytes]:
        assert node == ""
        phases = [phase] if phase else ["Running", "Pending"]
        return [json.dumps({"metadata": {"name": f"{tenant}-{phase}"}}).encode() for phase in phases]

    endpoint = await make(pod_lister=pods)
    caller = await endpoint.call()
    _, headers, body = await caller.request("GET", "/pods")
    assert headers["content-type"] == "application/json"
    assert [pod["metadata"]["name"] for pod in json.loads(body)["items"]] == ["alpha-Running", "alpha-Pending"]
    _, _, body = await caller.request("GET", "/runningpods/")
    assert [pod["metadata"]["name"] for pod in json.loads(body)["items"]] == ["alpha-Running"]


async def test_unread_replies_are_limited_per_tenant(make: Make) -> None:
    """A client that does not read its replies fills no memory. Others are served, and the client is served later."""

    async def pods(tenant: str, node: str, phase: str) -> list[bytes]:
        return [b'"' + b"x" * 16_000_000 + b'"']

    endpoint = await make(pod_lister=pods, memory_max=20_000_000)
    endpoint.server.admit_tenant("beta")
    slow, next_one, other = await endpoint.call(), await endpoint.call(), await endpoint.call("beta")
    slow.writer.write(b"GET /pods HTTP/1.1\r\nHost: node\r\n\r\n")
    assert (await slow.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    status, _, body = await next_one.request("GET", "/pods")
    assert (status, b"read the replies" in body) == (429, True)
    assert (await other.request("GET", "/pods"))[0] == 200

    slow.writer.transport.abort()
    again = await endpoint.call()
    async with asyncio.timeout(patience(20)):
        while (await again.request("GET", "/pods"))[0] == 429:
            again = await endpoint.call()


async def test_configz_contains_idle_timeout(make: Make) -> None:
    caller = await (await make(idle_timeout=60)).call()
    _, _, body = await caller.request("GET", "/configz")
    assert json.loads(body)["kubeletconfig"]["streamingConnectionIdleTimeout"] == "60s"


async def test_defect_in_one_request_does_not_affect_others(make: Make) -> None:
    async def pods(_tenant: str, _node: str, _phase: str) -> list[bytes]:
        raise RuntimeError("secret detail")

    caller = await (await make(pod_lister=pods)).call()
    status, _, body = await caller.request("GET", "/pods")
    assert status == 500
    assert b"secret" not in body
    assert (await caller.request("GET", "/healthz"))[0] == 200


async def test_unavailable_pod_list_is_an_error(make: Make) -> None:
    async def pods(_tenant: str, _node: str, _phase: str) -> list[bytes]:
        raise UnavailableError("the API server does not answer")

    caller = await (await make(pod_lister=pods)).call()
    status, _, body = await caller.request("GET", "/pods")
    assert (status, b"does not answer" in body) == (503, True)


async def test_port_in_use_is_named(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        second = KubeletServer(address="127.0.0.1", port=port, tls=context, pod_locator=endpoint.server._pod_locator)
        with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}"):
            await second.start()

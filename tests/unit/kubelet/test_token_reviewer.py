"""Clients with a token: the tenant's API server authenticates and authorizes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.fakes.clock import FakeClock
from tests.support.waiting import wait_until
from tests.unit.kubelet.compute import Asked, FakeCompute, Reader, Writer
from tests.unit.kubelet.conftest import Endpoint
from vkgateway.api.errors import NotFoundError
from vkgateway.kube.client import Client
from vkgateway.kube.tls import client_context
from vkgateway.nodes.token_reviewer import ALLOWED_CACHE_SECONDS, DENIED_CACHE_SECONDS, TokenReviewer

METRICS = "/tenants/alpha/nodes/a100.local/metrics/resource"


@dataclass
class Reviewer:
    """Fake API server of a tenant with tokens and permissions."""

    users: dict[str, str] = field(default_factory=dict)
    rights: set[tuple[str, str]] = field(default_factory=set)
    seen: list[dict[str, Any]] = field(default_factory=list)
    status: int = 201
    release: asyncio.Event | None = None
    """Reviews of invalid tokens wait for it."""

    async def __call__(self, asked: Asked, reader: Reader, writer: Writer) -> None:
        review = json.loads(await reader.readexactly(int(asked.headers["content-length"])))
        self.seen.append(review)
        spec = review["spec"]
        if review["kind"] == "TokenReview":
            name = self.users.get(spec["token"])
            if name is None and self.release is not None:
                await self.release.wait()
            status: dict[str, Any] = {"authenticated": name is not None}
            status |= {"user": {"username": name, "uid": "u", "groups": ["g"], "extra": {"k": ["v"]}}} if name else {}
        else:
            status = {"allowed": (spec["user"], spec["resourceAttributes"]["subresource"]) in self.rights}
        body = json.dumps({"kind": review["kind"], "status": status}).encode()
        head = f"HTTP/1.1 {self.status} Said\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()


@dataclass
class World:
    """Endpoint and the API servers of two tenants."""

    endpoint: Endpoint
    alpha: Reviewer
    beta: Reviewer
    clock: FakeClock
    reviewer: TokenReviewer

    async def request(self, path: str, token: str = "", method: str = "GET", **headers: str) -> tuple[int, bytes]:
        context = client_context(ca=self.endpoint.authority.cert_pem)
        caller = await self.endpoint.connect(context)
        all_headers = headers | ({"Authorization": f"Bearer {token}"} if token else {})
        status, _, body = await caller.request(method, path, **all_headers)
        return status, body


@pytest.fixture
async def world(make: Callable[..., Awaitable[Endpoint]]) -> AsyncIterator[World]:
    alpha = Reviewer({"good": "metrics-server", "weak": "somebody"}, {("metrics-server", "metrics")})
    beta, clock = Reviewer({"other": "metrics-server"}, {("metrics-server", "metrics")}), FakeClock()
    async with (
        FakeCompute(alpha) as first,
        FakeCompute(beta) as second,
        Client(first.server, name="alpha") as one,
        Client(second.server, name="beta") as two,
    ):
        clients = {"alpha": one, "beta": two}

        def reviewers(tenant: str) -> Client:
            if tenant not in clients:
                raise NotFoundError(tenant)
            return clients[tenant]

        reviewer = TokenReviewer(reviewers, clock=clock)
        yield World(await make(token_reviewer=reviewer), alpha, beta, clock, reviewer)


async def test_metrics_server_reads_metrics_with_service_account(world: World) -> None:
    status, body = await world.request(METRICS, "good")
    assert (status, b"node_memory_working_set_bytes" in body) == (200, True)
    token, access = world.alpha.seen
    assert (token["apiVersion"], token["spec"]) == ("authentication.k8s.io/v1", {"token": "good"})
    assert access["spec"] == {
        "user": "metrics-server",
        "uid": "u",
        "groups": ["g"],
        "extra": {"k": ["v"]},
        "resourceAttributes": {
            "verb": "get",
            "version": "v1",
            "resource": "nodes",
            "subresource": "metrics",
            "name": "a100.local",
        },
    }
    assert world.beta.seen == []


async def test_review_results_are_cached(world: World) -> None:
    await world.request(METRICS, "good")
    await world.request(METRICS, "good")
    assert len(world.alpha.seen) == 2
    world.alpha.users.clear()
    world.clock.seconds = ALLOWED_CACHE_SECONDS + 1
    assert (await world.request(METRICS, "good"))[0] == 401
    world.alpha.users["good"] = "metrics-server"
    assert (await world.request(METRICS, "good"))[0] == 401
    world.clock.seconds += DENIED_CACHE_SECONDS + 1
    assert (await world.request(METRICS, "good"))[0] == 200


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        (METRICS, "", 401),
        (METRICS, "unknown", 401),
        (METRICS, "other", 401),
        (METRICS, "x" * 20_000, 401),
        (METRICS, "weak", 403),
        ("/metrics/resource", "good", 401),
        ("/nodes/a100.local/metrics/resource", "good", 401),
        ("/tenants/beta/nodes/a100.local/metrics/resource", "other", 401),
        ("/tenants/ghost/nodes/a100.local/metrics/resource", "good", 401),
        ("/tenants/alpha/nodes/a100.local/stats/summary", "good", 403),
        ("/tenants/alpha/nodes/a100.local/pods", "good", 403),
        ("/tenants/alpha/containerLogs/default/web/main", "good", 403),
        ("/tenants/alpha/run/default/web/main?cmd=a", "good", 403),
        ("/tenants/alpha/admission/gate", "good", 403),
    ],
)
async def test_unauthorized_request_is_refused(world: World, path: str, token: str, status: int) -> None:
    """The tenant beta is not admitted: its API server gets no review."""
    assert (await world.request(path, token))[0] == status
    assert world.beta.seen == []
    assert world.endpoint.compute.asked == []


async def test_token_cannot_open_streams(world: World) -> None:
    world.alpha.rights |= {("metrics-server", "proxy"), ("metrics-server", "log")}
    for path in (
        "exec/default/web/main?command=a&output=1",
        "containerLogs/default/web/main",
        "portForward/default/web",
    ):
        assert (await world.request(f"/tenants/alpha/{path}", "good", Connection="Upgrade", Upgrade="SPDY/3.1"))[
            0
        ] == 403


async def test_proxy_permission_suffices_for_pods(world: World) -> None:
    world.alpha.rights.add(("metrics-server", "proxy"))
    assert (await world.request("/tenants/alpha/nodes/a100.local/pods", "good"))[0] == 200
    assert (await world.request("/tenants/alpha/nodes/a100.local/stats/summary", "good"))[0] == 403


async def test_token_path_overrides_proxy_header(world: World) -> None:
    uri = "/api/v1/nodes/b100.local/proxy/metrics/resource"
    assert (await world.request(METRICS, "good", X_Forwarded_Uri=uri))[0] == 200
    assert world.alpha.seen[-1]["spec"]["resourceAttributes"]["name"] == "a100.local"


async def test_forged_user_of_any_size_is_no_user_and_is_not_kept(world: World) -> None:
    """A tenant may replace the server that reviews its tokens."""
    world.alpha.users["forged"] = "x" * 1_000_000
    world.alpha.rights.add(("x" * 1_000_000, "metrics"))
    assert (await world.request(METRICS, "forged"))[0] == 401
    assert len(repr(vars(world.reviewer._user_cache))) < 1000
    for number in range(300):
        world.alpha.users[f"token-{number}"] = f"user-{number}"
        await world.reviewer.review_token("alpha", f"token-{number}", address="10.0.0.1")
    assert len(world.reviewer._user_cache) == 256


async def test_flood_of_invalid_tokens_does_not_refuse_known_callers(world: World) -> None:
    assert (await world.request(METRICS, "good"))[0] == 200
    world.clock.seconds += ALLOWED_CACHE_SECONDS + 1
    world.alpha.release = asyncio.Event()
    flood = [asyncio.create_task(world.request(METRICS, f"bad-{number}")) for number in range(30)]
    await wait_until(lambda: len(world.alpha.seen) == 4)
    assert (await world.request(METRICS, "good"))[0] == 200
    await wait_until(lambda: sum(each.done() for each in flood) == 14)
    world.alpha.release.set()
    statuses = [status for status, _ in await asyncio.gather(*flood)]
    assert (statuses.count(401), statuses.count(429)) == (16, 14)


async def test_failed_review_is_not_an_approval(world: World) -> None:
    world.alpha.status = 500
    status, body = await world.request(METRICS, "good")
    assert (status, b"127.0.0.1" in body) == (503, False)


async def test_tokens_of_revoked_tenant_are_invalid(world: World) -> None:
    assert (await world.request(METRICS, "good"))[0] == 200
    world.endpoint.server.revoke_tenant("alpha")
    assert (await world.request(METRICS, "good"))[0] == 401


async def test_certificate_must_match_tenant_in_path(world: World) -> None:
    caller = await world.endpoint.call("alpha")
    assert (await caller.request("GET", METRICS, Authorization="Bearer other"))[0] == 200
    status, _, body = await caller.request("GET", METRICS.replace("alpha", "beta"))
    assert (status, body) == (403, b"the client certificate is not that of tenant 'beta'\n")
    assert world.alpha.seen == world.beta.seen == []


async def test_connection_belongs_to_tenant_of_token(world: World) -> None:
    caller = await world.endpoint.connect(client_context(ca=world.endpoint.authority.cert_pem))
    assert (await caller.request("GET", METRICS, Authorization="Bearer good"))[0] == 200
    assert [connection.tenant for connection in world.endpoint.server._connections] == ["alpha"]
    world.endpoint.server.revoke_tenant("alpha")
    assert await caller.reader.read() == b""


async def test_unauthenticated_body_is_limited(world: World) -> None:
    caller = await world.endpoint.connect(client_context(ca=world.endpoint.authority.cert_pem))
    assert (await caller.send("POST", "/tenants/alpha/admission/gate", b"x" * 4000))[0] == 413

"""Service account tokens: requests to the tenant's API server, and the resulting Secrets."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.fakes.clock import FakeClock
from tests.unit.sync.scopes import tenant_scope
from vkgateway.api import times
from vkgateway.api.objects import Meta
from vkgateway.kinds.pods.translation.pod_references import TokenSource
from vkgateway.kinds.tokens.reconciler import ServiceAccountTokens

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POD = Meta(name="web", namespace="default", uid="uid-1")


class FakeServer:
    """Server that stores created objects, and issues tokens with the requested lifetime."""

    name = "tenant"

    def __init__(self) -> None:
        self.created: list[tuple[str, dict[str, Any]]] = []

    async def create(self, resource: Any, body: dict[str, Any], **where: Any) -> bytes:
        self.created.append((f"{resource.plural}/{where.get('name', '')}", body))
        seconds = body.get("spec", {}).get("expirationSeconds", 0)
        expires = times.render_time(NOW + timedelta(seconds=seconds))
        token = f"token-{len(self.created)}"
        return msgspec.json.encode(body | {"status": {"token": token, "expirationTimestamp": expires}})


async def test_each_projection_has_its_own_token_bound_to_the_pod() -> None:
    tenant, compute = FakeServer(), FakeServer()
    link: Any = SimpleNamespace(client=compute, copies={"secrets": SimpleNamespace(store={})})
    client: Any = tenant
    sources = [
        TokenSource(key="api.0", audience="", expiration_seconds=3607),
        TokenSource(key="vault.0", audience="vault", expiration_seconds=600),
    ]
    tokens = ServiceAccountTokens(tenant_scope(client, clock=FakeClock(origin=NOW)))
    due = await tokens.ensure_secret(link, POD, "builder", sources)

    assert [path for path, _ in tenant.created] == ["serviceaccounts/builder"] * 2
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "uid-1"}
    assert [body["spec"] for _, body in tenant.created] == [
        {"boundObjectRef": bound, "expirationSeconds": 3607},
        {"boundObjectRef": bound, "expirationSeconds": 600, "audiences": ["vault"]},
    ]
    ((path, secret),) = compute.created
    assert path == "secrets/"
    assert secret["type"] == "Opaque"
    assert {key: base64.b64decode(value) for key, value in secret["data"].items()} == {
        "api.0": b"token-1",
        "vault.0": b"token-2",
    }
    assert "token-" not in str(secret["metadata"]["annotations"].values())
    assert due == 480, "refreshed at four fifths of the shortest life"


async def test_secret_is_not_written_again_before_the_watch_shows_it() -> None:
    tenant, compute, clock = FakeServer(), FakeServer(), FakeClock(origin=NOW)
    link: Any = SimpleNamespace(client=compute, copies={"secrets": SimpleNamespace(store={})})
    client: Any = tenant
    tokens = ServiceAccountTokens(tenant_scope(client, clock=clock))
    sources = [TokenSource(key="api.0", audience="", expiration_seconds=3607)]

    await tokens.ensure_secret(link, POD, "builder", sources)
    again = await tokens.ensure_secret(link, POD, "builder", sources)
    assert (len(tenant.created), len(compute.created)) == (1, 1)
    assert again == 30, "if it was deleted meanwhile, it is missed then"

    await clock.sleep(30)
    await tokens.ensure_secret(link, POD, "builder", sources)
    assert len(compute.created) == 2

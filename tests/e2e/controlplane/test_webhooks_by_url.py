"""Webhooks by URL of a tenant on real programs: servers of the machine are refused, and opened addresses answer."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import structlog

from tests.e2e.cluster import Document
from tests.e2e.controlplane.world import World, run_world
from tests.e2e.webhooks import serve_webhook
from tests.support.waiting import wait_until
from vkgateway.api.objects import Meta
from vkgateway.api.types import Tenant

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

OPEN = "127.0.0.1"
CLOSED = "127.0.0.2"
NAME = "hooks"
"""The port follows from the name: tenants of other modules, which may run at the same time, have others."""
TENANT = Tenant(metadata=Meta(name=NAME))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with run_world(tmp_path_factory.mktemp("platform")) as place:
        await place.provisioner().provision(TENANT)
        yield place


@pytest.fixture
def reviewed() -> list[str]:
    """Return the names of the objects that webhooks received."""
    return []


@contextlib.contextmanager
def webhook(address: str, reviewed: list[str]) -> Iterator[Document]:
    """Yield the configuration of a webhook by URL at an address of this machine, for ConfigMaps."""

    def review(request: Document) -> str:
        reviewed.append(request["name"])
        return "not this one" if request["name"] == "refused" else ""

    with serve_webhook(address, review) as client_config:
        yield configuration(client_config)


def configuration(client_config: Document) -> Document:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    hook = {
        "name": "reviews.example.org",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": client_config,
        "rules": [rule],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        "timeoutSeconds": 5,
    }
    kind = "ValidatingWebhookConfiguration"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "reviews"},
        "webhooks": [hook],
    }


async def apply(place: World, document: Document) -> None:
    code, output = await place.kubectl(
        place.kubeconfig(NAME), "apply", "--server-side", "-f", "-", stdin=json.dumps(document)
    )
    assert code == 0, output


async def create(place: World, name: str) -> str:
    """Try to create a ConfigMap, and return the output."""
    line = ("create", "configmap", name, "--dry-run=server")
    return (await place.kubectl(place.kubeconfig(NAME), *line))[1]


async def wait_for_output(place: World, part: str, *, name: str = "wanted") -> str:
    """Wait until the output of `create` has this part: an API server reads a webhook's configuration a moment later."""
    found: list[str] = []

    async def has_part() -> bool:
        found.append(await create(place, name))
        return part in found[-1]

    await wait_until(has_part, seconds=30, interval=0.2)
    return found[-1]


async def test_server_at_loopback_is_refused_until_a_range_opens_it(place: World, reviewed: list[str]) -> None:
    with webhook(OPEN, reviewed) as found, structlog.testing.capture_logs() as lines:
        await apply(place, found)
        host = urlsplit(found["webhooks"][0]["clientConfig"]["url"]).netloc
        output = await wait_for_output(place, f"dialing {host}, code 403")
        assert "neither a pod of this tenant nor a public address" in output
        assert "controlPlanes.webhookRanges" in output
        refused = [line for line in lines if line["event"] == "connection of an API server refused"]
        assert refused
        assert refused[0]["tenant"] == NAME
        assert refused[0]["why"].startswith(f"{host} ")
        assert reviewed == []

        await place.drivers[-1].close()
        await place.provisioner(webhook_ranges=[f"{OPEN}/32"]).provision(TENANT)
        assert "not this one" in await wait_for_output(place, "denied the request", name="refused")
        assert "configmap/wanted created" in await create(place, "wanted")
        assert {"refused", "wanted"} <= set(reviewed)


async def test_gateways_own_webhook_needs_no_range(place: World, reviewed: list[str]) -> None:
    """Releases before 1.34 gate pods by a webhook of the gateway."""
    with webhook(place.address, reviewed) as gateway, webhook(place.address, reviewed) as other:
        await apply(place, other)
        await place.drivers[-1].close()
        port = urlsplit(gateway["webhooks"][0]["clientConfig"]["url"]).port
        await place.provisioner(gateway_port=port or 0).provision(TENANT)
        # Not only that of the test before, which the API server may still call.
        host = urlsplit(other["webhooks"][0]["clientConfig"]["url"]).netloc
        assert "code 403" in await wait_for_output(place, f"dialing {host}")
        assert reviewed == []
        await apply(place, gateway)
        assert "not this one" in await wait_for_output(place, "denied the request", name="refused")


@pytest.mark.parametrize("host", [CLOSED, "127.2", "169.254.169.254", "[::1]", "[::ffff:127.0.0.2]"])
async def test_other_addresses_stay_refused(place: World, reviewed: list[str], host: str) -> None:
    with webhook(CLOSED, reviewed) as found:
        client_config = found["webhooks"][0]["clientConfig"]
        client_config["url"] = f"https://{host}:{urlsplit(client_config['url']).port}/"
        await apply(place, found)
        output = await wait_for_output(place, f"dialing {host}:")
        assert "code 403" in output, output
        assert reviewed == []


async def test_conversion_webhook_takes_the_same_way(place: World) -> None:
    version: dict[str, Any] = {
        "served": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    url = {"url": f"https://{CLOSED}:1/", "caBundle": base64.b64encode(place.management_ca()).decode()}
    spec = {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"kind": "Thing", "plural": "things", "singular": "thing"},
        "versions": [{"name": "v1", "storage": True, **version}, {"name": "v2", "storage": False, **version}],
        "conversion": {
            "strategy": "Webhook",
            "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": url},
        },
    }
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": spec,
    }
    await apply(place, crd)
    thing = {"apiVersion": "example.org/v2", "kind": "Thing", "metadata": {"name": "t", "namespace": "default"}}
    found: list[str] = []

    async def is_refused() -> bool:
        line = ("create", "-f", "-")
        found.append((await place.kubectl(place.kubeconfig(NAME), *line, stdin=json.dumps(thing)))[1])
        return "code 403" in found[-1]

    await wait_until(is_refused, seconds=30, interval=0.2)
    assert f"dialing {CLOSED}:1" in found[-1]

"""Heartbeats of nodes."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.fakes.apiserver import FakeApiServer
from vkgateway.kube.client import Client
from vkgateway.kube.leader_election import NODE_LEASE_NAMESPACE, renew_node_lease
from vkgateway.kube.resources import LEASES

NOW = datetime(2030, 1, 2, 3, 4, 5, 678, tzinfo=UTC)


async def test_node_lease_is_created_then_renewed(server: FakeApiServer, client: Client) -> None:
    await renew_node_lease(client, "a100.local", now=NOW, owner_uid="u")
    lease = server.store.get(LEASES, "a100.local", NODE_LEASE_NAMESPACE)
    assert lease["spec"] == {
        "holderIdentity": "a100.local",
        "leaseDurationSeconds": 40,
        "renewTime": "2030-01-02T03:04:05.000678Z",
    }
    assert lease["metadata"]["ownerReferences"][0]["uid"] == "u"
    await renew_node_lease(client, "a100.local", now=NOW.replace(minute=5), duration=20)
    spec = server.store.get(LEASES, "a100.local", NODE_LEASE_NAMESPACE)["spec"]
    assert (spec["renewTime"], spec["leaseDurationSeconds"]) == ("2030-01-02T03:05:05.000678Z", 20)
    assert server.requests[-1].startswith("PATCH")

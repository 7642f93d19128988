"""Compute NetworkPolicies follow the tenant's; the isolation policies exist before any pod runs."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.addresses import Addresses
from tests.fakes.store import Document, Refusal
from tests.support.waiting import wait_until
from tests.unit.sync.network.test_name_service import FORWARDER, FakeNameServers
from tests.unit.sync.network.test_services import create_service, wait_unchanged
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, make_node, object_names, start_world
from vkgateway.api.names import CONTROL_PLANE_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.kinds.policies.translation import ISOLATION_POLICY
from vkgateway.kube.resources import NAMESPACES, NETWORK_POLICIES, NODES, Resource

WEB = {"matchLabels": {"app": "web"}}
OWN = {"namespaceSelector": {"matchLabels": {TENANT_LABEL: "alpha"}}}
PLANE = {"namespaceSelector": {"matchLabels": {CONTROL_PLANE_LABEL: "alpha"}}}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        world.compute_server.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        yield world


def create_policy(world: World, name: str = "deny", **spec: Any) -> None:
    document = {"metadata": {"name": name}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]} | spec}
    world.tenant_server.store.create(NETWORK_POLICIES, document, "default")


def compute_policy(world: World, name: str = ISOLATION_POLICY) -> dict[str, Any]:
    found = world.compute_server.store.find(NETWORK_POLICIES, name, COMPUTE_NAMESPACE)
    return found["spec"] if found is not None else {}


async def test_policies_exist_before_the_first_pod(world: World) -> None:
    create_policy(world)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        assert object_names(world.compute_server, NETWORK_POLICIES) == ["deny", ISOLATION_POLICY]
        assert compute_policy(world)["ingress"] == [{"from": [PLANE]}]
        assert compute_policy(world)["egress"][0] == {"to": [OWN]}


async def test_pod_does_not_start_before_policies_are_known(world: World) -> None:
    world.tenant_server.fail("GET", "/networkpolicies", status=503, times=3)
    create_policy(world)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        assert compute_policy(world)["ingress"] == [{"from": [PLANE]}]


async def test_changes_and_deletions_are_forwarded(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        assert compute_policy(world)["ingress"] == [{"from": [OWN]}, {"from": [PLANE]}]
        create_policy(world, podSelector=WEB)
        await wait_until(lambda: compute_policy(world)["ingress"] == [{"from": [PLANE]}])
        await wait_until(lambda: compute_policy(world, f"{ISOLATION_POLICY}-ingress-0"))
        changed = {
            "metadata": {"name": "deny"},
            "spec": {"podSelector": WEB, "policyTypes": ["Ingress"], "ingress": [{}]},
        }
        world.tenant_server.store.update(NETWORK_POLICIES, changed, name="deny", namespace="default")
        await wait_until(lambda: compute_policy(world, "deny").get("ingress") == [{"from": [OWN]}])
        world.tenant_server.store.delete(NETWORK_POLICIES, "deny", "default")
        await wait_until(lambda: object_names(world.compute_server, NETWORK_POLICIES) == [ISOLATION_POLICY])
        await wait_until(lambda: compute_policy(world)["ingress"] == [{"from": [OWN]}, {"from": [PLANE]}])


async def test_policies_permit_dns_and_the_api_server(world: World) -> None:
    """The isolation is written after the policies that permit traffic, so that permitted traffic never stops."""
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await world.wait_settled()
        start = len(world.compute_server.requests)
        create_policy(world, podSelector=WEB)
        await wait_until(lambda: compute_policy(world)["ingress"] == [{"from": [PLANE]}])
        await world.wait_settled()
    requests = [
        request.split("?")[0] for request in world.compute_server.requests[start:] if "networkpolicies" in request
    ]
    changed = [request for request in requests if not request.startswith("GET")]
    place = f"/apis/networking.k8s.io/v1/namespaces/{COMPUTE_NAMESPACE}/networkpolicies"
    assert changed[:3] == [f"POST {place}", f"POST {place}", f"PUT {place}/{ISOLATION_POLICY}"]


async def test_current_namespace_labels_are_used(world: World) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
    create_policy(world, ingress=[{"from": [peer]}])
    world.create_pod()

    def meant() -> Any:
        (rule,) = compute_policy(world, "deny").get("ingress") or [{"from": [{"namespaceSelector": {}}]}]
        return rule["from"][0]["namespaceSelector"].get("matchExpressions")

    async with world.run_gateway():
        await world.wait_forwarded()
        await wait_until(lambda: meant() == [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}])
        world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "shop", "labels": {"team": "shop"}}})
        wanted = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["alpha--shop"]}]
        await wait_until(lambda: meant() == wanted)


async def test_new_namespace_enqueues_only_policies_with_namespace_selectors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("team", "shop"):
        world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": name}})
    chosen = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
    for space, peer in (("default", {"podSelector": WEB}), ("team", {"namespaceSelector": {}}), ("shop", chosen)):
        spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
        world.tenant_server.store.create(NETWORK_POLICIES, {"metadata": {"name": "mine"}, "spec": spec}, space)
    world.create_pod()
    looked: list[str] = []
    async with world.run_gateway() as sync:
        await world.wait_forwarded()
        await world.wait_settled()
        monkeypatch.setattr(sync.reconcilers.policies, "_enqueue", looked.append)
        world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "new"}})
        await wait_until(lambda: looked)
        await world.wait_settled()
    assert looked == ["shop"]


async def test_name_server_is_reachable_despite_any_policy(world: World) -> None:
    servers = FakeNameServers()
    world.name_servers = servers
    Addresses(world.compute_server.store)
    create_policy(world, policyTypes=["Egress"])
    world.create_pod()

    def asked() -> list[str]:
        peers = [rule["to"][0] for rule in compute_policy(world).get("egress") or ()]
        return [peer["ipBlock"]["cidr"] for peer in peers if "ipBlock" in peer]

    async with world.run_gateway():
        await world.wait_forwarded()
        await wait_until(lambda: asked() == [f"{FORWARDER.address}/32"])
        await world.wait_settled()
        assert asked() == [f"{FORWARDER.address}/32"]
        create_service(world)
        await wait_until(lambda: asked() == ["10.213.0.1/32", f"{FORWARDER.address}/32"])


async def test_unsupported_rule_is_reported(world: World) -> None:
    world.compute_server.store.create(NODES, make_node("another") | {"spec": {"podCIDRs": ["10.214.0.0/24"]}})
    create_policy(world, ingress=[{"from": [{"ipBlock": {"cidr": "10.214.0.9/32"}}]}])
    world.create_pod()
    async with world.run_gateway():
        messages = await wait_until(lambda: [message for reason, message in world.events() if reason == "PartLeftOut"])
    assert "10.214.0.9/32" in messages[0]
    assert compute_policy(world, "deny")["ingress"] == []


async def test_restart_writes_nothing_and_repairs_changed_policies(world: World) -> None:
    create_policy(world, podSelector=WEB)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await wait_until(lambda: len(object_names(world.compute_server, NETWORK_POLICIES)) == 3)
        await world.wait_settled()
    assert await wait_unchanged(world)
    meddled = copy.deepcopy(world.compute_server.store.get(NETWORK_POLICIES, ISOLATION_POLICY, COMPUTE_NAMESPACE))
    meddled["spec"]["ingress"] = [{}]
    world.compute_server.store.update(NETWORK_POLICIES, meddled, name=ISOLATION_POLICY, namespace=COMPUTE_NAMESPACE)
    world.compute_server.store.delete(NETWORK_POLICIES, "deny", COMPUTE_NAMESPACE)
    async with world.run_gateway():
        await wait_until(lambda: compute_policy(world)["ingress"] == [{"from": [PLANE]}])
        await wait_until(lambda: compute_policy(world, "deny"))


async def test_foreign_policy_is_left_alone(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        document = {"metadata": {"name": "theirs"}, "spec": {"podSelector": {}}}
        world.compute_server.store.create(NETWORK_POLICIES, document, COMPUTE_NAMESPACE)
        create_policy(world)
        await wait_until(lambda: compute_policy(world)["ingress"] == [{"from": [PLANE]}])
        await world.wait_settled()
    assert "theirs" in object_names(world.compute_server, NETWORK_POLICIES)


def refuse_policy(world: World, name: str) -> None:
    """Have the compute cluster refuse a policy of this name, as admission plugins may."""
    create = world.compute_server.store.create

    def refusing(resource: Resource, document: Document, namespace: str = "") -> Document:
        if resource is NETWORK_POLICIES and document["metadata"]["name"] == name:
            raise Refusal(422, "Invalid", f"{COMPUTE_NAMESPACE}: not in this cluster")
        return create(resource, document, namespace)

    world.compute_server.store.create = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["broad", f"{ISOLATION_POLICY}-mine"])
async def test_refused_policy_blocks_neither_pods_nor_other_policies(world: World, name: str) -> None:
    refuse_policy(world, f"{name}.tenant" if name.startswith(ISOLATION_POLICY) else name)
    create_policy(world, name, podSelector=WEB)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        # Its pods are isolated; the policy permits nothing.
        assert compute_policy(world)["ingress"] == [{"from": [PLANE]}]
        create_policy(world, "deny")
        await wait_until(lambda: compute_policy(world, "deny"))
        messages = await wait_until(
            lambda: [message for reason, message in world.events() if reason == "ForwardingRefused"]
        )
        assert messages[0] == "the compute cluster refused it: default: not in this cluster"
        world.tenant_server.store.delete(NETWORK_POLICIES, "deny", "default")
        await wait_until(lambda: not compute_policy(world, "deny"))


def refuse_changes(world: World, message: str, *, status: int) -> None:
    """Have the compute cluster refuse any change of a policy of this name."""
    update = world.compute_server.store.update

    def refusing(resource: Resource, document: Document, **where: Any) -> Document:
        if resource is NETWORK_POLICIES and document["metadata"]["name"] == "deny":
            raise Refusal(status, "Forbidden" if status == 403 else "Invalid", message)
        return update(resource, document, **where)

    world.compute_server.store.update = refusing  # type: ignore[method-assign]


def change_policy(world: World, **spec: Any) -> None:
    found = copy.deepcopy(world.tenant_server.store.get(NETWORK_POLICIES, "deny", "default"))
    found["spec"] |= spec
    world.tenant_server.store.update(NETWORK_POLICIES, found, name="deny", namespace="default")


async def test_refused_change_deletes_the_previous_version(world: World) -> None:
    create_policy(world, podSelector=WEB, ingress=[{"from": [{"podSelector": {}}]}])
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        assert compute_policy(world, "deny")["ingress"]
        refuse_changes(world, f"{COMPUTE_NAMESPACE}: not in this cluster", status=422)
        change_policy(world, ingress=[])
        await wait_until(lambda: not compute_policy(world, "deny"))
        (event_message,) = await wait_until(
            lambda: [message for reason, message in world.events() if reason == "ForwardingRefused"]
        )
        assert event_message == (
            "the compute cluster refused it: default: not in this cluster; the previous version is "
            "deleted, so the pods that it selects are isolated"
        )
        assert compute_policy(world)["ingress"] == [{"from": [PLANE]}]


async def test_change_without_permission_is_reported_as_not_in_force(world: World) -> None:
    create_policy(world, podSelector=WEB, ingress=[{"from": [{"podSelector": {}}]}])
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        message = 'networkpolicies "deny" is forbidden: User "vkgateway" cannot update resource "networkpolicies"'
        refuse_changes(world, message, status=403)
        change_policy(world, ingress=[])
        (event_message,) = await wait_until(
            lambda: [message for reason, message in world.events() if reason == "ForwardingRefused"]
        )
        reason = "change it at the moment: the previous version stays in force"
        assert event_message == f"the compute cluster does not allow the gateway to {reason}"
        await world.wait_settled()
        assert compute_policy(world, "deny")["ingress"]


async def test_refusal_of_a_starting_cluster_is_not_reported(world: World) -> None:
    create_policy(world, podSelector=WEB, ingress=[{"from": [{"podSelector": {}}]}])
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        before = world.compute_server.store.get(NETWORK_POLICIES, "deny", COMPUTE_NAMESPACE)["metadata"]["uid"]
        fault = world.compute_server.fail("PUT", "/networkpolicies/deny", status=403, reason="Forbidden")
        fault.message = 'networkpolicies "deny" is forbidden: not yet ready to handle request'
        change_policy(world, ingress=[])
        await wait_until(lambda: compute_policy(world, "deny").get("ingress") == [])
        await world.wait_settled()
        assert world.compute_server.store.get(NETWORK_POLICIES, "deny", COMPUTE_NAMESPACE)["metadata"]["uid"] == before
    assert fault.hits == 1
    assert not any(reason == "ForwardingRefused" for reason, _ in world.events())


async def test_refused_isolation_policy_blocks_pods(world: World) -> None:
    refuse_policy(world, ISOLATION_POLICY)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(
            lambda: [request for request in world.compute_server.requests if request.startswith("POST")][3:]
        )
        await world.wait_settled()
        assert world.compute_pod() is None


async def test_cancellation_while_waiting_for_policies_is_honoured(world: World) -> None:
    """A worker that swallowed its cancellation would block the gateway's shutdown."""
    async with world.run_gateway() as sync:
        policies = sync.reconcilers.policies
        policies._known.clear()
        assert world.link is not None
        fencing = asyncio.create_task(policies.wait_for_policies(world.link, "default", "uid"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        policies._known.set()
        fencing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fencing

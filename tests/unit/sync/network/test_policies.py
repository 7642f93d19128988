"""Network policies below follow the tenant's; the fence stands before anything runs, whatever is done to it."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fakes.addresses import Addresses
from tests.fakes.store import Document, Refusal
from tests.unit.sync.network.test_names import FORWARDER, FakeServers
from tests.unit.sync.network.test_services import nothing_to_write, serve
from tests.unit.sync.world import BELOW, World, compute_node, names, until, world
from vkgateway.kube.resources import NAMESPACES, NETWORK_POLICIES, NODES, Resource
from vkgateway.model.names import SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.translate.network_policies import ISOLATION_POLICY

WEB = {"matchLabels": {"app": "web"}}
OWN = {"namespaceSelector": {"matchLabels": {TENANT_LABEL: "alpha"}}}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        made.below.store.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
        yield made


def close(here: World, name: str = "deny", **spec: Any) -> None:
    document = {"metadata": {"name": name}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"]} | spec}
    here.above.store.create(NETWORK_POLICIES, document, "default")


def below(here: World, name: str = ISOLATION_POLICY) -> dict[str, Any]:
    found = here.below.store.find(NETWORK_POLICIES, name, BELOW)
    return found["spec"] if found is not None else {}


async def test_policies_stand_before_the_first_pod(here: World) -> None:
    close(here)
    here.create()
    async with here.gateway():
        await here.forwarded()
        assert names(here.below, NETWORK_POLICIES) == ["deny", ISOLATION_POLICY]
        assert below(here)["ingress"] == []
        assert below(here)["egress"][0] == {"to": [OWN]}


async def test_a_pod_does_not_start_before_it_is_known_what_is_closed(here: World) -> None:
    here.above.fail("GET", "/networkpolicies", status=503, times=3)
    close(here)
    here.create()
    async with here.gateway():
        await here.forwarded()
        assert below(here)["ingress"] == []


async def test_changes_and_ends_follow(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        assert below(here)["ingress"] == [{"from": [OWN]}]
        close(here, podSelector=WEB)
        await until(lambda: below(here)["ingress"] == [])
        await until(lambda: below(here, f"{ISOLATION_POLICY}-ingress-0"))
        changed = {
            "metadata": {"name": "deny"},
            "spec": {"podSelector": WEB, "policyTypes": ["Ingress"], "ingress": [{}]},
        }
        here.above.store.update(NETWORK_POLICIES, changed, name="deny", namespace="default")
        await until(lambda: below(here, "deny").get("ingress") == [{"from": [OWN]}])
        here.above.store.delete(NETWORK_POLICIES, "deny", "default")
        await until(lambda: names(here.below, NETWORK_POLICIES) == [ISOLATION_POLICY])
        await until(lambda: below(here)["ingress"] == [{"from": [OWN]}])


async def test_nothing_is_cut_off_on_the_way(here: World) -> None:
    """What is open in the end is open all the time: the fence closes after what opens in its stead is there."""
    here.create()
    async with here.gateway():
        await here.forwarded()
        await here.settled()
        start = len(here.below.requests)
        close(here, podSelector=WEB)
        await until(lambda: below(here)["ingress"] == [])
        await here.settled()
    asked = [request.split("?")[0] for request in here.below.requests[start:] if "networkpolicies" in request]
    changed = [request for request in asked if not request.startswith("GET")]
    place = f"/apis/networking.k8s.io/v1/namespaces/{BELOW}/networkpolicies"
    assert changed[:3] == [f"POST {place}", f"POST {place}", f"PUT {place}/{ISOLATION_POLICY}"]


async def test_labels_of_namespaces_count_as_they_are_now(here: World) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
    close(here, ingress=[{"from": [peer]}])
    here.create()

    def meant() -> Any:
        (rule,) = below(here, "deny").get("ingress") or [{"from": [{"namespaceSelector": {}}]}]
        return rule["from"][0]["namespaceSelector"].get("matchExpressions")

    async with here.gateway():
        await here.forwarded()
        await until(lambda: meant() == [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}])
        here.above.store.create(NAMESPACES, {"metadata": {"name": "shop", "labels": {"team": "shop"}}})
        wanted = [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["alpha--shop"]}]
        await until(lambda: meant() == wanted)


async def test_a_new_namespace_has_only_policies_looked_at_that_choose_namespaces(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("team", "shop"):
        here.above.store.create(NAMESPACES, {"metadata": {"name": name}})
    chosen = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}
    for space, peer in (("default", {"podSelector": WEB}), ("team", {"namespaceSelector": {}}), ("shop", chosen)):
        spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
        here.above.store.create(NETWORK_POLICIES, {"metadata": {"name": "mine"}, "spec": spec}, space)
    here.create()
    looked: list[str] = []
    async with here.gateway() as sync:
        await here.forwarded()
        await here.settled()
        monkeypatch.setattr(sync.network.policies, "_wake", looked.append)
        here.above.store.create(NAMESPACES, {"metadata": {"name": "new"}})
        await until(lambda: looked)
        await here.settled()
    assert looked == ["shop"]


async def test_who_answers_for_names_may_be_asked_whatever_is_closed(here: World) -> None:
    servers = FakeServers()
    here.name_servers = servers
    Addresses(here.below.store)
    close(here, policyTypes=["Egress"])
    here.create()

    def asked() -> list[str]:
        return [rule["to"][0]["ipBlock"]["cidr"] for rule in below(here).get("egress") or ()]

    async with here.gateway():
        await here.forwarded()
        await until(lambda: asked() == [f"{FORWARDER.address}/32"])
        await here.settled()
        assert asked() == [f"{FORWARDER.address}/32"]
        serve(here)
        await until(lambda: asked() == ["10.213.0.1/32", f"{FORWARDER.address}/32"])


async def test_what_cannot_stand_below_is_told(here: World) -> None:
    here.below.store.create(NODES, compute_node("another") | {"spec": {"podCIDRs": ["10.214.0.0/24"]}})
    close(here, ingress=[{"from": [{"ipBlock": {"cidr": "10.214.0.9/32"}}]}])
    here.create()
    async with here.gateway():
        said = await until(lambda: [words for reason, words in here.events() if reason == "PartLeftOut"])
    assert "10.214.0.9/32" in said[0]
    assert below(here, "deny")["ingress"] == []


async def test_a_restart_writes_nothing_and_finds_what_was_meddled_with(here: World) -> None:
    close(here, podSelector=WEB)
    here.create()
    async with here.gateway():
        await here.forwarded()
        await until(lambda: len(names(here.below, NETWORK_POLICIES)) == 3)
        await here.settled()
    assert await nothing_to_write(here)
    meddled = copy.deepcopy(here.below.store.get(NETWORK_POLICIES, ISOLATION_POLICY, BELOW))
    meddled["spec"]["ingress"] = [{}]
    here.below.store.update(NETWORK_POLICIES, meddled, name=ISOLATION_POLICY, namespace=BELOW)
    here.below.store.delete(NETWORK_POLICIES, "deny", BELOW)
    async with here.gateway():
        await until(lambda: below(here)["ingress"] == [] and below(here, "deny"))


async def test_a_policy_of_the_compute_clusters_own_is_left_alone(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        document = {"metadata": {"name": "theirs"}, "spec": {"podSelector": {}}}
        here.below.store.create(NETWORK_POLICIES, document, BELOW)
        close(here)
        await until(lambda: below(here)["ingress"] == [])
        await here.settled()
    assert "theirs" in names(here.below, NETWORK_POLICIES)


def refuse(here: World, name: str) -> None:
    """The compute cluster takes no policy of a name, as admission plugins may say."""
    create = here.below.store.create

    def refusing(resource: Resource, document: Document, namespace: str = "") -> Document:
        if resource is NETWORK_POLICIES and document["metadata"]["name"] == name:
            raise Refusal(422, "Invalid", f"{BELOW}: not in this cluster")
        return create(resource, document, namespace)

    here.below.store.create = refusing  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["broad", f"{ISOLATION_POLICY}-mine"])
async def test_a_policy_that_is_refused_below_holds_up_neither_pods_nor_other_policies(here: World, name: str) -> None:
    refuse(here, f"{name}.tenant" if name.startswith(ISOLATION_POLICY) else name)
    close(here, name, podSelector=WEB)
    here.create()
    async with here.gateway():
        await here.forwarded()
        # Its pods are closed; it opens nothing.
        assert below(here)["ingress"] == []
        close(here, "deny")
        await until(lambda: below(here, "deny"))
        said = await until(lambda: [words for reason, words in here.events() if reason == "ForwardingRefused"])
        assert said[0] == "the compute cluster refused it: default: not in this cluster"
        here.above.store.delete(NETWORK_POLICIES, "deny", "default")
        await until(lambda: not below(here, "deny"))


def refuse_changes(here: World, words: str, *, status: int) -> None:
    """The compute cluster takes no change of a policy of that name."""
    update = here.below.store.update

    def refusing(resource: Resource, document: Document, **where: Any) -> Document:
        if resource is NETWORK_POLICIES and document["metadata"]["name"] == "deny":
            raise Refusal(status, "Forbidden" if status == 403 else "Invalid", words)
        return update(resource, document, **where)

    here.below.store.update = refusing  # type: ignore[method-assign]


def change(here: World, **spec: Any) -> None:
    found = copy.deepcopy(here.above.store.get(NETWORK_POLICIES, "deny", "default"))
    found["spec"] |= spec
    here.above.store.update(NETWORK_POLICIES, found, name="deny", namespace="default")


async def test_a_change_that_is_refused_below_leaves_nothing_open_that_it_closes(here: World) -> None:
    close(here, podSelector=WEB, ingress=[{"from": [{"podSelector": {}}]}])
    here.create()
    async with here.gateway():
        await here.forwarded()
        assert below(here, "deny")["ingress"]
        refuse_changes(here, f"{BELOW}: not in this cluster", status=422)
        change(here, ingress=[])
        await until(lambda: not below(here, "deny"))
        (said,) = await until(lambda: [words for reason, words in here.events() if reason == "ForwardingRefused"])
        assert said == (
            "the compute cluster refused it: default: not in this cluster; the previous version is "
            "deleted, so the pods that it selects are isolated"
        )
        assert below(here)["ingress"] == []


async def test_a_change_for_which_the_gateway_lacks_rights_is_said_not_to_be_in_force(here: World) -> None:
    close(here, podSelector=WEB, ingress=[{"from": [{"podSelector": {}}]}])
    here.create()
    async with here.gateway():
        await here.forwarded()
        words = 'networkpolicies "deny" is forbidden: User "vkgateway" cannot update resource "networkpolicies"'
        refuse_changes(here, words, status=403)
        change(here, ingress=[])
        (said,) = await until(lambda: [words for reason, words in here.events() if reason == "ForwardingRefused"])
        reason = "change it at the moment: the previous version stays in force"
        assert said == f"the compute cluster does not allow the gateway to {reason}"
        await here.settled()
        assert below(here, "deny")["ingress"]


async def test_a_cluster_that_just_started_has_refused_nothing(here: World) -> None:
    close(here, podSelector=WEB, ingress=[{"from": [{"podSelector": {}}]}])
    here.create()
    async with here.gateway():
        await here.forwarded()
        before = here.below.store.get(NETWORK_POLICIES, "deny", BELOW)["metadata"]["uid"]
        fault = here.below.fail("PUT", "/networkpolicies/deny", status=403, reason="Forbidden")
        fault.message = 'networkpolicies "deny" is forbidden: not yet ready to handle request'
        change(here, ingress=[])
        await until(lambda: below(here, "deny").get("ingress") == [])
        await here.settled()
        assert here.below.store.get(NETWORK_POLICIES, "deny", BELOW)["metadata"]["uid"] == before
    assert fault.hits == 1
    assert not any(reason == "ForwardingRefused" for reason, _ in here.events())


async def test_the_fence_itself_is_no_policy_to_go_without(here: World) -> None:
    refuse(here, ISOLATION_POLICY)
    here.create()
    async with here.gateway():
        await until(lambda: [request for request in here.below.requests if request.startswith("POST")][3:])
        await here.settled()
        assert here.compute_pod() is None


async def test_who_is_told_to_stop_as_policies_become_known_stops(here: World) -> None:
    """A worker that lost its cancellation would be waited for until the gateway is killed."""
    async with here.gateway() as sync:
        policies = sync.network.policies
        policies._known.clear()
        assert here.link is not None
        fencing = asyncio.create_task(policies.wait_for_fence(here.link, "default", "uid"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        policies._known.set()
        fencing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fencing

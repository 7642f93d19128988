"""Services below: there for each cluster address above, leading to the tenant's own pods and to nothing else."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, World, names, until, world
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, PODS, SERVICES
from vkgateway.model.names import TENANT_LABEL
from vkgateway.sync.network import pod_addresses
from vkgateway.sync.network.pod_addresses import PodAddresses
from vkgateway.translate.services import MANAGED_BY_LABEL, SERVICE_NAME_LABEL

PORTS = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 31000}]
SPEC: dict[str, Any] = {"type": "ClusterIP", "clusterIP": "10.96.0.7", "selector": {"app": "web"}, "ports": PORTS}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def serve(here: World, name: str = "web", **spec: Any) -> dict[str, Any]:
    return here.above.store.create(SERVICES, {"metadata": {"name": name}, "spec": SPEC | spec}, "default")


def write_slice(here: World, *addresses: str, name: str = "mine", service: str = "web", by: str = "") -> None:
    labels = {SERVICE_NAME_LABEL: service} | ({MANAGED_BY_LABEL: by} if by else {})
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    document = {
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }
    here.above.store.create(ENDPOINT_SLICES, document, "default")


def below(here: World, name: str = "web") -> dict[str, Any] | None:
    return here.below.store.find(SERVICES, name, BELOW)


def addresses(here: World) -> list[str]:
    slices = here.below.store.all(ENDPOINT_SLICES)
    return [address for found in slices for endpoint in found["endpoints"] for address in endpoint["addresses"]]


def writes(here: World) -> int:
    """How often anything but pods was written below."""
    asked = [request for request in here.below.requests if not request.startswith("GET")]
    return len([request for request in asked if "/pods" not in request])


async def nothing_to_write(here: World) -> bool:
    """Whether a gateway that starts anew over what stands finds nothing to write."""
    before = writes(here)
    async with here.gateway() as sync:
        await until(lambda: sync.is_complete and sync.network.services.is_complete)
        await here.settled()
    return writes(here) == before


async def running(here: World, name: str = "web") -> None:
    await here.forwarded(name)
    here.run(name)
    await until(lambda: here.phase(name) == "Running")


async def test_a_service_is_made_below_with_selector_and_ports_and_an_address_of_its_own(here: World) -> None:
    above = serve(here, externalIPs=["192.0.2.1"], type="NodePort", sessionAffinity="ClientIP")
    here.create()
    async with here.gateway():
        made = await until(lambda: below(here))

    assert made["spec"] == {
        "type": "ClusterIP",
        "selector": {"app": "web"},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"}],
        "sessionAffinity": "ClientIP",
    }
    assert made["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert made["metadata"]["annotations"]["vkgateway.io/uid"] == above["metadata"]["uid"]
    assert (
        "NotOpened",
        "type NodePort and externalIPs: not exposed by the compute cluster; the cluster IP works",
    ) in (here.events())


def address(here: World, name: str = "web") -> list[dict[str, Any]]:
    status = (here.above.store.find(SERVICES, name, "default") or {}).get("status") or {}
    return (status.get("loadBalancer") or {}).get("ingress") or []


async def test_a_load_balancer_has_the_cluster_address(here: World) -> None:
    serve(here, type="LoadBalancer")
    here.create()
    async with here.gateway():
        await until(lambda: address(here) == [{"ip": "10.96.0.7", "ipMode": "VIP"}])
        await here.settled()
    assert (below(here) or {})["spec"]["type"] == "ClusterIP"
    assert await nothing_to_write(here)


async def test_a_forwarded_load_balancer_has_the_address_that_the_compute_cluster_gives_it(here: World) -> None:
    here.policy = {"load_balancers": "Forward"}
    serve(here, type="LoadBalancer")
    here.create()
    async with here.gateway():
        made = copy.deepcopy(await until(lambda: below(here)))
        assert made["spec"]["type"] == "LoadBalancer"
        ingress = [{"ip": "192.0.2.7", "ipMode": "VIP"}]
        made["status"] = {"loadBalancer": {"ingress": ingress}}
        here.below.store.update(SERVICES, made, name="web", namespace=BELOW, status=True)
        await until(lambda: address(here) == ingress)
        await here.settled()
    assert await nothing_to_write(here)


async def test_what_controllers_of_load_balancers_wrote_stays(here: World) -> None:
    here.policy = {"load_balancers": "Forward"}
    serve(here, type="LoadBalancer")
    here.create()
    async with here.gateway():
        made = copy.deepcopy(await until(lambda: below(here)))
        made["metadata"]["finalizers"] = ["service.kubernetes.io/load-balancer-cleanup"]
        made["metadata"]["annotations"]["lb.example.org/id"] = "7"
        here.below.store.update(SERVICES, made, name="web", namespace=BELOW)
        above = copy.deepcopy(here.above.store.find(SERVICES, "web", "default") or {})
        above["spec"]["ports"] = [{"name": "other", "protocol": "TCP", "port": 81}]
        here.above.store.update(SERVICES, above, name="web", namespace="default")
        await until(lambda: (below(here) or {})["spec"]["ports"][0]["port"] == 81)
    metadata = (below(here) or {})["metadata"]
    assert metadata["finalizers"] == ["service.kubernetes.io/load-balancer-cleanup"]
    assert metadata["annotations"]["lb.example.org/id"] == "7"


async def test_headless_services_and_names_of_others_need_nothing_below(here: World) -> None:
    serve(here, "headless", clusterIP="None")
    serve(here, "elsewhere", type="ExternalName", externalName="example.org")
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: below(here))
        await here.settled()

    assert names(here.below, SERVICES) == ["web"]


async def test_the_api_servers_own_service_stays_above(here: World) -> None:
    serve(here, "kubernetes")
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: below(here))

    assert names(here.below, SERVICES) == ["web"]


async def test_without_anything_below_services_are_not_even_watched(here: World) -> None:
    serve(here)
    async with here.gateway() as sync:
        await until(lambda: sync.is_complete)
        await here.settled()

    assert not [request for request in here.above.requests if "/services" in request or "/endpointslices" in request]
    assert here.below.store.all(SERVICES) == []


async def test_changes_follow_and_deletion_too(here: World) -> None:
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: below(here))
        changed = {"metadata": {"name": "web"}, "spec": SPEC | {"selector": {"app": "other"}}}
        here.above.store.update(SERVICES, changed, name="web", namespace="default")
        await until(lambda: (below(here) or {"spec": {}})["spec"].get("selector") == {"app": "other"})
        here.above.store.delete(SERVICES, "web", "default")
        await until(lambda: below(here) is None)


async def test_what_happened_while_the_gateway_was_away_is_found_by_comparison(here: World) -> None:
    for name in ("web", "gone", "meddled"):
        serve(here, name)
    here.create()
    async with here.gateway():
        await until(lambda: len(names(here.below, SERVICES)) == 3)
    here.above.store.delete(SERVICES, "gone", "default")
    here.below.store.delete(SERVICES, "web", BELOW)
    meddled = copy.deepcopy(below(here, "meddled") or {})
    meddled["spec"] |= {"type": "LoadBalancer", "selector": {"app": "theirs"}}
    here.below.store.update(SERVICES, meddled, name="meddled", namespace=BELOW)
    async with here.gateway():
        await until(lambda: names(here.below, SERVICES) == ["meddled", "web"])
        await until(lambda: (below(here, "meddled") or {"spec": {}})["spec"]["selector"] == {"app": "web"})
        assert (below(here, "meddled") or {"spec": {}})["spec"]["type"] == "ClusterIP"
        await here.settled()
    assert await nothing_to_write(here)


async def test_a_name_that_is_taken_below_is_told_and_left_alone(here: World) -> None:
    here.below.store.create(NAMESPACES, {"metadata": {"name": "other"}})
    serve(here)
    here.create()
    async with here.gateway():
        await here.forwarded()
        await until(lambda: below(here))
    stranger = copy.deepcopy(below(here) or {})
    del stranger["metadata"]["labels"]
    here.below.store.update(SERVICES, stranger, name="web", namespace=BELOW)
    async with here.gateway():
        await until(lambda: any(reason == "NameTaken" for reason, _ in here.events()))
        assert "labels" not in (below(here) or {"metadata": {}})["metadata"]
        here.above.store.delete(SERVICES, "web", "default")
        await here.settled()
    assert below(here) is not None


@pytest.mark.parametrize("key", ["vkgateway.io/tenant", "volcano.sh/job-name", "scheduling.x-k8s.io/pod-group"])
async def test_a_selector_over_renamed_labels_is_renamed_alike_and_settles(here: World, key: str) -> None:
    serve(here, selector={key: "alpha"})
    here.create()
    async with here.gateway():
        made = await until(lambda: below(here))
        assert made["spec"]["selector"] == {key.replace("/", ".tenant-label.vkgateway.io/"): "alpha"}
        await here.settled()
    assert await nothing_to_write(here)


async def test_slices_of_ones_own_lead_to_ones_own_running_pods_only(here: World) -> None:
    serve(here, selector=None)
    write_slice(here, "10.1.2.3", "10.9.9.9", "10.1.2.77")  # a pod, its host, somebody's pod
    here.create()
    async with here.gateway():
        await running(here)
        await until(lambda: addresses(here) == ["10.1.2.3"])
        (made,) = here.below.store.all(ENDPOINT_SLICES)
        assert made["metadata"]["ownerReferences"][0]["uid"] == (below(here) or {"metadata": {}})["metadata"]["uid"]
        assert made["metadata"]["labels"][SERVICE_NAME_LABEL] == "web"
        said = await until(lambda: [words for reason, words in here.events() if reason == "EndpointRefused"])
        assert "10.9.9.9, 10.1.2.77" in said[-1]
        # The pod ends: its address may be anybody's from now on.
        here.end()
        await until(lambda: addresses(here) == [])


async def test_addresses_of_another_tenant_and_of_pods_on_the_nodes_network_are_not_ones_own(here: World) -> None:
    here.create()
    async with here.gateway():
        await running(here)
        link = here.link
        assert link is not None
        own, others = PodAddresses("alpha", link), PodAddresses("beta", link)
        assert (own.update_addresses(), others.update_addresses()) == ({"10.1.2.3"}, set())
        assert (list(own.current_addresses), list(others.current_addresses)) == (["10.1.2.3"], [])
        own.mark_all_changed()
        assert own.update_addresses() == set()
        pod = copy.deepcopy(here.compute_pod() or {})
        seen = link.pods.store[(BELOW, "web")].metadata.resource_version
        pod["status"]["podIP"] = pod["status"]["hostIP"]
        here.below.store.update(PODS, pod, name="web", namespace=BELOW, status=True)
        await until(lambda: link.pods.store[(BELOW, "web")].metadata.resource_version != seen)
        assert own.update_addresses() == set()  # nobody said that it changed
        own.pod_changed(("default", "web"))
        assert own.update_addresses() == {"10.1.2.3"}
        assert list(own.current_addresses) == []


async def test_slices_that_kubernetes_made_from_a_selector_are_not_read(here: World) -> None:
    serve(here)
    write_slice(here, "10.1.2.3", by="endpointslice-controller.k8s.io")
    here.create()
    async with here.gateway():
        await running(here)
        await until(lambda: below(here))
        await here.settled()
    assert here.below.store.all(ENDPOINT_SLICES) == []


async def test_a_slice_goes_with_the_tenants(here: World) -> None:
    serve(here, selector=None)
    write_slice(here, "10.1.2.3")
    here.create()
    async with here.gateway():
        await running(here)
        await until(lambda: addresses(here) == ["10.1.2.3"])
        here.above.store.delete(ENDPOINT_SLICES, "mine", "default")
        await until(lambda: here.below.store.all(ENDPOINT_SLICES) == [])


async def test_pods_that_change_wake_only_services_that_name_an_address_that_moved(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    told = 0
    for number in range(5):
        serve(here, f"s{number}", selector=None)
        write_slice(here, "10.1.2.3" if number == 0 else "10.1.2.4", name=f"of-{number}", service=f"s{number}")
    here.create()
    here.create("other")
    async with here.gateway() as sync:
        await running(here)
        await until(lambda: addresses(here) == ["10.1.2.3"])
        await here.forwarded("other")
        await here.settled()
        reconcile = sync.network.services.reconcile

        async def noted(key: tuple[str, str], *more: Any) -> None:
            looked.append(key[1])
            await reconcile(key, *more)

        def counted(*more: Any) -> frozenset[str]:
            nonlocal told
            told += 1
            return look(*more)

        look = pod_addresses._addresses_of
        monkeypatch.setattr(sync.network.services, "reconcile", noted)
        monkeypatch.setattr(pod_addresses, "_addresses_of", counted)
        pod = copy.deepcopy(here.compute_pod("other") or {})
        del pod["metadata"]["resourceVersion"]
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        here.below.store.update(PODS, pod, name="other", namespace=BELOW, status=True)
        await until(lambda: told)
        await here.settled()
        assert looked == []
        pod["status"] |= {"phase": "Running", "hostIP": "10.9.9.9", "podIP": "10.1.2.4"}
        here.below.store.update(PODS, pod, name="other", namespace=BELOW, status=True)
        await until(lambda: sorted(addresses(here)) == ["10.1.2.3", *["10.1.2.4"] * 4])
        await here.settled()
        assert set(looked) == {"s1", "s2", "s3", "s4"}
        assert told <= 4


async def test_an_address_that_came_and_went_before_anybody_looked_wakes_its_services(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(here, selector=None)
    write_slice(here, "10.1.2.3")
    here.create()
    woken: list[tuple[str, str]] = []
    async with here.gateway() as sync:
        await until(lambda: below(here))
        await here.settled()
        slices, link = sync.network.services.slices, here.link
        assert link is not None
        monkeypatch.setattr(slices, "_wake", woken.append)
        for now in ({"10.1.2.3"}, set()):
            monkeypatch.setattr(pod_addresses, "_addresses_of", lambda *_, now=now: frozenset(now))
            slices.pods_listed()
            assert set(slices.addresses_in(link)) == now
        slices.enqueue_affected([link])
        slices.enqueue_affected([link])
    assert woken == [("default", "web")]


async def test_pods_of_a_tenant_that_wrote_no_slices_are_not_looked_at_for_their_addresses(
    here: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []

    def noted(view: object) -> frozenset[str]:
        looked.append(view)
        return frozenset()

    monkeypatch.setattr(pod_addresses, "_addresses_of", noted)
    serve(here)
    serve(here, "kubernetes", selector=None)
    write_slice(here, "10.9.9.9", name="kubernetes", service="kubernetes")  # as every tenant has it
    here.create()
    async with here.gateway() as sync:
        await running(here)
        await until(lambda: below(here))
        await here.settled()
        assert looked == []
        assert sync.network.services.slices.tenant_slices.store
    assert addresses(here) == []


async def test_an_address_that_another_pod_got_meanwhile_is_still_there(here: World) -> None:
    here.create()
    here.create("other")
    async with here.gateway():
        await running(here)
        await here.forwarded("other")
        link = here.link
        assert link is not None
        own = PodAddresses("alpha", link)
        assert own.update_addresses() == {"10.1.2.3"}
        pod = copy.deepcopy(here.compute_pod("other") or {})
        del pod["metadata"]["resourceVersion"]
        pod["status"] = {"phase": "Running", "hostIP": "10.9.9.9", "podIP": "10.1.2.3"}
        here.below.store.update(PODS, pod, name="other", namespace=BELOW, status=True)
        here.end()
        await until(lambda: (BELOW, "web") not in link.pods.store or link.pods.store[(BELOW, "web")].has_ended)
        await until(lambda: link.pods.store[(BELOW, "other")].phase == "Running")
        own.pod_changed(("default", "web"))
        own.pod_changed(("default", "other"))
        assert own.update_addresses() == set()
        assert list(own.current_addresses) == ["10.1.2.3"]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('services "web" is forbidden: not yet ready to handle request', []),
        (
            'services is forbidden: User "system:serviceaccount:platform:gateway" cannot create resource "services"',
            ["the compute cluster does not let the gateway do that now"],
        ),
        (
            f'services "web" is forbidden: exceeded quota: services in {BELOW}/web',
            ['the compute cluster refused it: services "web" is forbidden: exceeded quota: services in default/web'],
        ),
    ],
)
async def test_of_a_refusal_only_what_is_the_services_own_is_told(here: World, said: str, told: list[str]) -> None:
    fault = here.below.fail("POST", f"/namespaces/{BELOW}/services", status=403, reason="Forbidden")
    fault.message = said
    serve(here)
    here.create()
    async with here.gateway():
        await until(lambda: below(here))
        await here.settled()
    assert fault.hits == 1
    assert [message for _, message in here.events()] == told

"""Compute Services: one for each tenant Service with a cluster IP, with only the tenant's own pods as endpoints."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, World, object_names, start_world
from vkgateway.api.names import TENANT_LABEL
from vkgateway.kinds.services import pod_addresses
from vkgateway.kinds.services.pod_addresses import PodAddresses
from vkgateway.kinds.services.translation import MANAGED_BY_LABEL, SERVICE_NAME_LABEL
from vkgateway.kinds.sources import TENANT_SERVICES
from vkgateway.kube.resources import ENDPOINT_SLICES, NAMESPACES, PODS, SERVICES

PORTS = [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web", "nodePort": 31000}]
SPEC: dict[str, Any] = {"type": "ClusterIP", "clusterIP": "10.96.0.7", "selector": {"app": "web"}, "ports": PORTS}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


def create_service(world: World, name: str = "web", **spec: Any) -> dict[str, Any]:
    return world.tenant_server.store.create(SERVICES, {"metadata": {"name": name}, "spec": SPEC | spec}, "default")


def write_slice(world: World, *addresses: str, name: str = "mine", service: str = "web", by: str = "") -> None:
    labels = {SERVICE_NAME_LABEL: service} | ({MANAGED_BY_LABEL: by} if by else {})
    endpoints = [{"addresses": [address], "conditions": {"ready": True}} for address in addresses]
    document = {
        "metadata": {"name": name, "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }
    world.tenant_server.store.create(ENDPOINT_SLICES, document, "default")


def compute_service(world: World, name: str = "web") -> dict[str, Any] | None:
    return world.compute_server.store.find(SERVICES, name, COMPUTE_NAMESPACE)


def slice_addresses(world: World) -> list[str]:
    slices = world.compute_server.store.all(ENDPOINT_SLICES)
    return [address for found in slices for endpoint in found["endpoints"] for address in endpoint["addresses"]]


def count_writes(world: World) -> int:
    """Return the number of writes to the compute cluster except pods."""
    asked = [request for request in world.compute_server.requests if not request.startswith("GET")]
    return len([request for request in asked if "/pods" not in request])


async def wait_unchanged(world: World) -> bool:
    """Check that a restarted gateway writes nothing."""
    before = count_writes(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.is_complete and sync.reconcilers.tenant_services.is_complete)
        await world.wait_settled()
    return count_writes(world) == before


async def run_pod(world: World, name: str = "web") -> None:
    await world.wait_forwarded(name)
    world.run_pod(name)
    await wait_until(lambda: world.pod_phase(name) == "Running")


async def test_service_is_forwarded_with_selector_ports_and_own_address(world: World) -> None:
    service = create_service(world, externalIPs=["192.0.2.1"], type="NodePort", sessionAffinity="ClientIP")
    world.create_pod()
    async with world.run_gateway():
        created = await wait_until(lambda: compute_service(world))

    assert created["spec"] == {
        "type": "ClusterIP",
        "selector": {"app": "web"},
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": "web"}],
        "sessionAffinity": "ClientIP",
    }
    assert created["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert created["metadata"]["annotations"]["vkgateway.io/uid"] == service["metadata"]["uid"]
    assert (
        "NotOpened",
        "type NodePort and externalIPs: not exposed by the compute cluster; the cluster IP works",
    ) in (world.events())


def load_balancer_address(world: World, name: str = "web") -> list[dict[str, Any]]:
    status = (world.tenant_server.store.find(SERVICES, name, "default") or {}).get("status") or {}
    return (status.get("loadBalancer") or {}).get("ingress") or []


async def test_load_balancer_has_the_cluster_address(world: World) -> None:
    create_service(world, type="LoadBalancer")
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: load_balancer_address(world) == [{"ip": "10.96.0.7", "ipMode": "VIP"}])
        await world.wait_settled()
    assert (compute_service(world) or {})["spec"]["type"] == "ClusterIP"
    assert await wait_unchanged(world)


async def test_forwarded_load_balancer_has_the_compute_address(world: World) -> None:
    world.policy = {"load_balancers": "Forward"}
    create_service(world, type="LoadBalancer")
    world.create_pod()
    async with world.run_gateway():
        created = copy.deepcopy(await wait_until(lambda: compute_service(world)))
        assert created["spec"]["type"] == "LoadBalancer"
        ingress = [{"ip": "192.0.2.7", "ipMode": "VIP"}]
        created["status"] = {"loadBalancer": {"ingress": ingress}}
        world.compute_server.store.update(SERVICES, created, name="web", namespace=COMPUTE_NAMESPACE, status=True)
        await wait_until(lambda: load_balancer_address(world) == ingress)
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_fields_of_load_balancer_controllers_are_retained(world: World) -> None:
    world.policy = {"load_balancers": "Forward"}
    create_service(world, type="LoadBalancer")
    world.create_pod()
    async with world.run_gateway():
        created = copy.deepcopy(await wait_until(lambda: compute_service(world)))
        created["metadata"]["finalizers"] = ["service.kubernetes.io/load-balancer-cleanup"]
        created["metadata"]["annotations"]["lb.example.org/id"] = "7"
        world.compute_server.store.update(SERVICES, created, name="web", namespace=COMPUTE_NAMESPACE)
        service = copy.deepcopy(world.tenant_server.store.find(SERVICES, "web", "default") or {})
        service["spec"]["ports"] = [{"name": "other", "protocol": "TCP", "port": 81}]
        world.tenant_server.store.update(SERVICES, service, name="web", namespace="default")
        await wait_until(lambda: (compute_service(world) or {})["spec"]["ports"][0]["port"] == 81)
    metadata = (compute_service(world) or {})["metadata"]
    assert metadata["finalizers"] == ["service.kubernetes.io/load-balancer-cleanup"]
    assert metadata["annotations"]["lb.example.org/id"] == "7"


async def test_headless_and_external_name_services_are_not_forwarded(world: World) -> None:
    create_service(world, "headless", clusterIP="None")
    create_service(world, "elsewhere", type="ExternalName", externalName="example.org")
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: compute_service(world))
        await world.wait_settled()

    assert object_names(world.compute_server, SERVICES) == ["web"]


async def test_api_server_service_is_not_forwarded(world: World) -> None:
    create_service(world, "kubernetes")
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: compute_service(world))

    assert object_names(world.compute_server, SERVICES) == ["web"]


async def test_services_are_not_watched_without_compute_pods(world: World) -> None:
    create_service(world)
    async with world.run_gateway() as sync:
        await wait_until(lambda: sync.is_complete)
        await world.wait_settled()

    assert not [
        request for request in world.tenant_server.requests if "/services" in request or "/endpointslices" in request
    ]
    assert world.compute_server.store.all(SERVICES) == []


async def test_changes_and_deletion_are_forwarded(world: World) -> None:
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: compute_service(world))
        changed = {"metadata": {"name": "web"}, "spec": SPEC | {"selector": {"app": "other"}}}
        world.tenant_server.store.update(SERVICES, changed, name="web", namespace="default")
        await wait_until(lambda: (compute_service(world) or {"spec": {}})["spec"].get("selector") == {"app": "other"})
        world.tenant_server.store.delete(SERVICES, "web", "default")
        await wait_until(lambda: compute_service(world) is None)


async def test_changes_during_an_outage_are_found_by_comparison(world: World) -> None:
    for name in ("web", "gone", "meddled"):
        create_service(world, name)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: len(object_names(world.compute_server, SERVICES)) == 3)
    world.tenant_server.store.delete(SERVICES, "gone", "default")
    world.compute_server.store.delete(SERVICES, "web", COMPUTE_NAMESPACE)
    meddled = copy.deepcopy(compute_service(world, "meddled") or {})
    meddled["spec"] |= {"type": "LoadBalancer", "selector": {"app": "theirs"}}
    world.compute_server.store.update(SERVICES, meddled, name="meddled", namespace=COMPUTE_NAMESPACE)
    async with world.run_gateway():
        await wait_until(lambda: object_names(world.compute_server, SERVICES) == ["meddled", "web"])
        await wait_until(
            lambda: (compute_service(world, "meddled") or {"spec": {}})["spec"]["selector"] == {"app": "web"}
        )
        assert (compute_service(world, "meddled") or {"spec": {}})["spec"]["type"] == "ClusterIP"
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_taken_name_is_reported_and_left_alone(world: World) -> None:
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "other"}})
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        await wait_until(lambda: compute_service(world))
    stranger = copy.deepcopy(compute_service(world) or {})
    del stranger["metadata"]["labels"]
    world.compute_server.store.update(SERVICES, stranger, name="web", namespace=COMPUTE_NAMESPACE)
    async with world.run_gateway():
        await wait_until(lambda: any(reason == "NameTaken" for reason, _ in world.events()))
        assert "labels" not in (compute_service(world) or {"metadata": {}})["metadata"]
        world.tenant_server.store.delete(SERVICES, "web", "default")
        await world.wait_settled()
    assert compute_service(world) is not None


@pytest.mark.parametrize("key", ["vkgateway.io/tenant", "volcano.sh/job-name", "scheduling.x-k8s.io/pod-group"])
async def test_selector_over_renamed_labels_is_renamed(world: World, key: str) -> None:
    create_service(world, selector={key: "alpha"})
    world.create_pod()
    async with world.run_gateway():
        created = await wait_until(lambda: compute_service(world))
        assert created["spec"]["selector"] == {key.replace("/", ".tenant-label.vkgateway.io/"): "alpha"}
        await world.wait_settled()
    assert await wait_unchanged(world)


async def test_tenant_slices_lead_only_to_its_own_running_pods(world: World) -> None:
    create_service(world, selector=None)
    write_slice(world, "10.1.2.3", "10.9.9.9", "10.1.2.77")  # a pod, its host, a pod of another tenant
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: slice_addresses(world) == ["10.1.2.3"])
        (created,) = world.compute_server.store.all(ENDPOINT_SLICES)
        assert (
            created["metadata"]["ownerReferences"][0]["uid"]
            == (compute_service(world) or {"metadata": {}})["metadata"]["uid"]
        )
        assert created["metadata"]["labels"][SERVICE_NAME_LABEL] == "web"
        messages = await wait_until(lambda: [words for reason, words in world.events() if reason == "EndpointRefused"])
        assert "10.9.9.9, 10.1.2.77" in messages[-1]
        # The pod ends; another pod may get its address.
        world.end_pod()
        await wait_until(lambda: slice_addresses(world) == [])


async def test_addresses_of_other_tenants_and_hosts_are_not_own_addresses(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        link = world.link
        assert link is not None
        own, others = PodAddresses("alpha", link), PodAddresses("beta", link)
        assert (own.update_addresses(), others.update_addresses()) == ({"10.1.2.3"}, set())
        assert (list(own.current_addresses), list(others.current_addresses)) == (["10.1.2.3"], [])
        own.mark_all_changed()
        assert own.update_addresses() == set()
        pod = copy.deepcopy(world.compute_pod() or {})
        seen = link.pods.store[(COMPUTE_NAMESPACE, "web")].metadata.resource_version
        pod["status"]["podIP"] = pod["status"]["hostIP"]
        world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE, status=True)
        await wait_until(lambda: link.pods.store[(COMPUTE_NAMESPACE, "web")].metadata.resource_version != seen)
        assert own.update_addresses() == set()  # no watch event reported the change
        own.pod_changed(("default", "web"))
        assert own.update_addresses() == {"10.1.2.3"}
        assert list(own.current_addresses) == []


async def test_slices_managed_by_kubernetes_are_not_read(world: World) -> None:
    create_service(world)
    write_slice(world, "10.1.2.3", by="endpointslice-controller.k8s.io")
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: compute_service(world))
        await world.wait_settled()
    assert world.compute_server.store.all(ENDPOINT_SLICES) == []


async def test_slice_is_deleted_with_the_tenants_slice(world: World) -> None:
    create_service(world, selector=None)
    write_slice(world, "10.1.2.3")
    world.create_pod()
    async with world.run_gateway():
        await run_pod(world)
        await wait_until(lambda: slice_addresses(world) == ["10.1.2.3"])
        world.tenant_server.store.delete(ENDPOINT_SLICES, "mine", "default")
        await wait_until(lambda: world.compute_server.store.all(ENDPOINT_SLICES) == [])


async def test_pod_changes_enqueue_only_services_with_changed_addresses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    lookups = 0
    for number in range(5):
        create_service(world, f"s{number}", selector=None)
        write_slice(world, "10.1.2.3" if number == 0 else "10.1.2.4", name=f"of-{number}", service=f"s{number}")
    world.create_pod()
    world.create_pod("other")
    async with world.run_gateway() as sync:
        await run_pod(world)
        await wait_until(lambda: slice_addresses(world) == ["10.1.2.3"])
        await world.wait_forwarded("other")
        await world.wait_settled()
        reconcile = sync.reconcilers.services.reconcile

        async def noted(key: tuple[str, str], *more: Any) -> None:
            looked.append(key[1])
            await reconcile(key, *more)

        def counted(*more: Any) -> frozenset[str]:
            nonlocal lookups
            lookups += 1
            return look(*more)

        look = pod_addresses.addresses_of
        monkeypatch.setattr(sync.reconcilers.services, "reconcile", noted)
        monkeypatch.setattr(pod_addresses, "addresses_of", counted)
        pod = copy.deepcopy(world.compute_pod("other") or {})
        del pod["metadata"]["resourceVersion"]
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        world.compute_server.store.update(PODS, pod, name="other", namespace=COMPUTE_NAMESPACE, status=True)
        await wait_until(lambda: lookups)
        await world.wait_settled()
        assert looked == []
        pod["status"] |= {"phase": "Running", "hostIP": "10.9.9.9", "podIP": "10.1.2.4"}
        world.compute_server.store.update(PODS, pod, name="other", namespace=COMPUTE_NAMESPACE, status=True)
        await wait_until(lambda: sorted(slice_addresses(world)) == ["10.1.2.3", *["10.1.2.4"] * 4])
        await world.wait_settled()
        assert set(looked) == {"s1", "s2", "s3", "s4"}
        assert lookups <= 4


async def test_address_added_and_removed_between_checks_enqueues_services(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_service(world, selector=None)
    write_slice(world, "10.1.2.3")
    world.create_pod()
    woken: list[tuple[str, str]] = []
    async with world.run_gateway() as sync:
        await wait_until(lambda: compute_service(world))
        await world.wait_settled()
        slices, link = sync.reconcilers.services.slices, world.link
        assert link is not None
        sync.scope.watches.add(TENANT_SERVICES, woken.append)
        for now in ({"10.1.2.3"}, set()):
            monkeypatch.setattr(pod_addresses, "addresses_of", lambda *_, now=now: frozenset(now))
            slices.pods_listed()
            assert set(slices.addresses_in(link)) == now
        await slices.reconcile_addresses(None)
        await slices.reconcile_addresses(None)
    assert woken == [("default", "web")]


async def test_pods_of_a_tenant_without_slices_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []

    def noted(view: object) -> frozenset[str]:
        looked.append(view)
        return frozenset()

    monkeypatch.setattr(pod_addresses, "addresses_of", noted)
    create_service(world)
    create_service(world, "kubernetes", selector=None)
    write_slice(world, "10.9.9.9", name="kubernetes", service="kubernetes")  # every tenant has this Service
    world.create_pod()
    async with world.run_gateway() as sync:
        await run_pod(world)
        await wait_until(lambda: compute_service(world))
        await world.wait_settled()
        assert looked == []
        assert sync.reconcilers.services.slices.tenant_slices.store
    assert slice_addresses(world) == []


async def test_address_reused_by_another_pod_stays(world: World) -> None:
    world.create_pod()
    world.create_pod("other")
    async with world.run_gateway():
        await run_pod(world)
        await world.wait_forwarded("other")
        link = world.link
        assert link is not None
        own = PodAddresses("alpha", link)
        assert own.update_addresses() == {"10.1.2.3"}
        pod = copy.deepcopy(world.compute_pod("other") or {})
        del pod["metadata"]["resourceVersion"]
        pod["status"] = {"phase": "Running", "hostIP": "10.9.9.9", "podIP": "10.1.2.3"}
        world.compute_server.store.update(PODS, pod, name="other", namespace=COMPUTE_NAMESPACE, status=True)
        world.end_pod()
        await wait_until(
            lambda: (
                (COMPUTE_NAMESPACE, "web") not in link.pods.store
                or link.pods.store[(COMPUTE_NAMESPACE, "web")].has_ended
            )
        )
        await wait_until(lambda: link.pods.store[(COMPUTE_NAMESPACE, "other")].phase == "Running")
        own.pod_changed(("default", "web"))
        own.pod_changed(("default", "other"))
        assert own.update_addresses() == set()
        assert list(own.current_addresses) == ["10.1.2.3"]


@pytest.mark.parametrize(
    ("refusal", "messages"),
    [
        ('services "web" is forbidden: not yet ready to handle request', []),
        (
            'services is forbidden: User "system:serviceaccount:platform:gateway" cannot create resource "services"',
            ["the compute cluster does not let the gateway do that now"],
        ),
        (
            f'services "web" is forbidden: exceeded quota: services in {COMPUTE_NAMESPACE}/web',
            ['the compute cluster refused it: services "web" is forbidden: exceeded quota: services in default/web'],
        ),
    ],
)
async def test_refusal_message_shows_only_the_services_own_names(
    world: World, refusal: str, messages: list[str]
) -> None:
    fault = world.compute_server.fail(
        "POST", f"/namespaces/{COMPUTE_NAMESPACE}/services", status=403, reason="Forbidden"
    )
    fault.message = refusal
    create_service(world)
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: compute_service(world))
        await world.wait_settled()
    assert fault.hits == 1
    assert [message for _, message in world.events()] == messages

"""Services as a tenant's pods see them: address, variables and every form of name lead to the tenant's pods."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from tests.e2e.cluster import COMPUTE_MINOR, REAL, Cluster, Platform, eventually, pod_manifest
from tests.e2e.dns import SRV, query_server
from tests.e2e.inside import PodNetwork
from tests.e2e.webservers import SCHEDULERS_LABELS, service_manifest, web_server_manifests
from tests.support.machine import patience_option

HOSTNAME_OVERRIDE_SINCE = 35
"""First minor release whose API server keeps `hostnameOverride` by default (KEP-4762)."""
NAMESPACE = "shop"
DOMAIN = f"{NAMESPACE}.svc.cluster.local"
GATE = "example.org/warm"
CA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"


@dataclass
class TenantServices:
    """Tenant with the Services, and a pod that calls them."""

    name: str
    cluster: Cluster
    caller: PodNetwork

    @property
    def hosts(self) -> set[str]:
        return {f"web-{number} of {self.name}" for number in (0, 1)}

    def address(self, name: str, namespace: str = NAMESPACE) -> str:
        """Return the ClusterIP of a Service."""
        return str(self.cluster.get("service", name, "-n", namespace)["spec"]["clusterIP"])

    def variables(self) -> dict[str, str]:
        text = self.cluster.kubectl("exec", "-n", NAMESPACE, "caller", "--", "env")
        return dict(line.partition("=")[::2] for line in text.splitlines())


@pytest.fixture(scope="module")
def sides(platform: Platform, alpha: Cluster, beta: Cluster) -> Iterator[dict[str, TenantServices]]:
    """Yield both tenants, with the same Services and pods."""
    if not platform.real:
        pytest.skip("no real node here")
    found: dict[str, TenantServices] = {}
    for name, cluster in (("alpha", alpha), ("beta", beta)):
        cluster.create_namespace(NAMESPACE)
        cluster.apply(
            service_manifest(NAMESPACE, "web"),
            service_manifest(NAMESPACE, "peers", clusterIP="None"),
            service_manifest(NAMESPACE, "sticky", sessionAffinity="ClientIP"),
            service_manifest(NAMESPACE, "board", selector=SCHEDULERS_LABELS),
            service_manifest(NAMESPACE, "alias", type="ExternalName", externalName=f"web.{DOMAIN}", selector=None),
            web_server_manifests(NAMESPACE, name),
        )
        caller = pod_manifest("caller", **REAL)
        caller["metadata"]["namespace"] = NAMESPACE
        cluster.apply(caller)
        cluster.kubectl("rollout", "status", "sts/web", "-n", NAMESPACE, patience_option(90), timeout=100)
        cluster.kubectl(
            "wait", "pod/caller", "-n", NAMESPACE, "--for=condition=Ready", patience_option(90), timeout=100
        )
        below = platform.compute.get("pod", "caller", "-n", f"{name}--{NAMESPACE}")
        found[name] = TenantServices(name, cluster, PodNetwork(below))
    yield found
    for side in found.values():
        side.cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", patience_option(90), timeout=100)


def ingress_addresses(cluster: Cluster, name: str) -> list[dict[str, str]]:
    """Return the addresses in the status of a LoadBalancer."""
    found: list[dict[str, str]] = cluster.get("service", name)["status"]["loadBalancer"].get("ingress") or []
    return found


def test_load_balancer_follows_the_tenants_policy(platform: Platform, alpha: Cluster) -> None:
    def set_policy(how: str) -> None:
        spec = json.dumps({"spec": {"policy": {"loadBalancers": how}}})
        platform.compute.kubectl("patch", "tenant", "alpha", "--type=merge", "-p", spec)

    def refusal() -> str:
        return alpha.try_kubectl("create", "service", "loadbalancer", "other", "--tcp=80", "--dry-run=server").err

    alpha.apply(pod_manifest("seen"), service_manifest("default", "door", type="LoadBalancer"))
    try:
        address = alpha.get("service", "door")["spec"]["clusterIP"]
        eventually(
            lambda: [entry["ip"] for entry in ingress_addresses(alpha, "door")] == [address],
            what="the cluster address",
        )

        set_policy("Refuse")
        words = "spec.type: LoadBalancer is not allowed for this tenant; use ClusterIP"
        eventually(lambda: words in refusal(), what="the refusal")
        alpha.kubectl("label", "service", "door", "old=yes")

        set_policy("Forward")
        below = ("service", "door", "-n", "alpha--default")
        eventually(lambda: platform.compute.get(*below)["spec"]["type"] == "LoadBalancer", what="the type below")
        outer = [{"ip": "192.0.2.7", "ipMode": "VIP"}]
        status = json.dumps({"status": {"loadBalancer": {"ingress": outer}}})
        platform.compute.kubectl("patch", *below, "--subresource=status", "--type=merge", "-p", status)
        eventually(lambda: ingress_addresses(alpha, "door") == outer, what="the compute cluster's address")
    finally:
        set_policy("ClusterAddress")
    eventually(lambda: platform.compute.get(*below)["spec"]["type"] == "ClusterIP", what="the type taken back")
    eventually(
        lambda: [entry["ip"] for entry in ingress_addresses(alpha, "door")] == [address],
        what="the cluster address again",
    )
    eventually(lambda: not refusal(), what="the type allowed again")
    alpha.kubectl("delete", "pod,service", "seen", "door", "--ignore-not-found", "--wait=false")


def test_service_address_leads_to_the_tenants_pods(sides: dict[str, TenantServices]) -> None:
    addresses = {name: side.address("web") for name, side in sides.items()}
    assert addresses["alpha"] != addresses["beta"]
    for name, side in sides.items():
        assert distinct_answers(side, addresses[name]) == side.hosts
        sticky = side.address("sticky")
        eventually(lambda side=side, sticky=sticky: side.caller.can_reach(f"http://{sticky}/"))  # type: ignore[misc]
        assert len({side.caller.fetch(f"http://{sticky}/") for _ in range(8)}) == 1


def distinct_answers(side: TenantServices, address: str) -> set[str]:
    """Return the answers of the pods behind an address, once there are as many as pods.

    The choice of a pod is random, and kube-proxy learns of a ready pod with a delay.
    """
    answers: set[str] = set()

    def have_all_answered() -> bool:
        if side.caller.can_reach(f"http://{address}/"):
            answers.update(side.caller.fetch(f"http://{address}/") for _ in range(8))
        return len(answers) >= len(side.hosts)

    eventually(have_all_answered, what=f"all pods behind {address}")
    return answers


def test_service_selecting_by_scheduler_labels_leads_to_its_pods(sides: dict[str, TenantServices]) -> None:
    for side in sides.values():
        address = side.address("board")
        eventually(lambda side=side, address=address: side.caller.can_reach(f"http://{address}/"))  # type: ignore[misc]
        assert side.caller.fetch(f"http://{address}/") in side.hosts


def test_service_follows_the_readiness_gate(sides: dict[str, TenantServices]) -> None:
    side = sides["alpha"]
    warm = pod_manifest("warm", command="mkdir /w; echo warm > /w/index.html; exec httpd -f -p 8080 -h /w", **REAL)
    warm["metadata"] |= {"namespace": NAMESPACE, "labels": {"app": "warm"}}
    warm["spec"]["readinessGates"] = [{"conditionType": GATE}]
    ports = [{"port": 80, "targetPort": 8080}]
    side.cluster.apply(warm, service_manifest(NAMESPACE, "warm", selector={"app": "warm"}, ports=ports))
    ready = ("pod/warm", "-n", NAMESPACE, patience_option(60))
    side.cluster.kubectl("wait", *ready, "--for=condition=ContainersReady", timeout=70)
    url = f"http://{side.address('warm')}/"
    assert not side.caller.can_reach(url)
    _set_gate(side.cluster, "True")
    eventually(lambda: side.caller.can_reach(url), what="the Service leads to the pod")
    side.cluster.kubectl("wait", *ready, "--for=condition=Ready", timeout=70)
    _set_gate(side.cluster, "False")
    eventually(lambda: not side.caller.can_reach(url), what="the Service leads to no pod")
    side.cluster.kubectl("wait", *ready, "--for=condition=Ready=false", timeout=70)
    side.cluster.kubectl("delete", "pod/warm", "service/warm", "-n", NAMESPACE, "--wait=false")


def _set_gate(cluster: Cluster, status: str) -> None:
    patch = json.dumps({"status": {"conditions": [{"type": GATE, "status": status}]}})
    patching = ("--subresource=status", "--type=strategic", "-p", patch)
    cluster.kubectl("patch", "pod", "warm", "-n", NAMESPACE, *patching)


def test_service_ranges_are_the_tenants_and_exist_in_the_compute_cluster(
    platform: Platform, sides: dict[str, TenantServices]
) -> None:
    ranges = {}
    for name, side in sides.items():
        (cidr,) = platform.compute.get("servicecidr", f"vkgateway-{name}")["spec"]["cidrs"]
        ranges[name] = ipaddress.ip_network(cidr)
        assert ipaddress.ip_address(side.address("web")) in ranges[name]
        below = eventually(partial(platform.compute.find, "service", "web", "-n", f"{name}--{NAMESPACE}"))
        assert below is not None
        assert below["spec"]["clusterIP"] == side.address("web")
    assert not ranges["alpha"].overlaps(ranges["beta"])


def test_every_form_of_a_service_name_resolves(sides: dict[str, TenantServices]) -> None:
    forms = ["web", f"web.{NAMESPACE}", f"web.{NAMESPACE}.svc", f"web.{DOMAIN}", f"web.{DOMAIN}.", "alias"]
    for side in sides.values():
        address = side.address("web")
        eventually(lambda side=side: side.caller.resolve("web", "alias")["alias"])  # type: ignore[misc]
        assert side.caller.resolve(*forms) == {form: [address] for form in forms}
        assert side.caller.fetch(f"http://web.{NAMESPACE}/") in side.hosts


def test_headless_and_stateful_set_names_resolve_to_pod_addresses(sides: dict[str, TenantServices]) -> None:
    for side in sides.values():
        pods = side.cluster.get("pods", "-n", NAMESPACE, "-l", "app=web")["items"]
        addresses = {found["metadata"]["name"]: found["status"]["podIP"] for found in pods}
        both = sorted(addresses.values())
        eventually(lambda side=side, both=both: side.caller.resolve("peers")["peers"] == both)  # type: ignore[misc]
        found = side.caller.resolve("peers", "web-0.peers", f"web-1.peers.{DOMAIN}")
        assert found["peers"] == both
        assert found["web-0.peers"] == [addresses["web-0"]]
        assert found[f"web-1.peers.{DOMAIN}"] == [addresses["web-1"]]
        assert side.caller.fetch("http://web-1.peers:8080/") == f"web-1 of {side.name}"


def test_srv_records_have_port_and_target(sides: dict[str, TenantServices]) -> None:
    for side in sides.values():
        (server,) = side.caller.name_servers()
        targets = {"web": [f"web.{DOMAIN}:80"], "peers": [f"web-{n}.peers.{DOMAIN}:8080" for n in (0, 1)]}
        for name, expected in targets.items():
            eventually(partial(has_targets, server, f"_http._tcp.{name}.{DOMAIN}", expected), what=f"ports of {name}")


def has_targets(server: str, name: str, expected: list[str]) -> bool:
    """Return whether a name server knows these ports. It learns of a pod after that is ready."""
    return query_server(server, name, SRV) == expected


def test_service_variables_have_the_same_addresses(sides: dict[str, TenantServices]) -> None:
    for side in sides.values():
        found = side.variables()
        assert found["WEB_SERVICE_HOST"] == side.address("web")
        assert found["WEB_SERVICE_PORT"] == found["WEB_SERVICE_PORT_HTTP"] == "80"
        assert found["WEB_PORT_80_TCP_ADDR"] == side.address("web")
        assert "PEERS_SERVICE_HOST" not in found
        assert found["KUBERNETES_SERVICE_HOST"] == side.address("kubernetes", "default")
        assert found["KUBERNETES_SERVICE_PORT"] == "443"


def test_api_server_is_at_its_service_with_a_trusted_certificate(
    sides: dict[str, TenantServices],
) -> None:
    for name, side in sides.items():
        ca = side.cluster.kubectl("exec", "-n", NAMESPACE, "caller", "--", "cat", CA)
        address = side.address("kubernetes", "default")
        names = ["kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"]
        assert side.caller.resolve(*names) == {name: [address] for name in names}
        for host in (address, *names):
            assert ["DNS", "kubernetes.default.svc"] in side.caller.certificate_names(host, 443, ca=ca)
        other_tenant = sides["beta" if name == "alpha" else "alpha"]
        strange = other_tenant.cluster.kubectl("exec", "-n", NAMESPACE, "caller", "--", "cat", CA)
        with pytest.raises(AssertionError, match="CERTIFICATE_VERIFY_FAILED"):
            side.caller.certificate_names(address, 443, ca=strange)


def test_services_of_other_tenants_do_not_resolve(sides: dict[str, TenantServices]) -> None:
    strange = [f"web.beta--{NAMESPACE}", f"web.beta--{NAMESPACE}.svc.cluster.local"]
    assert sides["alpha"].caller.resolve(*strange) == {name: [] for name in strange}


def test_kube_dns_names_the_pods_name_server(sides: dict[str, TenantServices]) -> None:
    for side in sides.values():
        (server,) = side.caller.name_servers()
        assert side.address("kube-dns", "kube-system") == server
        names = ["kube-dns.kube-system", "kube-dns.kube-system.svc.cluster.local"]
        assert side.caller.resolve(*names) == {name: [server] for name in names}
        chosen = side.cluster.get("endpointslices", "-n", "kube-system", "-l", "kubernetes.io/service-name=kube-dns")
        (slice_,) = chosen["items"]
        (endpoint,) = slice_["endpoints"]
        assert endpoint["conditions"] == {"ready": True}
        assert [port["name"] for port in slice_["ports"]] == ["dns", "dns-tcp"]
        events = side.cluster.get("events", "-n", "kube-system")["items"]
        assert [event for event in events if event["involvedObject"]["name"] == "kube-dns"] == []


def test_service_is_reachable_from_its_creation_to_its_deletion(sides: dict[str, TenantServices]) -> None:
    side = sides["alpha"]
    side.cluster.apply(service_manifest(NAMESPACE, "later"))
    address = side.address("later")
    eventually(lambda: side.caller.can_reach(f"http://{address}/"), what="its address leads to the pods")
    eventually(lambda: side.caller.resolve("later")["later"] == [address], what="its name is known")
    side.cluster.kubectl("delete", "service", "later", "-n", NAMESPACE)
    eventually(lambda: not side.caller.can_reach(f"http://{address}/"), what="its address leads nowhere")


def test_network_policies_are_forwarded_within_the_isolation(
    platform: Platform, sides: dict[str, TenantServices]
) -> None:
    side = sides["alpha"]
    below = ("-n", f"alpha--{NAMESPACE}")
    fence = platform.compute.get("networkpolicy", "vkgateway-tenant", *below)["spec"]
    own_pods = {"namespaceSelector": {"matchLabels": {"vkgateway.io/tenant": "alpha"}}}
    control_plane = {"namespaceSelector": {"matchLabels": {"vkgateway.io/control-plane": "alpha"}}}
    assert fence["ingress"] == [{"from": [own_pods]}, {"from": [control_plane]}]
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web", "namespace": NAMESPACE},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": "http"}]}]},
    }
    side.cluster.apply(policy)
    compute_policy = eventually(lambda: platform.compute.find("networkpolicy", "web", *below))
    assert compute_policy is not None
    assert compute_policy["spec"]["ingress"] == [{"from": [own_pods], "ports": [{"port": "http", "protocol": "TCP"}]}]
    eventually(
        lambda: (
            platform.compute.get("networkpolicy", "vkgateway-tenant", *below)["spec"]["ingress"]
            == [{"from": [control_plane]}]
        )
    )
    opened = eventually(lambda: platform.compute.get("networkpolicy", "vkgateway-tenant-ingress-0", *below)["spec"])
    assert opened["podSelector"]["matchExpressions"] == [{"key": "app", "operator": "NotIn", "values": ["web"]}]
    side.cluster.kubectl("delete", "networkpolicy", "web", "-n", NAMESPACE)
    eventually(lambda: platform.compute.get("networkpolicy", *below)["items"][1:] == [])
    eventually(lambda: platform.compute.get("networkpolicy", "vkgateway-tenant", *below)["spec"] == fence)


def test_fqdn_hostname_uses_the_tenant_domain(sides: dict[str, TenantServices]) -> None:
    cluster = sides["alpha"].cluster
    named = pod_manifest("full", hostname="h", subdomain="peers", setHostnameAsFQDN=True, **REAL)
    named["metadata"]["namespace"] = NAMESPACE
    cluster.apply(named)
    if COMPUTE_MINOR < HOSTNAME_OVERRIDE_SINCE:
        dropped = "would drop spec.hostnameOverride (or setHostnameAsFQDN"
        event_options = "-n", NAMESPACE, "--field-selector", "involvedObject.name=full"
        eventually(
            lambda: dropped in cluster.kubectl("get", "events", *event_options),
            what="a refusal",
        )
    else:
        cluster.kubectl("wait", "pod/full", "-n", NAMESPACE, "--for=condition=Ready", patience_option(90), timeout=100)
        full = f"h.peers.{DOMAIN}"
        assert cluster.kubectl("exec", "-n", NAMESPACE, "full", "--", "hostname").strip() == full
        assert full in cluster.kubectl("exec", "-n", NAMESPACE, "full", "--", "cat", "/etc/hosts")
    cluster.kubectl("delete", "pod", "full", "-n", NAMESPACE, timeout=100)

"""A tenant's pod as an attacker: it reaches its tenant's pods and servers, and no others.

The attacks run inside the pod with the image's programs, which tests those, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.e2e.cluster import REAL, Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience_option

NAMESPACE = "fences"
_SERVE = "mkdir /tmp/w; echo web of $TENANT > /tmp/w/index.html; exec httpd -f -p 8080 -h /tmp/w"
_UNPRIVILEGED = {
    "runAsUser": 1000,
    "runAsNonRoot": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class TenantNetwork(NamedTuple):
    """Tenant cluster, with the addresses of its web server."""

    cluster: Cluster
    pod: str
    service: str

    def run_script(self, script: str, *, pod: str = "client") -> str:
        """Run a script in a pod, which must succeed."""
        return self.cluster.kubectl("exec", "-n", NAMESPACE, pod, "--", "sh", "-c", script, timeout=60)

    def fetch_page(self, *, pod: str) -> str:
        """Return the page of the tenant's Service as a pod sees it; "" if the Service does not answer."""
        return self.run_script("wget -T 5 -q -O - http://web || true", pod=pod).strip()


def web_server(tenant: str) -> list[Document]:
    container = {
        "env": [{"name": "TENANT", "value": tenant}],
        "ports": [{"name": "http", "containerPort": 8080}],
        "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 1},
    }
    server = pod_manifest("web", command=_SERVE, container=container, **REAL)
    server["metadata"] |= {"namespace": NAMESPACE, "labels": {"app": "web"}}
    spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": NAMESPACE}, "spec": spec}
    return [service, server]


def client_pod(name: str, **container: object) -> Document:
    pod = pod_manifest(name, container=container, **REAL)
    pod["metadata"] |= {"namespace": NAMESPACE, "labels": {"app": name}}
    return pod


@pytest.fixture(scope="module")
def places(platform: Platform, alpha: Cluster, beta: Cluster) -> Iterator[tuple[TenantNetwork, TenantNetwork]]:
    """Yield alpha with a web server and two clients, and beta with a web server."""
    if not platform.real:
        pytest.skip("no real node here")
    clusters = {"alpha": alpha, "beta": beta}
    for name, cluster in clusters.items():
        cluster.create_namespace(NAMESPACE)
        cluster.apply(*web_server(name))
    alpha.apply(client_pod("client"), client_pod("unprivileged", securityContext=_UNPRIVILEGED))
    for cluster in clusters.values():
        cluster.kubectl(
            "wait", "-n", NAMESPACE, "--for=condition=Ready", "pod", "--all", patience_option(90), timeout=100
        )
    networks = tuple(
        TenantNetwork(
            cluster,
            cluster.get("pod", "web", "-n", NAMESPACE)["status"]["podIP"],
            cluster.get("service", "web", "-n", NAMESPACE)["spec"]["clusterIP"],
        )
        for cluster in clusters.values()
    )
    # A Service leads to its pods a moment after they are ready.
    eventually(lambda: networks[0].fetch_page(pod="client"), what="the Service of alpha")
    yield networks  # type: ignore[misc]
    for cluster in clusters.values():
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def open_endpoints(place: TenantNetwork, doors: dict[str, tuple[str, int]]) -> set[str]:
    """Return the names of the endpoints that accept a TCP connection."""
    tries = (f"nc -w 2 {host} {port} </dev/null >/dev/null 2>&1 && echo {name}" for name, (host, port) in doors.items())
    return set(place.run_script(f"{'; '.join(tries)}; true").split())


def service_endpoint(platform: Platform, service: str) -> tuple[str, int]:
    """Return host and port behind a Service of the platform."""
    found = platform.compute.get("endpointslice", service, "-n", "vkgateway-system")
    return found["endpoints"][0]["addresses"][0], found["ports"][0]["port"]


def test_image_programs_work(places: tuple[TenantNetwork, TenantNetwork]) -> None:
    alpha, _ = places
    for name in ("client", "unprivileged"):
        assert alpha.fetch_page(pod=name) == "web of alpha"
        assert alpha.service in alpha.run_script(f"nslookup web.{NAMESPACE}.svc.cluster.local", pod=name)
        assert " 0% packet loss" in alpha.run_script(f"ping -c 1 -W 5 {alpha.pod}", pod=name)
        request = r"printf 'GET / HTTP/1.0\r\n\r\n' | nc -w 5 web 80"
        assert "web of alpha" in alpha.run_script(request, pod=name)


def test_endpoints_of_others_are_not_reachable(platform: Platform, places: tuple[TenantNetwork, TenantNetwork]) -> None:
    alpha, beta = places
    node = next(
        address["address"]
        for address in platform.compute.get("node", "real-0")["status"]["addresses"]
        if address["type"] == "InternalIP"
    )
    api = compute_api_endpoint(platform)
    doors = {
        "own-pod": (alpha.pod, 8080),
        "own-service": (alpha.service, 80),
        "own-api": service_endpoint(platform, "api-alpha"),
        "own-names": service_endpoint(platform, "dns-alpha"),
        "own-node": kubelet_endpoint(alpha.cluster),
        "pod": (beta.pod, 8080),
        "service": (beta.service, 80),
        "api": service_endpoint(platform, "api-beta"),
        "names": service_endpoint(platform, "dns-beta"),
        "compute-api": api,
        "compute-api-service": (cluster_ip(platform, "kubernetes", "default"), 443),
        "compute-dns": (node, 53),
        "compute-dns-service": (cluster_ip(platform, "kube-dns", "kube-system"), 53),
        "kubelet": (node, 10250),
        "etcd": (api[0], 2379),
        "hollow-kubelet": (api[0], 10247),
        "node-behind-link": (f"{alpha.pod.rpartition('.')[0]}.1", 10250),
    }
    assert open_endpoints(alpha, doors) == {"own-pod", "own-service", "own-api", "own-names", "own-node"}
    assert beta.pod not in alpha.run_script(f"ping -c 1 -W 1 {beta.pod} | grep ' 0% packet loss' || true")


@pytest.mark.embedded_gateway(reason="API servers in pods have NetworkPolicies, which other tests check")
def test_api_server_reaches_no_pod_of_others(places: tuple[TenantNetwork, TenantNetwork]) -> None:
    """The admin writes the addresses of a Node and of a pod, to which the API server then connects."""
    alpha, beta = places
    node: Document = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "forged"}}
    pod = pod_manifest("forged", nodeName="forged")
    pod["metadata"]["namespace"] = NAMESPACE
    alpha.cluster.apply(node, pod)
    try:
        at = {"addresses": [{"type": "InternalIP", "address": beta.pod}]}
        running = {"phase": "Running", "podIP": beta.pod, "podIPs": [{"ip": beta.pod}]}
        for target, status in (("node/forged", at), ("pod/forged", running)):
            patch = ("--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))
            alpha.cluster.kubectl("patch", target, "-n", NAMESPACE, *patch)
        own = f"/api/v1/namespaces/{NAMESPACE}"
        for path in ("/api/v1/nodes/http:forged:8080", f"{own}/pods/forged:8080"):
            answer = alpha.cluster.try_kubectl("get", "--raw", f"{path}/proxy/")
            assert answer.code != 0, f"{path}: {answer.out}"
            assert "code 403" in answer.err, f"{path}: {answer.err}"
        assert alpha.cluster.kubectl("get", "--raw", f"{own}/pods/web:8080/proxy/").strip() == "web of alpha"
        assert alpha.cluster.kubectl("get", "--raw", f"{own}/services/web:80/proxy/").strip() == "web of alpha"
    finally:
        alpha.cluster.kubectl("delete", "pod/forged", "-n", NAMESPACE, "--grace-period=0", "--force")
        alpha.cluster.kubectl("delete", "node/forged")


def kubelet_endpoint(cluster: Cluster) -> tuple[str, int]:
    """Return host and port of the virtual node, which metrics-server and others in pods call."""
    status = cluster.get("node", "real.local")["status"]
    address = next(entry["address"] for entry in status["addresses"] if entry["type"] == "InternalIP")
    return address, status["daemonEndpoints"]["kubeletEndpoint"]["Port"]


def compute_api_endpoint(platform: Platform) -> tuple[str, int]:
    found = platform.compute.get("endpointslice", "kubernetes", "-n", "default")
    return found["endpoints"][0]["addresses"][0], found["ports"][0]["port"]


def cluster_ip(platform: Platform, name: str, namespace: str) -> str:
    address: str = platform.compute.get("service", name, "-n", namespace)["spec"]["clusterIP"]
    return address


def test_name_servers_hide_names_of_others(platform: Platform, places: tuple[TenantNetwork, TenantNetwork]) -> None:
    alpha, beta = places
    reverse = f"{'.'.join(reversed(beta.pod.split('.')))}.in-addr.arpa"
    names = (f"web.beta--{NAMESPACE}.svc.cluster.local", "kube-dns.kube-system.svc.cluster.local", reverse)
    forwarder = platform.compute.get("node", "real-0")["status"]["addresses"][0]["address"]
    for server in ("", cluster_ip(platform, "kube-dns", "kube-system"), f"{forwarder}:54"):
        for name in names[: 3 if server else 1]:
            output = alpha.run_script(f"timeout 3 nslookup {name} {server} 2>&1 || true")
            assert not any(line.startswith(("Name:", reverse)) for line in output.splitlines()), output


def test_tenant_network_policies_are_enforced_and_probes_pass(places: tuple[TenantNetwork, TenantNetwork]) -> None:
    alpha, _ = places
    spec = {
        "podSelector": {"matchLabels": {"app": "web"}},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": "http"}]}],
    }
    policy = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "web"}, "spec": spec}
    policy["metadata"] = {"name": "web", "namespace": NAMESPACE}
    assert alpha.fetch_page(pod="unprivileged") == "web of alpha"
    alpha.cluster.apply(policy)
    eventually(lambda: not alpha.fetch_page(pod="unprivileged"), what="a policy in force")
    eventually(lambda: alpha.fetch_page(pod="client") == "web of alpha", what="an allowed client")
    conditions = alpha.cluster.get("pod", "web", "-n", NAMESPACE)["status"]["conditions"]
    assert {"Ready": "True"}.items() <= {condition["type"]: condition["status"] for condition in conditions}.items()
    alpha.cluster.kubectl("delete", "networkpolicy", "web", "-n", NAMESPACE)
    eventually(lambda: alpha.fetch_page(pod="unprivileged"), what="the policy gone")

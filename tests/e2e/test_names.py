"""Services and names of two tenants that use the same names: each resolves to its tenant's pods.

The queries run on this machine, which reaches the real node's Services: static BusyBox cannot resolve names.
"""

from __future__ import annotations

import contextlib
import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually
from tests.e2e.dns import SRV, query_server
from tests.e2e.webservers import service_manifest, web_server_manifests
from tests.support.machine import patience, patience_option

NAMESPACE = "names"
DOMAIN = f"{NAMESPACE}.svc.cluster.local"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch_page(address: str, port: int = 80) -> str:
    with OPENER.open(f"http://{address}:{port}/", timeout=patience(5)) as answer:
        text: str = answer.read().decode()
    return text.strip()


@pytest.fixture(scope="module")
def tenants(platform: Platform, alpha: Cluster, beta: Cluster) -> Iterator[dict[str, Cluster]]:
    """Yield both tenants, with the same Services and StatefulSet."""
    if not platform.real:
        pytest.skip("no real node here")
    clusters = {"alpha": alpha, "beta": beta}
    for name, cluster in clusters.items():
        cluster.create_namespace(NAMESPACE)
        cluster.apply(
            service_manifest(NAMESPACE, "web"),
            service_manifest(NAMESPACE, "peers", clusterIP="None"),
            service_manifest(NAMESPACE, "alias", type="ExternalName", externalName=f"web.{DOMAIN}", selector=None),
            service_manifest(
                NAMESPACE, "spy", type="ExternalName", externalName="web.beta--names.svc.cluster.local", selector=None
            ),
            service_manifest(NAMESPACE, "manual", selector=None),
            web_server_manifests(NAMESPACE, name),
        )
    for cluster in clusters.values():
        cluster.kubectl("rollout", "status", "sts/web", "-n", NAMESPACE, patience_option(90), timeout=100)
    yield clusters
    for cluster in clusters.values():
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", patience_option(90), timeout=100)


def name_server(cluster: Cluster) -> str:
    """Return the name server in a tenant pod's resolver configuration."""
    text = cluster.kubectl("exec", "-n", NAMESPACE, "web-0", "--", "cat", "/etc/resolv.conf")
    assert f"search {DOMAIN} svc.cluster.local cluster.local" in text
    (server,) = [line.split()[1] for line in text.splitlines() if line.startswith("nameserver")]
    return server


def resolve_known(server: str, name: str) -> list[str]:
    """Return the addresses of a name once it has any, because controllers write endpoints with a delay."""
    return eventually(lambda: query_server(server, name))


def distinct_answers(address: str, pods: int) -> set[str]:
    """Return the answers of the pods behind an address, once `pods` different ones have answered.

    The choice of a pod is random, and kube-proxy learns of a ready pod with a delay.
    """
    answers: set[str] = set()

    def have_all_answered() -> bool:
        with contextlib.suppress(OSError):  # kube-proxy knows no pod yet
            answers.update(fetch_page(address) for _ in range(12))
        return len(answers) >= pods

    eventually(have_all_answered, what=f"{pods} pods behind {address}")
    return answers


def test_names_resolve_to_the_tenants_pods(tenants: dict[str, Cluster]) -> None:
    for name, cluster in tenants.items():
        server = name_server(cluster)
        (address,) = resolve_known(server, f"web.{DOMAIN}")
        assert resolve_known(server, f"alias.{DOMAIN}") == [address]
        assert distinct_answers(address, 2) == {f"web-0 of {name}", f"web-1 of {name}"}
        first, _ = both = [resolve_known(server, f"web-{number}.peers.{DOMAIN}")[0] for number in (0, 1)]
        assert fetch_page(first, 8080) == f"web-0 of {name}"
        assert query_server(server, f"peers.{DOMAIN}") == sorted(both)
        assert query_server(server, f"_http._tcp.peers.{DOMAIN}", SRV) == [
            f"web-{n}.peers.{DOMAIN}:8080" for n in (0, 1)
        ]


def test_names_of_other_tenants_and_the_compute_cluster_do_not_resolve(tenants: dict[str, Cluster]) -> None:
    server = name_server(tenants["alpha"])
    for name in (f"spy.{DOMAIN}", "web.beta--names.svc.cluster.local", "dns-alpha.vkgateway-system.svc.cluster.local"):
        assert query_server(server, name) == []


def test_custom_endpoints_lead_to_the_tenants_pods_only(platform: Platform, tenants: dict[str, Cluster]) -> None:
    alpha = tenants["alpha"]
    own_address, other_address = (
        resolve_known(name_server(cluster), f"web-0.peers.{DOMAIN}")[0] for cluster in tenants.values()
    )
    document = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "mine", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "manual"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in (own_address, other_address)],
    }
    alpha.apply(document)
    below = eventually(lambda: platform.compute.find("endpointslice", "mine", "-n", "alpha--names"))
    assert below is not None
    assert [endpoint["addresses"] for endpoint in below["endpoints"]] == [[own_address]]
    events = eventually(
        lambda: alpha.get("events", "-n", NAMESPACE, "--field-selector", "reason=EndpointRefused")["items"]
    )
    assert other_address in events[0]["message"]


def test_api_server_name_resolves_at_its_usual_port(platform: Platform, tenants: dict[str, Cluster]) -> None:
    for name, cluster in tenants.items():
        hosts = cluster.kubectl("exec", "-n", NAMESPACE, "web-0", "--", "cat", "/etc/hosts")
        (line,) = [line.split() for line in hosts.splitlines() if "kubernetes.default.svc" in line]
        found = platform.compute.get("service", f"api-{name}", "-n", "vkgateway-system")
        assert found["spec"]["clusterIP"] == line[0]
        assert found["spec"]["ports"][0]["port"] == 443

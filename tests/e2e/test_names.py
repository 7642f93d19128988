"""Services and names of two tenants that call everything alike: each finds its own pods, and nobody else's.

Asked from this machine, which reaches the real node's Services: BusyBox, linked statically, cannot look names up.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually
from tests.e2e.dns import SRV, ask
from tests.e2e.webservers import servers, service

NAMESPACE = "names"
DOMAIN = f"{NAMESPACE}.svc.cluster.local"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def fetch(address: str, port: int = 80) -> str:
    with OPENER.open(f"http://{address}:{port}/", timeout=5) as answer:
        text: str = answer.read().decode()
    return text.strip()


@pytest.fixture(scope="module")
def tenants(platform: Platform, alpha: Cluster, beta: Cluster) -> Iterator[dict[str, Cluster]]:
    """Both tenants, with the same Services and StatefulSet."""
    if not platform.real:
        pytest.skip("no real node here")
    both = {"alpha": alpha, "beta": beta}
    for name, cluster in both.items():
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        cluster.apply(
            service(NAMESPACE, "web"),
            service(NAMESPACE, "peers", clusterIP="None"),
            service(NAMESPACE, "alias", type="ExternalName", externalName=f"web.{DOMAIN}", selector=None),
            service(
                NAMESPACE, "spy", type="ExternalName", externalName="web.beta--names.svc.cluster.local", selector=None
            ),
            service(NAMESPACE, "manual", selector=None),
            servers(NAMESPACE, name),
        )
    for cluster in both.values():
        cluster.kubectl("rollout", "status", "sts/web", "-n", NAMESPACE, "--timeout=90s", timeout=100)
    yield both
    for cluster in both.values():
        cluster.kubectl("delete", "namespace", NAMESPACE, "--wait", "--timeout=90s", timeout=100)


def name_server(cluster: Cluster) -> str:
    """Where the tenant's pods ask, as one of them has it in its file."""
    text = cluster.kubectl("exec", "-n", NAMESPACE, "web-0", "--", "cat", "/etc/resolv.conf")
    assert f"search {DOMAIN} svc.cluster.local cluster.local" in text
    (server,) = [line.split()[1] for line in text.splitlines() if line.startswith("nameserver")]
    return server


def known(server: str, name: str) -> list[str]:
    """What a name leads to, as soon as it leads anywhere: a cluster's own controllers write of pods after the fact."""
    return eventually(lambda: ask(server, name))


def answers_of_all(address: str, pods: int) -> set[str]:
    """What is answered by the pods behind an address, once so many answer: which one is asked is left to chance, and
    kube-proxy hears of a pod a while after it is ready."""
    answers: set[str] = set()

    def all_answer() -> bool:
        answers.update(fetch(address) for _ in range(12))
        return len(answers) >= pods

    eventually(all_answer, what=f"{pods} pods behind {address}")
    return answers


def test_names_lead_to_the_tenants_own_pods(tenants: dict[str, Cluster]) -> None:
    for name, cluster in tenants.items():
        server = name_server(cluster)
        (address,) = known(server, f"web.{DOMAIN}")
        assert known(server, f"alias.{DOMAIN}") == [address]
        assert answers_of_all(address, 2) == {f"web-0 of {name}", f"web-1 of {name}"}
        first, _ = (known(server, f"web-{number}.peers.{DOMAIN}")[0] for number in (0, 1))
        assert fetch(first, 8080) == f"web-0 of {name}"
        assert first in ask(server, f"peers.{DOMAIN}")
        assert ask(server, f"_http._tcp.peers.{DOMAIN}", SRV) == [f"web-{n}.peers.{DOMAIN}:8080" for n in (0, 1)]


def test_names_of_other_tenants_and_of_the_compute_cluster_do_not_exist(tenants: dict[str, Cluster]) -> None:
    server = name_server(tenants["alpha"])
    for name in (f"spy.{DOMAIN}", "web.beta--names.svc.cluster.local", "dns-alpha.vkgateway-system.svc.cluster.local"):
        assert ask(server, name) == []


def test_endpoints_of_ones_own_lead_to_ones_own_pods_only(platform: Platform, tenants: dict[str, Cluster]) -> None:
    alpha = tenants["alpha"]
    own, others = (known(name_server(cluster), f"web-0.peers.{DOMAIN}")[0] for cluster in tenants.values())
    document = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "mine", "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": "manual"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in (own, others)],
    }
    alpha.apply(document)
    below = eventually(lambda: platform.compute.find("endpointslice", "mine", "-n", "alpha--names"))
    assert below is not None
    assert [endpoint["addresses"] for endpoint in below["endpoints"]] == [[own]]
    events = eventually(
        lambda: alpha.get("events", "-n", NAMESPACE, "--field-selector", "reason=EndpointRefused")["items"]
    )
    assert others in events[0]["message"]


def test_the_api_servers_name_is_known_at_its_usual_port(platform: Platform, tenants: dict[str, Cluster]) -> None:
    for name, cluster in tenants.items():
        hosts = cluster.kubectl("exec", "-n", NAMESPACE, "web-0", "--", "cat", "/etc/hosts")
        (line,) = [line.split() for line in hosts.splitlines() if "kubernetes.default.svc" in line]
        found = platform.compute.get("service", f"api-{name}", "-n", "vkgateway-system")
        assert found["spec"]["clusterIP"] == line[0]
        assert found["spec"]["ports"][0]["port"] == 443

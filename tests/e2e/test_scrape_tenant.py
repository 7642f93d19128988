"""The Prometheus operator and Prometheus in a tenant, with the objects of the page docs/how-to/scrape-a-tenant.md."""

from __future__ import annotations

import base64
import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import Cluster, Document, eventually
from tests.e2e.controllers import run_prometheus_operator
from tests.e2e.discovery import write_targets
from tests.e2e.prometheus import Prometheus, run_prometheus
from vkgateway.api.errors import UnavailableError

pytestmark = pytest.mark.embedded_gateway(reason="Prometheus runs on the machine, not in a pod of the tenant")
PAGE = Path("docs/how-to/scrape-a-tenant.md")
PATHS = ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource")
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
CERTIFICATES = "/etc/prometheus/certs"
AUTHORITY = "/etc/prometheus/kubelet"
CONFIGURATION = ("secret", "prometheus-trial", "-n", "monitoring")
PROMETHEUS: Document = {
    "apiVersion": "monitoring.coreos.com/v1",
    "kind": "Prometheus",
    "metadata": {"name": "trial", "namespace": "monitoring"},
    "spec": {
        "version": "2.42.0",
        "replicas": 0,  # it runs on this machine
        "serviceAccountName": "prometheus",
        "scrapeInterval": "2s",
        "scrapeTimeout": "2s",
        **{f"{kind}{of}Selector": {} for kind in ("serviceMonitor", "scrapeConfig") for of in ("", "Namespace")},
    },
}


@pytest.fixture(scope="module")
def prometheus(alpha: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run Prometheus with what the operator generates, and with the page's own configuration."""
    folder = tmp_path_factory.mktemp("operator")
    objects, port_rule, plain = read_page()
    try:
        with run_prometheus_operator(alpha, folder):
            alpha.apply(*with_port(objects, port_rule, kubelet_port(alpha)), PROMETHEUS)
            generated = eventually(lambda: generated_configuration(alpha), what="three scrape configurations")
            eventually(lambda: alpha.find("endpoints", "kubelet", "-n", "kube-system"), what="endpoints of the nodes")
            write_configuration(alpha, generated, plain, folder)
        with run_prometheus(folder) as found:
            yield found
    except UnavailableError as error:
        pytest.skip(f"no Prometheus: {error}")
    finally:
        names = [f"{each['kind']}/{each['metadata']['name']}" for each in objects if each["kind"] == "ClusterRole"]
        alpha.kubectl("delete", *names, *(name.replace("Role", "RoleBinding") for name in names), "--ignore-not-found")
        alpha.try_kubectl("delete", "service/kubelet", "serviceaccount/node-metrics", "-n", "kube-system")
        alpha.try_kubectl("delete", "namespace", "monitoring", "--wait=false")


def read_page() -> tuple[list[Document], Document, Document]:
    """Return the page's objects, its rule for the port, and its configuration for Prometheus alone."""
    text = PAGE.read_text()
    found = [part for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) for part in yaml.safe_load_all(block)]
    (rules,) = [part for part in found if isinstance(part, list)]
    (plain,) = [part for part in found if "scrape_configs" in part]
    return [part for part in found if "kind" in part], rules[0], plain


def kubelet_port(cluster: Cluster) -> int:
    """Return the port of the virtual nodes."""
    port: int = cluster.get("nodes")["items"][0]["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    return port


def with_port(objects: list[Document], rule: Document, port: int) -> list[Document]:
    """Return the objects with the rule for the port of the platform's nodes in the ServiceMonitor of the nodes."""
    (monitor,) = [each for each in objects if each["metadata"]["name"] == "virtual-nodes"]
    replacement = re.sub(r"\d+$", str(port), rule["replacement"])
    for endpoint in monitor["spec"]["endpoints"]:
        endpoint["relabelings"] = [*endpoint["relabelings"], rule | {"replacement": replacement}]
    return objects


def generated_configuration(cluster: Cluster) -> Document:
    """Return the operator's configuration once it has all objects; empty before."""
    secret = cluster.find(*CONFIGURATION)
    if not secret or "prometheus.yaml.gz" not in secret.get("data", {}):
        return {}
    text = gzip.decompress(base64.b64decode(secret["data"]["prometheus.yaml.gz"])).decode()
    found: Document = yaml.safe_load(text.replace("$(SHARD)", "0").replace("$(POD_NAME)", "trial-0"))
    return found if len(found.get("scrape_configs") or ()) == len(PATHS) + 2 else {}


def write_configuration(cluster: Cluster, generated: Document, plain: Document, folder: Path) -> None:
    """Write both configurations as one, with the files that a pod of Prometheus would have."""
    mounted = cluster.get("secret", "prometheus-trial-tls-assets-0", "-n", "monitoring")["data"]
    for name, data in mounted.items():
        (folder / name).write_bytes(base64.b64decode(data))
    root = cluster.get("configmap", "kube-root-ca.crt", "-n", "monitoring")["data"]["ca.crt"]
    kubelet = cluster.get("configmap", "vkgateway-kubelet-ca", "-n", "kube-system")["data"]["ca.crt"]
    for place, content in (("account", root), ("authority", kubelet)):
        (folder / place).mkdir()
        (folder / place / "ca.crt").write_text(content)
    (folder / "account" / "token").write_text(cluster.kubectl("create", "token", "prometheus", "-n", "monitoring"))
    scrapes = generated["scrape_configs"] + plain["scrape_configs"]
    for number, scrape in enumerate(scrapes):
        write_targets(cluster, scrape, folder / f"targets-{number}.json")
    text = yaml.safe_dump({"global": generated["global"], "scrape_configs": scrapes})
    for path, mount in ((ACCOUNT, folder / "account"), (CERTIFICATES, folder), (AUTHORITY, folder / "authority")):
        text = text.replace(path, str(mount))
    (folder / "prometheus.yml").write_text(text)


def test_each_virtual_node_is_a_target_for_each_path(prometheus: Prometheus, alpha: Cluster) -> None:
    nodes = [node["metadata"]["name"] for node in alpha.get("nodes")["items"]]
    assert len(nodes) >= 2
    wanted = {(node, path) for node in nodes for path in PATHS}
    eventually(lambda: healthy_targets(prometheus, 'job="kubelet"') == wanted, seconds=60, what=str(wanted))
    cadvisor = {(node, "/metrics/cadvisor") for node in nodes}
    for job in ('job=~"scrapeConfig/.*"', 'job="virtual-nodes"'):
        eventually(lambda job=job: healthy_targets(prometheus, job) == cadvisor, seconds=60, what=job)  # type: ignore[misc]
    eventually(lambda: named_nodes(prometheus) == set(nodes), seconds=60, what="the nodes report their names")
    eventually(lambda: not prometheus.query("up == 0"), seconds=60, what="each target answers")


def test_the_tenants_api_server_is_a_target(prometheus: Prometheus) -> None:
    eventually(lambda: prometheus.query('apiserver_request_total{job="apiserver"}'), seconds=60, what="its requests")
    eventually(lambda: up_values(prometheus, "apiserver") == ["1"], seconds=60, what="the only target answers")


def named_nodes(prometheus: Prometheus) -> set[str]:
    return {each["metric"]["node"] for each in prometheus.query('kubelet_node_name{job="kubelet"}')}


def up_values(prometheus: Prometheus, job: str) -> list[str]:
    return [each["value"][1] for each in prometheus.query(f'up{{job="{job}"}}')]


def healthy_targets(prometheus: Prometheus, job: str) -> set[tuple[str, str]]:
    """Return node and path of each target of a job that answers. No two have the same."""
    found = prometheus.query(f"up{{{job}}} == 1")
    pairs = [(each["metric"]["node"], each["metric"]["metrics_path"]) for each in found]
    assert len(set(pairs)) == len(pairs)
    return set(pairs)

"""Objects that Helm renders from the chart, with default values and with others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import ALL_APIS, CHART, Document, Helm, Objects
from vkgateway.api.names import CONTROL_PLANE_LABEL, SYSTEM_NAMESPACE, TENANT_LABEL
from vkgateway.cli.check import IMAGE as CHECK_IMAGE
from vkgateway.nodes.node_stats_reader import CADVISOR, PROBES, RESOURCE, SUMMARY
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, component_labels
from vkgateway.planes.drivers.kubernetes.parameters import Parameters, parse_parameters
from vkgateway.planes.templates import SHIPPED_FOLDER
from vkgateway.serve import management_policies, rbac
from vkgateway.serve.definitions import VERSION_ANNOTATION, load_definitions
from vkgateway.settings.config import Config
from vkgateway.settings.file import load_settings

EXTERNAL = (
    "--set=etcd.enabled=false",
    "--set=datastore.endpoints={https://etcd.example.com:2379}",
    "--set=datastore.existingSecret=etcd",
)
CERT_MANAGER = ("--set=certificates.certManager.enabled=true",)
FULL = (
    "--set=replicas=2,etcd.members=3,metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true",
    "--set=metrics.dashboards.enabled=true",
    "--set=imagePullSecrets[0].name=registry,priorityClassName=high,nodeSelector.a=b,etcd.nodeSelector.a=b",
    "--set=tolerations[0].operator=Exists,etcd.tolerations[0].operator=Exists,podLabels.a=b,podAnnotations.a=b",
    "--set=extraEnv[0].name=A,extraEnv[0].value=b,serviceAccount.annotations.a=b",
    "--set=extraVolumes[0].name=logs,extraVolumeMounts[0].name=logs,extraVolumeMounts[0].mountPath=/logs",
    "--set=networkPolicy.kubeletFrom[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.etcdMetricsFrom[0].podSelector.a=b",
    "--set=metrics.readers[0].name=prometheus,metrics.readers[0].namespace=monitoring,test.pool=a100",
)
VARIANTS = [(), EXTERNAL, CERT_MANAGER, FULL]


def settings(objects: Objects, folder: Path) -> Config:
    """Return the settings as the gateway reads them."""
    file = folder / "gateway.yaml"
    file.write_text(objects.get("ConfigMap")["data"]["gateway.yaml"])
    return load_settings(file, environment={})


def parameters(config: Config) -> Parameters:
    assert config.control_planes.driver == "kubernetes"
    return parse_parameters(config.control_planes.parameters)


def test_lint_finds_nothing(helm: Helm) -> None:
    result = helm.run("lint", "--strict", str(CHART), "--namespace", SYSTEM_NAMESPACE)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("values", VARIANTS)
def test_the_gateway_accepts_its_settings(helm: Helm, tmp_path: Path, values: tuple[str, ...]) -> None:
    config = settings(helm.render(*ALL_APIS, *values), tmp_path)
    assert parameters(config).registry == "registry.k8s.io"
    assert config.data_dir == "/var/lib/vkgateway"
    assert not config.management_cluster.install_definitions
    assert config.kubelet.advertise_address == "vkgateway-kubelet.vkgateway-system.svc"


def test_settings_of_the_values_override_computed_ones(helm: Helm, tmp_path: Path) -> None:
    given = ("kubelet.port=10400", "observability.port=9000", "controlPlanes.parameters.priorityClassName=high")
    objects = helm.render(*(f"--set=config.{one}" for one in given), "--set=registry=mirror.example.com/k8s")
    config = settings(objects, tmp_path)
    assert (config.kubelet.port, config.observability.port, config.kubelet.advertise_port) == (10400, 9000, 10250)
    assert parameters(config).priority_class_name == "high"
    assert parameters(config).registry == "mirror.example.com/k8s"
    ports = {port["name"]: port["containerPort"] for port in container(objects.get("Deployment"))["ports"]}
    assert ports == {"kubelet": 10400, "health": 9000, "metrics": 9632, "page": 9633}
    assert container(objects.get("StatefulSet", "vkgateway-etcd"))["image"] == "mirror.example.com/k8s/etcd:3.6.8-0"


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("https://docs.example.com/vkgateway", "https://docs.example.com/vkgateway/how-to/alerts.html"),
        ("", "docs/how-to/alerts.md"),
    ],
)
def test_alerts_lead_to_the_given_documentation(helm: Helm, url: str, page: str) -> None:
    objects = helm.render(
        *ALL_APIS, "--set=metrics.prometheusRule.enabled=true", f"--set=metrics.prometheusRule.docsUrl={url}"
    )
    groups = objects.get("PrometheusRule")["spec"]["groups"]
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert len(links) > 20
    assert all(link.startswith(f"{page}#vkgateway") for link in links)


def test_dashboards_are_config_maps_that_grafana_selects(helm: Helm) -> None:
    objects = helm.render("--set=metrics.dashboards.enabled=true")
    for name in ("platform", "tenant", "control-planes"):
        found = objects.get("ConfigMap", f"vkgateway-dashboard-{name}")
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert json.loads(found["data"][f"vkgateway-{name}.json"])["uid"] == f"vkgateway-{name}"


def container(workload: Document) -> Document:
    """Return the only container of a workload's pods."""
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def test_pull_secrets_are_those_of_control_planes_too(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render(*ALL_APIS, *FULL)
    assert parameters(settings(objects, tmp_path)).image_pull_secrets == ("registry",)
    assert all(pod["imagePullSecrets"] == [{"name": "registry"}] for pod in objects.pods())


def test_helm_test_uses_the_mirror(helm: Helm) -> None:
    def arguments(*values: str) -> list[str]:
        found: list[str] = helm.render(*values).get("Pod", "vkgateway-test")["spec"]["containers"][0]["args"]
        return found

    assert f"--image={CHECK_IMAGE}" in arguments()
    assert "--image=mirror.example.com/k8s/pause:3.10.1" in arguments("--set=registry=mirror.example.com/k8s")
    assert "--image=example.com/web:1" in arguments("--set=test.image=example.com/web:1")


def test_a_digest_overrides_the_tag(helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    objects = helm.render(f"--set=image.digest={digest},image.repository=example.com/vkgateway,image.tag=1.0.0")
    assert container(objects.get("Deployment"))["image"] == f"example.com/vkgateway@{digest}"


@pytest.mark.parametrize("values", VARIANTS)
def test_pods_meet_the_level_restricted(helm: Helm, values: tuple[str, ...]) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/."""
    for pod in helm.render(*ALL_APIS, *values).pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["runAsUser"] == 65532
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["enableServiceLinks"] is False
        assert "hostNetwork" not in pod
        for one in pod["containers"]:
            security = one["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert one["resources"]["requests"]


def test_definitions_are_those_of_the_gateway_and_kept(helm: Helm) -> None:
    objects = helm.render()
    for definition in load_definitions():
        rendered = objects.get("CustomResourceDefinition", definition["metadata"]["name"])
        assert rendered["spec"] == definition["spec"]
        annotations = definition["metadata"].get("annotations", {})
        assert rendered["metadata"]["annotations"] == annotations | {"helm.sh/resource-policy": "keep"}
        assert VERSION_ANNOTATION in annotations
    assert not helm.render("--set=crds.install=false").kinds("CustomResourceDefinition")


def test_roles_are_those_of_the_plain_manifests(helm: Helm) -> None:
    objects = helm.render()
    plain = [*rbac.management_roles(), *rbac.control_plane_roles(), *rbac.compute_roles()]
    assert len(plain) > 8
    for one in plain:
        kind, name = one["kind"], one["metadata"]["name"]
        if kind == "Namespace" or name == "vkgateway-definitions":
            assert objects.find(kind, name) is None
        elif kind.endswith("Role"):
            assert objects.get(kind, name)["rules"] == one["rules"]
        else:
            bound = objects.get(kind, name)
            assert bound["roleRef"] == one["roleRef"]
            assert bound["subjects"] == [
                {"kind": "ServiceAccount", "name": "vkgateway", "namespace": "vkgateway-system"}
            ]
    apart = helm.render("--set=rbac.compute=false")
    assert apart.find("ClusterRole", "vkgateway-compute") is None
    assert apart.get("ClusterRole", "vkgateway-control-planes")


def test_a_new_chart_restarts_no_pod_that_does_not_change(helm: Helm, tmp_path: Path) -> None:
    newer = tmp_path / "vkgateway"
    shutil.copytree(CHART, newer)
    metadata = yaml.safe_load((newer / "Chart.yaml").read_text())
    (newer / "Chart.yaml").write_text(yaml.safe_dump(metadata | {"version": "9.9.9", "appVersion": "9.9.9"}))
    old, new = helm.render("--set=image.tag=1.0.0"), helm.render("--set=image.tag=1.0.0", chart=newer)
    for kind, name in (("StatefulSet", "vkgateway-etcd"), ("Deployment", "vkgateway")):
        assert new.get(kind, name)["spec"] == old.get(kind, name)["spec"]
        assert new.get(kind, name)["metadata"] != old.get(kind, name)["metadata"]


def test_changed_settings_restart_the_gateway_only(helm: Helm) -> None:
    old, new = helm.render(), helm.render("--set=config.logging.level=debug")
    assert new.get("Deployment")["spec"]["template"] != old.get("Deployment")["spec"]["template"]
    assert new.get("StatefulSet", "vkgateway-etcd") == old.get("StatefulSet", "vkgateway-etcd")


def test_disruption_budgets_exist_from_two_pods_on(helm: Helm) -> None:
    assert not helm.render("--set=replicas=1").kinds("PodDisruptionBudget")
    budgets = helm.render("--set=replicas=2,etcd.members=3").kinds("PodDisruptionBudget")
    assert {one["metadata"]["name"] for one in budgets} == {"vkgateway", "vkgateway-etcd"}
    assert all(one["spec"]["maxUnavailable"] == 1 for one in budgets)
    assert all("unhealthyPodEvictionPolicy" in one["spec"] for one in budgets)


def test_without_the_page_nothing_of_it_is_left(helm: Helm) -> None:
    with_page, without = helm.render(), helm.render("--set=config.page.enabled=false")
    assert "vkgateway-page" in {one["metadata"]["name"] for one in with_page.kinds("Service")}
    assert "vkgateway-page" not in {one["metadata"]["name"] for one in without.kinds("Service")}
    assert "page" not in {port["name"] for port in container(without.get("Deployment"))["ports"]}
    policy = next(one for one in without.kinds("NetworkPolicy") if one["metadata"]["name"] == "vkgateway")
    assert 9633 not in {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}


def test_selectors_match_their_pods(helm: Helm) -> None:
    objects = helm.render("--set=replicas=2,etcd.members=3")
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in objects.kinds("Deployment", "StatefulSet")
    }
    wanted = {
        "vkgateway": "vkgateway",
        "vkgateway-kubelet": "vkgateway",
        "vkgateway-metrics": "vkgateway",
        "vkgateway-page": "vkgateway",
        "vkgateway-etcd": "vkgateway-etcd",
    }
    for one in objects.kinds("Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment", "StatefulSet"):
        selector = selector_labels(one)
        matching = {name for name, labels in pods.items() if selector.items() <= labels.items()}
        assert matching == {wanted[one["metadata"]["name"]]}, one["metadata"]


def selector_labels(one: Document) -> dict[str, str]:
    """Return the labels by which an object selects pods."""
    spec = one["spec"]
    found: Any = spec["podSelector"] if one["kind"] == "NetworkPolicy" else spec["selector"]
    labels: dict[str, str] = found.get("matchLabels", found)
    return labels


def test_control_planes_reach_the_gateway_and_etcd(helm: Helm) -> None:
    objects = helm.render()
    control_plane = component_labels("alpha", CONTROL_PLANE)
    for policy, port in (("vkgateway", 10250), ("vkgateway-etcd", 2379)):
        peers = [
            peer
            for rule in objects.get("NetworkPolicy", policy)["spec"]["ingress"]
            if port in [one["port"] for one in rule["ports"]]
            for peer in rule["from"]
        ]
        assert any(is_peer(peer, namespace=control_plane, pod=control_plane) for peer in peers)
        assert not any(is_peer(peer, namespace={"team": "a"}, pod=control_plane) for peer in peers)
    etcd = objects.get("NetworkPolicy", "vkgateway-etcd")["spec"]["ingress"]
    assert not any(
        is_peer(peer, namespace={TENANT_LABEL: "alpha"}, pod=control_plane) for rule in etcd for peer in rule["from"]
    )


def is_peer(peer: Document, *, namespace: dict[str, str], pod: dict[str, str]) -> bool:
    """Return whether a peer of a policy selects a pod of another namespace."""
    if "namespaceSelector" not in peer:
        return False
    keys = [one["key"] for one in peer["namespaceSelector"]["matchExpressions"]]
    assert set(keys) <= {CONTROL_PLANE_LABEL, TENANT_LABEL}
    labels = peer.get("podSelector", {}).get("matchLabels", {})
    return set(keys) <= namespace.keys() and labels.items() <= pod.items()


def test_members_of_etcd_know_each_other(helm: Helm, tmp_path: Path) -> None:
    objects = helm.render("--set=etcd.members=3")
    arguments = container(objects.get("StatefulSet", "vkgateway-etcd"))["args"]
    hosts = [f"vkgateway-etcd-{member}.vkgateway-etcd.vkgateway-system.svc" for member in range(3)]
    peers = ",".join(f"vkgateway-etcd-{member}=https://{host}:2380" for member, host in enumerate(hosts))
    assert f"--initial-cluster={peers}" in arguments
    datastore = settings(objects, tmp_path).datastore
    assert datastore.endpoints == tuple(f"https://{host}:2379" for host in hosts)
    assert datastore.enable_auth
    assert {*hosts, "vkgateway-etcd.vkgateway-system.svc"} <= set(datastore.managed.server_names)
    assert "--peer-cert-allowed-hostname=vkgateway-etcd.vkgateway-system.svc" in arguments
    volumes = objects.get("StatefulSet", "vkgateway-etcd")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == f"{datastore.managed.secret_prefix}-server"


@pytest.mark.parametrize("values", [EXTERNAL, CERT_MANAGER])
def test_certificates_from_secrets_are_mounted(helm: Helm, tmp_path: Path, values: tuple[str, ...]) -> None:
    objects = helm.render(*ALL_APIS, *values)
    datastore = settings(objects, tmp_path).datastore
    assert datastore.managed.secret_prefix == ""
    pod = objects.get("Deployment")["spec"]["template"]["spec"]
    mounts = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    sources = next(one for one in pod["volumes"] if one["name"] == "etcd")["projected"]["sources"]
    paths = {item["path"] for source in sources for item in source["secret"]["items"]}
    files = (datastore.ca, datastore.ca_key, datastore.cert, datastore.key)
    assert {f"{mounts['etcd']}/{path}" for path in paths} == set(files)


def test_cert_manager_issues_what_the_gateway_would(helm: Helm) -> None:
    objects = helm.render(*ALL_APIS, *CERT_MANAGER, "--set=etcd.members=3")
    issued = {one["spec"]["secretName"]: one["spec"] for one in objects.kinds("Certificate")}
    assert set(issued) == {"vkgateway-etcd-authority", "vkgateway-etcd-server", "vkgateway-etcd-client"}
    assert all(one["privateKey"]["algorithm"] == "ECDSA" for one in issued.values())
    assert issued["vkgateway-etcd-client"]["commonName"] == "root"
    assert "client auth" in issued["vkgateway-etcd-server"]["usages"]
    assert len(issued["vkgateway-etcd-server"]["dnsNames"]) == 5


def test_tenant_templates_are_files_of_the_gateway(helm: Helm, tmp_path: Path) -> None:
    shipped = SHIPPED_FOLDER / "default"
    files = {str(file.relative_to(shipped)): file.read_text() for file in shipped.rglob("*") if file.is_file()}
    given = tmp_path / "values.yaml"
    given.write_text(yaml.safe_dump({"templates": {"default": files}}))
    objects = helm.render(f"--values={given}")
    folder = settings(objects, tmp_path).control_planes.templates_dir
    pod = objects.get("Deployment")["spec"]["template"]["spec"]
    assert {"name": "templates", "mountPath": folder, "readOnly": True} in pod["containers"][0]["volumeMounts"]
    volume = next(one for one in pod["volumes"] if one["name"] == "templates")["configMap"]
    stored = objects.get("ConfigMap", volume["name"])["data"]
    assert {item["path"]: stored[item["key"]] for item in volume["items"]} == {
        f"default/{path}": text for path, text in files.items()
    }
    assert len(files) > 1


def test_volumes_of_etcd(helm: Helm) -> None:
    def claims(*values: str) -> list[Document]:
        spec = helm.render(*values).get("StatefulSet", "vkgateway-etcd")["spec"]
        found: list[Document] = spec.get("volumeClaimTemplates", [])
        return found

    assert "storageClassName" not in claims()[0]["spec"]
    assert claims("--set=etcd.persistence.storageClass=fast")[0]["spec"]["storageClassName"] == "fast"
    assert claims("--set=etcd.persistence.storageClass=-")[0]["spec"]["storageClassName"] == ""
    assert claims("--set=etcd.persistence.enabled=false") == []


def test_writes_of_the_service_account_are_confined_by_labels(helm: Helm) -> None:
    objects = helm.render()
    spec = objects.get("ValidatingAdmissionPolicy", "vkgateway-writes")["spec"]
    (condition,) = spec["matchConditions"]
    assert "system:serviceaccount:vkgateway-system:vkgateway" in condition["expression"]
    labels, paths = (one["expression"] for one in spec["validations"])
    assert f'"{TENANT_LABEL}" in' in labels
    assert f'"{CONTROL_PLANE_LABEL}" in' in labels
    for query in (SUMMARY, RESOURCE, CADVISOR, PROBES):
        assert f'"/{query.path}"' in paths
    binding = objects.get("ValidatingAdmissionPolicyBinding", "vkgateway-writes")["spec"]
    assert binding == {"policyName": "vkgateway-writes", "validationActions": ["Deny"]}
    policies = helm.render("--set=rbac.confineWrites=false").kinds("ValidatingAdmissionPolicy")
    assert [policy["metadata"]["name"] for policy in policies] == ["vkgateway-deletion-protection"]


def test_protected_tenants_cannot_be_deleted(helm: Helm) -> None:
    objects = helm.render()
    policy, binding = management_policies.deletion_protection()
    for wanted in (policy, binding):
        found = objects.get(wanted["kind"], wanted["metadata"]["name"])
        assert found["spec"] == wanted["spec"]
        assert found["metadata"]["labels"]

"""Compute pods, row by row of the contract."""

import time
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.translate.samples import (
    BELOW,
    DEFAULT_TOLERATIONS,
    POOL,
    TENANT,
    container,
    forward,
    pod,
)
from vkgateway.api.names import token_secret_name
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.kinds.size_budget import OversizeError


def env_of(made: dict[str, Any], kind: str = "containers", index: int = 0) -> dict[str, Any]:
    return {entry["name"]: entry for entry in made["spec"][kind][index]["env"]}


def field(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def test_name_is_kept_and_object_metadata_is_dropped() -> None:
    made = forward(pod())
    assert made["metadata"] == {
        "name": "web-1",
        "namespace": BELOW,
        "labels": {
            "app": "web",
            "pod-template-hash": "abc",
            "vkgateway.io/tenant": "alpha",
            "vkgateway.io/pool": "a100",
        },
        "annotations": {
            "example.com/note": "hello",
            "vkgateway.io/copied": "app,pod-template-hash;example.com/note",
            "vkgateway.io/images": "2fa39014",
            "vkgateway.io/namespace": "default",
            "vkgateway.io/name": "web-1",
            "vkgateway.io/uid": "6c5f1f7e-0001",
        },
        "finalizers": ["vkgateway.io/mirror"],
    }
    assert "status" not in made
    assert (made["apiVersion"], made["kind"]) == ("v1", "Pod")


def test_pod_without_labels_or_annotations() -> None:
    made = forward(pod(metadata={"labels": None, "annotations": None}))
    assert made["metadata"]["labels"] == {"vkgateway.io/tenant": "alpha", "vkgateway.io/pool": "a100"}
    assert "vkgateway.io/copied" not in made["metadata"]["annotations"]


def test_excluded_prefixes_and_reserved_keys_are_not_forwarded() -> None:
    metadata = {
        "labels": {"vkgateway.io/tenant": "beta", "ops.example.com/x": "1", "a": "1"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "vkgateway.io/uid": "forged"},
    }
    tenant = replace(TENANT, excluded_prefixes=(*TENANT.excluded_prefixes, "ops.example.com/"))
    made = forward(pod(metadata=metadata), tenant=tenant)["metadata"]
    assert made["labels"] == {
        "a": "1",
        "vkgateway.io/tenant": "alpha",
        "vkgateway.io/pool": "a100",
        "vkgateway.io.tenant-label.vkgateway.io/tenant": "beta",
        "ops.example.com.tenant-label.vkgateway.io/x": "1",
    }
    assert made["annotations"]["vkgateway.io/uid"] == "6c5f1f7e-0001"
    assert "kubectl.kubernetes.io/last-applied-configuration" not in made["annotations"]


@pytest.mark.parametrize("name", ["nodeName", "schedulerName", "priority", "preemptionPolicy", "serviceAccount"])
def test_platform_choices_are_dropped(name: str) -> None:
    assert name not in forward(pod())["spec"]


@pytest.mark.parametrize(("given", "expected"), [("sandbox", "gvisor-2"), ("kata", "kata"), (None, None)])
def test_runtime_classes_get_their_compute_names(given: str | None, expected: str | None) -> None:
    tenant = replace(TENANT, runtime_class_names={"sandbox": "gvisor-2"})
    assert forward(pod(runtimeClassName=given), tenant=tenant)["spec"]["runtimeClassName"] == expected


def test_overhead_is_dropped() -> None:
    assert "overhead" not in forward(pod(runtimeClassName="kata", overhead={"cpu": "1"}))["spec"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("vkgateway-low", "vkgateway-low"),
        ("vkgateway-guaranteed", "vkgateway-guaranteed"),
        ("my-own", "vkgateway-guaranteed"),
        ("system-node-critical", "vkgateway-guaranteed"),
        (None, "vkgateway-guaranteed"),
    ],
)
def test_priority_class_becomes_the_band_class(given: str | None, expected: str) -> None:
    assert forward(pod(priorityClassName=given))["spec"]["priorityClassName"] == expected


def test_negative_priority_is_low() -> None:
    assert forward(pod(priorityClassName="my-own", priority=-1))["spec"]["priorityClassName"] == "vkgateway-low"


@pytest.mark.parametrize(
    ("given", "borrowed", "expected"),
    [
        ("vkgateway-guaranteed", True, "vkgateway-low"),
        ("vkgateway-guaranteed", False, "vkgateway-guaranteed"),
        ("vkgateway-low", False, "vkgateway-low"),
    ],
)
def test_borrowing_pod_is_low_and_marked(given: str, borrowed: bool, expected: str) -> None:
    made = forward(pod(priorityClassName=given), borrowed=borrowed)
    assert made["spec"]["priorityClassName"] == expected
    assert made["metadata"]["annotations"]["vkgateway.io/borrowed"] == ("true" if borrowed else "false")


def test_scheduler_of_the_pool_recognizes_pods_that_it_admitted() -> None:
    """A tenant cannot set such annotations, and chooses neither the scheduler nor its priority class."""
    mark = "kueue.x-k8s.io/podset-unconstrained-topology"
    forged = pod(schedulerName="mine", priorityClassName="mine")
    forged["metadata"]["annotations"] = {mark: "false"}
    below = forward(forged, borrowed=True)
    assert mark not in below["metadata"]["annotations"]
    assert "schedulerName" not in below["spec"]
    marks = SchedulerMarks(
        scheduler_name="volcano", priority_class="theirs", labels={"queue": "a"}, annotations={mark: "true"}
    )
    marked = forward(forged, borrowed=True, marks=marks)
    assert marked["metadata"]["annotations"] == below["metadata"]["annotations"] | {mark: "true"}
    assert marked["metadata"]["labels"] == below["metadata"]["labels"] | {"queue": "a"}
    assert (marked["spec"]["schedulerName"], marked["spec"]["priorityClassName"]) == ("volcano", "theirs")


def test_pod_not_placed_by_the_arbiter_is_not_marked() -> None:
    annotations = forward(pod())["metadata"]["annotations"]
    assert "vkgateway.io/borrowed" not in annotations
    assert "vkgateway.io/compute-node" not in annotations


def test_compute_pod_has_no_service_account_token() -> None:
    spec = forward(pod())["spec"]
    assert spec["serviceAccountName"] == "vkgateway-pod"
    assert spec["automountServiceAccountToken"] is False


def test_token_comes_from_the_pods_secret_and_the_ca_from_the_tenant() -> None:
    (volume,) = forward(pod())["spec"]["volumes"]
    secret = token_secret_name("web-1", "6c5f1f7e-0001")
    token, ca, namespace = volume["projected"]["sources"]
    assert token == {"secret": {"name": secret, "items": [{"key": "kube-api-access-x7k2p.0", "path": "token"}]}}
    assert ca["configMap"] == {"name": "vkgateway-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    assert namespace["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == (
        "metadata.annotations['vkgateway.io/namespace']"
    )
    assert volume["projected"]["defaultMode"] == 420


def test_two_tokens_have_different_keys() -> None:
    sources = [{"serviceAccountToken": {"path": "a"}}, {"serviceAccountToken": {"path": "b", "audience": "vault"}}]
    made = forward(pod(volumes=[{"name": "v", "projected": {"sources": sources}}]))
    items = [source["secret"]["items"][0] for source in made["spec"]["volumes"][0]["projected"]["sources"]]
    assert items == [{"key": "v.0", "path": "a"}, {"key": "v.1", "path": "b"}]


@pytest.mark.parametrize(
    ("pod_security", "users", "mode"),
    [
        ({"runAsUser": 1000}, (None, None), 0o444),
        ({"runAsUser": 1}, (1000, 1000), 0o444),
        ({}, (1000, 1000), 0o444),
        ({}, (1000, None), None),
        ({}, (1000, 1001), None),
        ({"runAsUser": 1000, "fsGroup": 2000}, (None, None), 0o600),
        ({"fsGroup": 2000}, (None, 1000), 0o600),
        ({"runAsUser": 0}, (None, None), 0o600),
        ({}, (None, None), None),
    ],
)
def test_token_has_a_kubelets_mode_or_is_readable_by_the_single_user(
    pod_security: dict[str, int], users: tuple[int | None, int | None], mode: int | None
) -> None:
    first, second = ({"runAsUser": user} if user is not None else None for user in users)
    projected = {"defaultMode": 0o400, "sources": [{"serviceAccountToken": {"path": "t"}}]}
    made = forward(
        pod(
            securityContext=pod_security,
            initContainers=[container("init", securityContext=first)],
            containers=[container(securityContext=second)],
            volumes=[{"name": "v", "projected": projected}],
        )
    )
    (source,) = made["spec"]["volumes"][0]["projected"]["sources"]
    assert source["secret"]["items"][0].get("mode") == mode


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_api_server_variables_refer_to_the_tenant(kind: str) -> None:
    spec: dict[str, Any] = {kind: [container(env=[{"name": "A", "value": "1"}])]}
    made = forward(pod(**spec))
    env = env_of(made, kind)
    assert env["KUBERNETES_SERVICE_HOST"]["value"] == "10.213.0.1"
    assert env["KUBERNETES_SERVICE_PORT"]["value"] == "20123"
    assert env["KUBERNETES_PORT_443_TCP"]["value"] == "tcp://10.213.0.1:20123"
    assert list(env)[-1] == "A"


def test_container_variables_win_and_are_not_repeated() -> None:
    made = forward(pod(containers=[container(env=[{"name": "KUBERNETES_SERVICE_HOST", "value": "mine"}])]))
    names = [entry["name"] for entry in made["spec"]["containers"][0]["env"]]
    assert names.count("KUBERNETES_SERVICE_HOST") == 1
    assert env_of(made)["KUBERNETES_SERVICE_HOST"]["value"] == "mine"


def test_container_without_a_device_request_gets_none_whatever_its_image_says() -> None:
    gpu = container("gpu", resources={"limits": {"nvidia.com/gpu": "1"}})
    none = container("none", resources={"limits": {"nvidia.com/gpu": "0", "cpu": "1"}})
    made = forward(pod(containers=[gpu, none], initContainers=[container("init")]))
    hidden = [
        env_of(made, kind, index).get("NVIDIA_VISIBLE_DEVICES", {}).get("value")
        for kind, index in (("containers", 0), ("containers", 1), ("initContainers", 0))
    ]
    assert hidden == [None, "void", "void"]
    assert env_of(made, "containers", 1)["AMD_VISIBLE_DEVICES"]["value"] == "void"


@pytest.mark.parametrize("value", [{"value": ""}, {}, {"value": "none"}, {"value": "void"}])
def test_container_may_hide_devices_from_itself(value: dict[str, str]) -> None:
    """The MPI operator does so for launchers, with an empty value."""
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", **value}
    env = forward(pod(containers=[container(env=[variable])]))["spec"]["containers"][0]["env"]
    assert [entry for entry in env if entry["name"] == "NVIDIA_VISIBLE_DEVICES"] == [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
    ]


def test_ipv6_address_of_the_api_server() -> None:
    env = env_of(forward(pod(), tenant=replace(TENANT, api_host="fd00::1")))
    assert env["KUBERNETES_PORT"]["value"] == "tcp://[fd00::1]:20123"
    assert env["KUBERNETES_SERVICE_HOST"]["value"] == "fd00::1"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.namespace", "default"),
        ("metadata.uid", "6c5f1f7e-0001"),
        ("spec.nodeName", "a100.local"),
        ("spec.host", "a100.local"),  # an old name of it that API servers take
        ("spec.serviceAccountName", "robot"),
        ("metadata.labels['vkgateway.io/tenant']", ""),
        ("metadata.labels['vkgateway.io/eviction-deadline']", ""),
        ("metadata.annotations['vkgateway.io/compute-node']", ""),
        ("metadata.annotations['vkgateway.io/uid']", ""),
    ],
)
def test_fields_with_the_tenants_values(path: str, value: str) -> None:
    assert env_of(forward(pod(containers=[container(env=[field(path)])])))["X"] == {"name": "X", "value": value}


def test_field_values_are_not_expanded() -> None:
    wanted = pod(
        metadata={"annotations": {"vkgateway.io/x": "$(HOME)"}},
        containers=[container(env=[field("metadata.annotations['vkgateway.io/x']")])],
    )
    assert env_of(forward(wanted))["X"]["value"] == "$$(HOME)"


@pytest.mark.parametrize(
    "path",
    [
        "metadata.name",
        "metadata.labels['app']",
        "metadata.annotations['vkgateway.io/eviction-deadline']",
        "metadata.annotations['vkgateway.io/gang']",
        "status.podIP",
        "status.podIPs",
        "status.hostIP",
    ],
)
def test_fields_left_to_the_compute_kubelet(path: str) -> None:
    assert env_of(forward(pod(containers=[container(env=[field(path)])])))["X"] == field(path)


def test_resource_and_key_references_keep_their_order() -> None:
    env = [
        {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "Z", "value": "$(N)-$(K)"},
    ]
    made = forward(pod(containers=[container(env=env)]))["spec"]["containers"][0]["env"][-4:]
    assert made == [env[0], env[1], {"name": "N", "value": "default"}, env[3]]


def test_tenant_root_certificate_in_environment() -> None:
    made = forward(
        pod(
            containers=[
                container(
                    env=[
                        {"name": "CA", "valueFrom": {"configMapKeyRef": {"name": "kube-root-ca.crt", "key": "ca.crt"}}}
                    ],
                    envFrom=[{"configMapRef": {"name": "kube-root-ca.crt"}}, {"secretRef": {"name": "s"}}],
                )
            ]
        )
    )
    assert env_of(made)["CA"]["valueFrom"]["configMapKeyRef"] == {"name": "vkgateway-root-ca.crt", "key": "ca.crt"}
    assert made["spec"]["containers"][0]["envFrom"] == [
        {"configMapRef": {"name": "vkgateway-root-ca.crt"}},
        {"secretRef": {"name": "s"}},
    ]


def test_downward_volume_shows_the_tenants_labels_and_annotations_only() -> None:
    items = [
        {"path": path, "fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.{path}"}}
        for path in ("labels", "annotations", "uid", "name")
    ]
    made = forward(pod(volumes=[{"name": "d", "downwardAPI": {"items": items}}]))
    paths = [item["fieldRef"]["fieldPath"] for item in made["spec"]["volumes"][0]["downwardAPI"]["items"]]
    assert paths == [
        "metadata.annotations['vkgateway.io/labels']",
        "metadata.annotations['vkgateway.io/annotations']",
        "metadata.annotations['vkgateway.io/uid']",
        "metadata.name",
    ]
    annotations = made["metadata"]["annotations"]
    assert annotations["vkgateway.io/labels"] == 'app="web"\npod-template-hash="abc"'
    assert annotations["vkgateway.io/annotations"] == 'example.com/note="hello"'


def test_volumes_show_annotations_for_workloads() -> None:
    names = ["metadata.annotations['vkgateway.io/eviction-deadline']", "metadata.annotations['vkgateway.io/gang']"]
    items = [{"path": str(index), "fieldRef": {"fieldPath": path}} for index, path in enumerate(names)]
    items.append({"path": "all", "fieldRef": {"fieldPath": "metadata.annotations"}})
    seen = {"vkgateway.io/eviction-deadline": "2026-03-01T12:00:00Z", "vkgateway.io/gang": "train"}
    made = forward(pod(metadata={"annotations": seen}, volumes=[{"name": "d", "downwardAPI": {"items": items}}]))
    expected = made["spec"]["volumes"][0]["downwardAPI"]["items"]
    assert expected[:2] == items[:2]
    annotations = made["metadata"]["annotations"]
    assert annotations["vkgateway.io/gang"] == "train"
    assert "vkgateway.io/eviction-deadline" not in annotations
    assert annotations["vkgateway.io/annotations"] == (
        'vkgateway.io/eviction-deadline="2026-03-01T12:00:00Z"\nvkgateway.io/gang="train"'
    )


SCHEDULERS = [
    "kueue.x-k8s.io/pod-group-name",
    "scheduling.volcano.sh/group-name",
    "volcano.sh/task-index",
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io/name",
    "pod-group.scheduling.sigs.k8s.io",
    "kai.scheduler/queue",
    "runai/queue",
    "yunikorn.apache.org/app-id",
    "scheduling.koordinator.sh/preemptible",
    "gang.scheduling.koordinator.sh/name",
    "quota.scheduling.koordinator.sh/name",
    "koordinator.sh/qosClass",
]


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize("key", SCHEDULERS)
def test_scheduler_marks_are_not_forwarded(kind: str, key: str) -> None:
    wanted = pod(
        metadata={kind: {key: "g", "a": "1"}}, containers=[container(env=[field(f"metadata.{kind}['{key}']")])]
    )
    made = forward(wanted)
    assert key not in made["metadata"][kind]
    assert made["metadata"][kind]["a"] == "1"
    assert key not in made["metadata"]["annotations"]["vkgateway.io/copied"].replace(";", ",").split(",")
    assert env_of(made)["X"] == {"name": "X", "value": "g"}


@pytest.mark.parametrize("kind", ["labels", "annotations"])
def test_keys_that_the_pool_sets_are_not_forwarded(kind: str) -> None:
    """A scheduler may read a key from either place."""
    tenant = replace(TENANT, pool_keys=("queue",))
    env = field(f"metadata.{kind}['queue']")
    made = forward(
        pod(metadata={kind: {"queue": "theirs", "a": "1"}}, containers=[container(env=[env])]),
        tenant=tenant,
        marks=SchedulerMarks(labels={"queue": "root.alpha"}),
    )
    assert made["metadata"]["labels"]["queue"] == "root.alpha"
    assert "queue" not in made["metadata"]["annotations"]
    assert "queue" not in made["metadata"]["annotations"]["vkgateway.io/copied"].replace(";", ",").split(",")
    assert env_of(made)["X"] == {"name": "X", "value": "theirs"}, "the container sees its own value"


@pytest.mark.parametrize("name", ["schedulingGroup", "workloadRef"])
def test_kubernetes_pod_groups_are_not_forwarded(name: str) -> None:
    assert name not in forward(pod(**{name: {"podGroupName": "g", "name": "w"}}))["spec"]


def test_other_volumes_are_unchanged() -> None:
    volumes = [
        {"name": "e", "emptyDir": {"medium": "Memory"}},
        {"name": "c", "configMap": {"name": "cm", "optional": True}},
        {"name": "s", "secret": {"secretName": "s"}},
        {"name": "n", "nfs": {"server": "x", "path": "/"}},
        {"name": "f", "somethingOfNextYear": {"a": 1}},
    ]
    assert forward(pod(volumes=volumes))["spec"]["volumes"] == volumes


def test_api_server_host_aliases() -> None:
    aliases = forward(pod(hostAliases=[{"ip": "1.2.3.4", "hostnames": ["x"]}]))["spec"]["hostAliases"]
    assert aliases[0] == {"ip": "1.2.3.4", "hostnames": ["x"]}
    assert aliases[1]["ip"] == "10.213.0.1"
    assert "kubernetes" in aliases[1]["hostnames"]
    assert "kubernetes.default.svc.cluster.local" in aliases[1]["hostnames"]
    other = forward(pod(metadata={"namespace": "web"}))["spec"]["hostAliases"][0]["hostnames"]
    assert "kubernetes" not in other
    named = forward(pod(), tenant=replace(TENANT, api_host="api.example.com"))["spec"]
    assert "hostAliases" not in named


WITH_DNS = replace(TENANT, dns_servers=("10.96.0.10",), cluster_domain="corp.internal")
SEARCHES = ["default.svc.corp.internal", "svc.corp.internal", "corp.internal"]
NDOTS = {"name": "ndots", "value": "5"}


@pytest.mark.parametrize("policy", ["ClusterFirst", "ClusterFirstWithHostNet", None])
def test_dns_resolves_tenant_names(policy: str | None) -> None:
    spec = forward(pod(dnsPolicy=policy), tenant=WITH_DNS)["spec"]
    assert spec["dnsPolicy"] == "None"
    assert spec["dnsConfig"] == {"nameservers": ["10.96.0.10"], "searches": SEARCHES, "options": [NDOTS]}


@pytest.mark.parametrize("options", [[{"name": "ndots", "value": "2"}], [{"name": "edns0"}], None])
def test_dns_config_of_the_pod_is_appended_and_its_options_win(options: list[dict[str, str]] | None) -> None:
    config = {"nameservers": ["1.1.1.1", "10.96.0.10"], "searches": ["x", "corp.internal"], "ofNextYear": 1}
    given = config if options is None else {**config, "options": options}
    made = forward(pod(dnsConfig=given), tenant=WITH_DNS)["spec"]["dnsConfig"]
    named = any(option["name"] == "ndots" for option in options or ())
    assert made == {
        "nameservers": ["10.96.0.10", "1.1.1.1"],
        "searches": [*SEARCHES, "x"],
        "options": [*([] if named else [NDOTS]), *(options or [])],
        "ofNextYear": 1,
    }


def test_dns_config_stays_within_api_server_limits() -> None:
    many = {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3"], "searches": [f"s{i}.example.com" for i in range(32)]}
    made = forward(pod(dnsConfig=many), tenant=WITH_DNS)["spec"]["dnsConfig"]
    assert made["nameservers"] == ["10.96.0.10", "1.1.1.1", "1.1.1.2"]
    assert len(made["searches"]) == 32
    long = {"searches": [f"{i}{'x' * 200}" for i in range(10)]}
    assert len(" ".join(forward(pod(dnsConfig=long), tenant=WITH_DNS)["spec"]["dnsConfig"]["searches"])) <= 2048


@pytest.mark.parametrize(
    ("policy", "expected"), [("Default", "Default"), ("None", "None"), ("ClusterFirst", "Default")]
)
def test_host_network_uses_the_node_resolver(policy: str, expected: str) -> None:
    config = {"nameservers": ["1.1.1.1"]}
    spec = forward(pod(dnsPolicy=policy, dnsConfig=config, hostNetwork=policy == "ClusterFirst"), tenant=WITH_DNS)[
        "spec"
    ]
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == (expected, config)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ClusterFirst", "Default"),
        ("ClusterFirstWithHostNet", "Default"),
        (None, "Default"),
        ("Default", "Default"),
        ("None", "None"),
    ],
)
def test_tenant_without_dns_uses_the_node_resolver(given: str | None, expected: str) -> None:
    config = {"nameservers": ["1.1.1.1"], "searches": ["x"], "options": [{"name": "ndots", "value": "2"}]}
    spec = forward(pod(dnsPolicy=given, dnsConfig=config))["spec"]
    assert spec["dnsPolicy"] == expected
    assert spec["dnsConfig"] == config


@pytest.mark.parametrize("wanted", [True, False])
def test_service_variables_are_left_to_the_compute_kubelet(wanted: bool) -> None:
    assert forward(pod(enableServiceLinks=wanted))["spec"]["enableServiceLinks"] is wanted


STAYING = [
    "metadata.labels['kueue.x-k8s.io/queue-name']",
    "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']",
    "metadata.annotations['ops.example.com/cost-centre']",
]
TENANT_THAT_KEEPS = replace(TENANT, excluded_prefixes=(*TENANT.excluded_prefixes, "ops.example.com/"))


@pytest.mark.parametrize("path", STAYING)
@pytest.mark.parametrize("there", [True, False])
def test_downward_api_shows_keys_that_are_not_forwarded(path: str, there: bool) -> None:
    _, kind, key = path.replace("[", ".").split(".", 2)
    metadata = {kind: {key.strip("']"): "v"}} if there else {}
    item = {"path": "x", "fieldRef": {"apiVersion": "v1", "fieldPath": path}}
    wanted = pod(
        metadata=metadata,
        containers=[container(env=[field(path)])],
        volumes=[
            {"name": "d", "downwardAPI": {"items": [item]}},
            {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": [item]}}]}},
        ],
    )
    made = forward(wanted, tenant=TENANT_THAT_KEEPS)
    value = "v" if there else ""
    assert env_of(made)["X"] == {"name": "X", "value": value}
    plain, projected = made["spec"]["volumes"]
    for volume in (plain["downwardAPI"], projected["projected"]["sources"][0]["downwardAPI"]):
        shown = volume["items"][0]["fieldRef"]["fieldPath"]
        assert shown.startswith("metadata.annotations['vkgateway.io/field-")
        assert made["metadata"]["annotations"][shown.split("'")[1]] == value
    assert key.strip("']") not in made["metadata"][kind]


def test_hostname_is_kept_without_subdomain() -> None:
    spec = forward(pod(hostname="h", subdomain="s"))["spec"]
    assert spec["hostname"] == "h"
    assert "subdomain" not in spec


@pytest.mark.parametrize(
    ("hostname", "expected"), [("h", "h.s.default.svc.cluster.local"), ("", "web-1.s.default.svc.cluster.local")]
)
def test_fqdn_hostname_uses_the_tenant_domain(hostname: str, expected: str) -> None:
    spec = forward(pod(setHostnameAsFQDN=True, subdomain="s", hostname=hostname))["spec"]
    assert spec["hostnameOverride"] == expected
    assert "subdomain" not in spec
    assert "setHostnameAsFQDN" not in spec
    assert "hostnameOverride" not in forward(pod(setHostnameAsFQDN=True))["spec"]
    assert "hostnameOverride" not in forward(pod(setHostnameAsFQDN=True, subdomain="s", hostNetwork=True))["spec"]


def test_readiness_gates_are_forwarded() -> None:
    gates = [{"conditionType": "example.com/a"}, {"conditionType": "b"}]
    made = forward(pod(readinessGates=gates))
    assert made["spec"]["readinessGates"] == gates
    assert made["metadata"]["annotations"]["vkgateway.io/readiness-gates"] == "example.com/a,b"


def test_scheduling_gates_are_not_forwarded() -> None:
    gates = [{"name": "example.com/wait"}]
    assert forward(pod(schedulingGates=gates))["spec"]["schedulingGates"] == gates


def test_unchanged_fields() -> None:
    kept: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 7,
        "activeDeadlineSeconds": 60,
        "os": {"name": "linux"},
        "hostUsers": False,
        "securityContext": {"fsGroup": 1},
        "imagePullSecrets": [{"name": "pull"}],
        "runtimeClassName": "kata",
        "shareProcessNamespace": True,
        "resources": {"limits": {"cpu": "1"}},
        "fieldOfNextYear": {"a": [1]},
    }
    spec = forward(pod(**kept))["spec"]
    assert {name: spec[name] for name in kept} == kept


def test_sidecars_and_container_fields_are_kept() -> None:
    side = container("side", restartPolicy="Always", fieldOfNextYear=1, readinessProbe={"httpGet": {"port": 80}})
    made = forward(pod(initContainers=[side, container("init")]))["spec"]["initContainers"]
    assert [{key: value for key, value in one.items() if key != "env"} for one in made] == [side, container("init")]


def test_ephemeral_containers_are_not_created_with_the_pod() -> None:
    assert "ephemeralContainers" not in forward(pod(ephemeralContainers=[container("debug")]))["spec"]


def test_default_tolerations_are_kept_and_pool_tolerations_added() -> None:
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    spec = forward(pod(), pool=replace(POOL, tolerations=(taint,)))["spec"]
    assert spec["tolerations"] == [*DEFAULT_TOLERATIONS, taint]
    assert forward(pod(tolerations=[taint]), pool=replace(POOL, tolerations=(taint,)))["spec"]["tolerations"] == [taint]


def test_pool_selector_is_set() -> None:
    assert forward(pod())["spec"]["nodeSelector"] == {"platform.vkgateway.io/pool": "a100"}


NOTE = "kubectl.kubernetes.io/last-applied-configuration"


def test_repeated_large_annotation_exceeds_the_size_budget() -> None:
    reference = {"valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{NOTE}']"}}}
    few, many = ([{"name": f"E{number}", **reference} for number in range(count)] for count in (10, 40))
    note = {"annotations": {NOTE: "$" * 100_000}}
    made = forward(pod(metadata=note, containers=[container(env=few)]))["spec"]["containers"][0]["env"]
    assert sum(len(entry["value"]) for entry in made) > 2_000_000
    with pytest.raises(OversizeError, match="larger than any API server accepts"):
        forward(pod(metadata=note, containers=[container(env=many)]))


def test_expanded_namespaces_exceed_the_size_budget() -> None:
    labels: dict[str, dict[str, str]] = {f"namespace-{number}": {} for number in range(2000)}
    selector = {"matchExpressions": [{"key": "no", "operator": "DoesNotExist"}]}
    term = {"labelSelector": {}, "topologyKey": "zone", "namespaceSelector": selector}
    wanted = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term] * 3000}}
    began = time.thread_time()
    with pytest.raises(OversizeError):
        forward(pod(affinity=wanted), namespaces=labels)
    assert time.thread_time() - began < 5.0


NETWORKS = "k8s.v1.cni.cncf.io/networks"


@pytest.mark.parametrize(
    "key",
    [
        NETWORKS,
        "io.katacontainers.config.hypervisor.path",
        "kubernetes.io/config.source",
        "kubernetes.io/egress-bandwidth",
        "devices.crio.io",
        "hami.io/vgpu-devices-to-allocate",
        "prefer-isolated-cpus.resource-policy.nri.io/container.main",
    ],
)
def test_plugin_annotations_are_not_forwarded_but_shown(key: str) -> None:
    wanted = pod(
        metadata={"annotations": {key: "x", "a": "1"}, "labels": {key: "y"}},
        containers=[container(env=[field(f"metadata.annotations['{key}']")])],
    )
    made = forward(wanted)
    assert key not in made["metadata"]["annotations"]
    assert made["metadata"]["annotations"]["a"] == "1"
    assert made["metadata"]["labels"][key] == "y"
    assert env_of(made)["X"]["value"] == "x"


@pytest.mark.parametrize(
    "key",
    [
        "kwok.x-k8s.io/status",
        "pod-complete.stage.kwok.x-k8s.io/delay",
        "sidecar.istio.io/inject",
        "azure.workload.identity/use",
    ],
)
def test_labels_that_programs_of_the_compute_cluster_read_are_renamed(key: str) -> None:
    both = pod(metadata={"annotations": {key: "x"}, "labels": {key: "y"}})
    made = forward(both)["metadata"]
    prefix, _, name = key.partition("/")
    assert key not in made["annotations"]
    assert made["labels"][f"{prefix}.tenant-label.vkgateway.io/{name}"] == "y"
    assert key not in made["labels"]
    allowed = forward(both, tenant=replace(TENANT, plugin_annotations=("*",)))["metadata"]
    assert (allowed["annotations"][key], allowed["labels"][key]) == ("x", "y")


def test_simulated_usage_is_forwarded_unless_the_platform_excludes_it() -> None:
    usage = {"kwok.x-k8s.io/usage-cpu": "1", "kwok.x-k8s.io/usage-memory": "1Gi"}
    wanted = pod(metadata={"annotations": usage})
    assert forward(wanted)["metadata"]["annotations"].items() >= usage.items()
    excluded = forward(wanted, tenant=replace(TENANT, excluded_prefixes=("kwok.x-k8s.io/usage-",)))
    assert not excluded["metadata"]["annotations"].keys() & usage.keys()


@pytest.mark.parametrize(
    ("policy", "goes"),
    [
        ({}, False),
        ({"plugin_annotations": ("k8s.v1.cni.cncf.io/",)}, True),
        ({"plugin_annotations": ("run.oci.",)}, False),
        ({"plugin_annotations": ("",)}, False),
        ({"plugin_annotations": ("*",)}, True),
        ({"pod_security": "privileged"}, True),
    ],
)
def test_allowed_plugin_annotations_are_forwarded(policy: dict[str, Any], goes: bool) -> None:
    made = forward(pod(metadata={"annotations": {NETWORKS: "x"}}), tenant=replace(TENANT, **policy))
    assert (NETWORKS in made["metadata"]["annotations"]) is goes

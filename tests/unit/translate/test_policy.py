"""Refusals with field, value and a sentence, and an allowed pod."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.translate.samples import POOL, TENANT, container, pod
from vkgateway.api.names import GANG_ANNOTATIONS
from vkgateway.kinds.pods.policy.rules import Refusal, find_refusals

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def only(wanted: dict[str, Any], **tenant: Any) -> Refusal:
    (refusal,) = find_refusals(wanted, tenant=replace(TENANT, **tenant), pool=POOL)
    return refusal


def test_a_normal_pod_passes() -> None:
    assert find_refusals(pod(), tenant=TENANT, pool=POOL) == ()
    strict = pod(containers=[container(securityContext=RESTRICTED)])
    assert find_refusals(strict, tenant=replace(TENANT, pod_security="restricted"), pool=POOL) == ()


@pytest.mark.parametrize("kind", ["labels", "annotations"])
@pytest.mark.parametrize(
    "key", ["vkgateway.io/tenant", "vkgateway.io/borrowed", "vkgateway.io/gang-other", "x.vkgateway.io/y"]
)
def test_reserved_keys(kind: str, key: str) -> None:
    refusal = only(pod(metadata={kind: {key: "v"}}))
    assert (refusal.rule, refusal.field, refusal.value) == ("Reserved", f"metadata.{kind}[{key}]", "v")
    assert key in refusal.message


@pytest.mark.parametrize("key", [*sorted(GANG_ANNOTATIONS), "vkgateway.io/eviction-deadline"])
def test_gang_keys_are_allowed_as_annotations_not_as_labels(key: str) -> None:
    assert find_refusals(pod(metadata={"annotations": {key: "v"}}), tenant=TENANT, pool=POOL) == ()
    assert only(pod(metadata={"labels": {key: "v"}})).rule == "Reserved"


def test_static_pods_are_refused() -> None:
    assert only(pod(metadata={"annotations": {"kubernetes.io/config.mirror": "x"}})).rule == "NotSupported"


@pytest.mark.parametrize(
    "kind", ["awsElasticBlockStore", "gcePersistentDisk", "nfs", "iscsi", "fc", "flexVolume", "gitRepo", "ofNextYear"]
)
def test_volumes_mounted_with_node_credentials_are_refused(kind: str) -> None:
    wanted = pod(volumes=[{"name": "data", kind: {"volumeID": "vol-of-another-tenant"}}])
    refusal = only(wanted)
    assert (refusal.rule, refusal.field, refusal.value) == ("NotAllowed", f"spec.volumes[data].{kind}", "data")
    assert find_refusals(wanted, tenant=replace(TENANT, pod_security="privileged"), pool=POOL) == ()


@pytest.mark.parametrize(
    "kind",
    [
        "configMap",
        "secret",
        "emptyDir",
        "downwardAPI",
        "projected",
        "image",
        "persistentVolumeClaim",
        "ephemeral",
    ],
)
def test_pod_volumes_are_allowed(kind: str) -> None:
    assert find_refusals(pod(volumes=[{"name": "data", kind: {}}]), tenant=TENANT, pool=POOL) == ()


@pytest.mark.parametrize(
    ("volume", "field"),
    [
        ({"csi": {"driver": "d"}}, "csi"),
        (
            {"projected": {"sources": [{"clusterTrustBundle": {"path": "p"}}]}},
            "projected.sources[*].clusterTrustBundle",
        ),
        ({"projected": {"sources": [{"podCertificate": {}}]}}, "projected.sources[*].podCertificate"),
        ({"projected": {"sources": [{}]}}, "projected.sources[*]"),
    ],
)
def test_unsupported_volumes_are_refused(volume: dict[str, Any], field: str) -> None:
    refusal = only(pod(volumes=[{"name": "data", **volume}]))
    assert refusal.rule == "NotSupported"
    assert refusal.field == f"spec.volumes[data].{field}"


def test_unsupported_fields_are_refused() -> None:
    refusal = only(pod(resourceClaims=[{"name": "gpu"}]))
    assert (refusal.rule, refusal.field) == ("NotSupported", "spec.resourceClaims[gpu]")
    refusal = only(pod(hostUsers=False))
    assert (refusal.rule, refusal.field, refusal.value) == ("NotAllowed", "spec.hostUsers", "false")
    assert find_refusals(pod(hostUsers=True), tenant=TENANT, pool=POOL) == ()
    assert find_refusals(pod(hostUsers=False), tenant=replace(TENANT, user_namespaces=True), pool=POOL) == ()


@pytest.mark.parametrize("spec", [{"schedulingGroup": {"podGroupName": "g"}}, {"workloadRef": {"name": "w"}}])
def test_kubernetes_pod_groups_are_allowed(spec: dict[str, Any]) -> None:
    assert find_refusals(pod(**spec), tenant=TENANT, pool=POOL) == ()


def test_fqdn_without_subdomain_is_the_hostname() -> None:
    assert find_refusals(pod(setHostnameAsFQDN=True), tenant=TENANT) == ()


def test_runtime_classes_by_allow_list() -> None:
    refusal = only(pod(runtimeClassName="kata"), runtime_classes=("gvisor",))
    assert (refusal.rule, refusal.value) == ("NotAllowed", "kata")
    assert refusal.message == (
        "spec.runtimeClassName: runtime class kata is not allowed for this tenant; allowed runtime classes: gvisor"
    )
    assert find_refusals(pod(runtimeClassName="kata"), tenant=replace(TENANT, runtime_classes=("kata",))) == ()
    assert find_refusals(pod(runtimeClassName="kata"), tenant=replace(TENANT, runtime_classes=("*",))) == ()
    assert "allowed runtime classes: none" in only(pod(runtimeClassName="kata")).message
    mapped = {"sandbox": "gvisor-2"}
    assert find_refusals(pod(runtimeClassName="sandbox"), tenant=replace(TENANT, runtime_class_names=mapped)) == ()
    assert (
        "; allowed runtime classes: sandbox"
        in only(pod(runtimeClassName="gvisor-2"), runtime_class_names=mapped).message
    )


def test_pull_secrets_by_allow_list() -> None:
    wanted = pod(imagePullSecrets=[{"name": "a"}, {"name": "b"}])
    assert find_refusals(wanted, tenant=TENANT) == ()
    refusal = only(wanted, image_pull_secrets=("a",))
    assert (refusal.field, refusal.value) == ("spec.imagePullSecrets[b]", "b")


def test_tolerations_of_reserved_taints_are_refused() -> None:
    refusal = only(pod(tolerations=[{"key": "vkgateway.io/drain", "operator": "Exists"}]))
    assert (refusal.rule, refusal.value) == ("Reserved", "vkgateway.io/drain")


def test_namespace_selector_by_any_label_is_allowed() -> None:
    term = {"topologyKey": "z", "namespaceSelector": {"matchLabels": {"team": "x"}}}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    assert find_refusals(pod(affinity=affinity), tenant=TENANT, pool=POOL) == ()


@pytest.mark.parametrize("key", ["vkgateway.io/tenant", "kueue.x-k8s.io/pod-group-name", "app"])
def test_downward_volumes_may_name_any_label(key: str) -> None:
    items = [{"path": "x", "fieldRef": {"fieldPath": f"metadata.labels['{key}']"}}]
    assert find_refusals(pod(volumes=[{"name": "d", "downwardAPI": {"items": items}}]), tenant=TENANT, pool=POOL) == ()


@pytest.mark.parametrize("name", ["eviction-deadline", "gang-checkpoint"])
def test_downward_volume_of_annotations_for_workloads(name: str) -> None:
    items = [{"path": "x", "fieldRef": {"fieldPath": f"metadata.annotations['vkgateway.io/{name}']"}}]
    assert find_refusals(pod(volumes=[{"name": "d", "downwardAPI": {"items": items}}]), tenant=TENANT, pool=POOL) == ()


def test_reserved_config_map_is_refused() -> None:
    refusal = only(pod(volumes=[{"name": "c", "configMap": {"name": "vkgateway-root-ca.crt"}}]))
    assert refusal.value == "vkgateway-root-ca.crt"


def test_security_refusals_use_the_plugins_messages() -> None:
    refusal = only(pod(hostNetwork=True))
    assert refusal == Refusal(
        field="spec.hostNetwork",
        value="true",
        rule="hostNamespaces",
        message='violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)',
    )


def test_all_refusals_are_returned() -> None:
    wanted = pod(hostPID=True, runtimeClassName="x", volumes=[{"name": "h", "hostPath": {"path": "/"}}])
    assert {one.rule for one in find_refusals(wanted, tenant=TENANT)} == {
        "hostNamespaces",
        "hostPathVolumes",
        "NotAllowed",
    }

"""Copies, namespaces, priority classes, and labels in files of the downward API."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.translate.samples import TENANT
from vkgateway.kinds.configs.translation import compute_name, forward_config_map, forward_secret
from vkgateway.kinds.namespaces.translation import namespace_objects
from vkgateway.kinds.pods.translation.downward_api import quote_go, render_map


def source(kind: str, **more: Any) -> dict[str, Any]:
    metadata = {
        "name": "it",
        "namespace": "web",
        "uid": "u",
        "resourceVersion": "5",
        "labels": {"a": "b"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        "ownerReferences": [{}],
    }
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


MARKED = {
    "name": "it",
    "namespace": "alpha--web",
    "labels": {"vkgateway.io/tenant": "alpha"},
    "annotations": {"vkgateway.io/namespace": "web", "vkgateway.io/name": "it", "vkgateway.io/uid": "u"},
}


def test_config_map_copy_keeps_its_contents() -> None:
    contents = {"data": {"k": "v"}, "binaryData": {"b": "AA=="}, "immutable": True}
    made = forward_config_map(source("ConfigMap", **contents), tenant=TENANT, namespace="web")
    assert made == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": MARKED, **contents}


def test_copies_have_no_keys_that_would_give_devices() -> None:
    data = {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0", "a": "b"}
    kept = {"CUDA_VISIBLE_DEVICES": "0", "a": "b"}
    found = source("ConfigMap", data=data)
    assert forward_config_map(found, tenant=TENANT, namespace="web")["data"] == kept
    assert forward_secret(source("Secret", data=data), tenant=TENANT, namespace="web")["data"] == kept
    assert found["data"] == data
    privileged = replace(TENANT, pod_security="privileged")
    assert forward_config_map(found, tenant=privileged, namespace="web")["data"] == data


def test_root_certificate_copy_is_renamed() -> None:
    given = source("ConfigMap", data={"ca.crt": "x"})
    given["metadata"]["name"] = "kube-root-ca.crt"
    made = forward_config_map(given, tenant=TENANT, namespace="web")["metadata"]
    assert made["name"] == "vkgateway-root-ca.crt"
    assert made["annotations"]["vkgateway.io/name"] == "kube-root-ca.crt"
    assert compute_name("configmaps", "kube-root-ca.crt") == "vkgateway-root-ca.crt"
    assert compute_name("secrets", "kube-root-ca.crt") == "kube-root-ca.crt"


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("kubernetes.io/service-account-token", "Opaque"),
        ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockerconfigjson"),
        ("Opaque", "Opaque"),
    ],
)
def test_secret_types(above: str, below: str) -> None:
    made = forward_secret(source("Secret", type=above, data={"k": "dg=="}), tenant=TENANT, namespace="web")
    assert made["type"] == below
    assert made["data"] == {"k": "dg=="}
    assert made["metadata"] == MARKED


def test_namespace_comes_first_with_the_security_level() -> None:
    namespace, account, policy = namespace_objects(replace(TENANT, pod_security="restricted"), "web", "u")
    assert namespace["kind"] == "Namespace"
    assert namespace["metadata"]["name"] == "alpha--web"
    assert namespace["metadata"]["labels"] == {
        "vkgateway.io/tenant": "alpha",
        "pod-security.kubernetes.io/enforce": "restricted",
        "pod-security.kubernetes.io/enforce-version": "latest",
    }
    assert namespace["metadata"]["annotations"]["vkgateway.io/uid"] == "u"
    assert account["metadata"]["name"] == "vkgateway-pod"
    assert account["automountServiceAccountToken"] is False
    assert policy["kind"] == "NetworkPolicy"


def test_isolation_policy_allows_only_the_tenant() -> None:
    policy = namespace_objects(TENANT, "web", "u")[2]["spec"]
    own = {"namespaceSelector": {"matchLabels": {"vkgateway.io/tenant": "alpha"}}}
    assert policy["podSelector"] == {}
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    plane = {"namespaceSelector": {"matchLabels": {"vkgateway.io/control-plane": "alpha"}}}
    assert policy["ingress"] == [{"from": [own]}, {"from": [plane]}]
    assert {"to": [own]} in policy["egress"]


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain", '"plain"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("line\nnext\ttab", '"line\\nnext\\ttab"'),
        ("\x00\x7f", '"\\x00\\x7f"'),
        ("\x85\u2028", '"\\u0085\\u2028"'),
        ("grün 日本", '"grün 日本"'),
        ("\U000e0001", '"\\U000e0001"'),
    ],
)
def test_quotes_as_go_does(text: str, quoted: str) -> None:
    assert quote_go(text) == quoted


def test_maps_are_sorted_lines() -> None:
    assert render_map({"b": "2", "a": "1"}) == 'a="1"\nb="2"'
    assert render_map({}) == ""

"""Tests of the recommended policy that removes managedFields from tenant pods."""

from __future__ import annotations

from pathlib import Path

import yaml

from vkgateway.api.names import TENANT_LABEL
from vkgateway.serve import rbac, recommended_policies

FILE = Path(recommended_policies.__file__).parent / "lean-pods.yaml"


def test_policy_matches_only_new_tenant_pods() -> None:
    policy, _ = recommended_policies.lean_pods_policy("v1")
    spec = policy["spec"]

    assert spec["matchConstraints"] == {
        "objectSelector": {"matchExpressions": [{"key": TENANT_LABEL, "operator": "Exists"}]},
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    assert set(spec) == {"matchConstraints", "failurePolicy", "reinvocationPolicy", "mutations"}


def test_policy_removes_managed_fields_and_refuses_no_pod() -> None:
    policy, _ = recommended_policies.lean_pods_policy("v1")
    (mutation,) = policy["spec"]["mutations"]

    assert mutation["jsonPatch"]["expression"] == '[JSONPatch{op: "remove", path: "/metadata/managedFields"}]'
    assert policy["spec"]["failurePolicy"] == "Ignore"


def test_binding_applies_policy_to_all_matching_pods() -> None:
    policy, binding = recommended_policies.lean_pods_policy("v1")

    assert (policy["kind"], binding["kind"]) == ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"]}


def test_older_kubernetes_gets_policy_in_its_api_version() -> None:
    """Admins of newer clusters apply the file itself."""
    documents = list(yaml.safe_load_all(FILE.read_text()))
    assert recommended_policies.lean_pods_policy("v1") == documents
    beta = [document | {"apiVersion": "admissionregistration.k8s.io/v1beta1"} for document in documents]
    assert recommended_policies.lean_pods_policy("v1beta1") == beta
    text = FILE.read_text().splitlines()
    as_the_docs_say = "\n".join(line + "beta1" if line.endswith("/v1") else line for line in text)
    assert list(yaml.safe_load_all(as_the_docs_say)) == beta


def test_gateway_has_no_permission_for_policies() -> None:
    """Such permissions would control the whole cluster."""
    rules = [rule for role in (*rbac.compute_roles(), *rbac.management_roles()) for rule in role.get("rules", ())]
    assert rules
    assert [rule for rule in rules if {"admissionregistration.k8s.io", "*"} & set(rule.get("apiGroups", ()))] == []

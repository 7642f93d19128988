"""What a compute cluster's admin may apply beside the gateway's rights: the policy that keeps tenants' pods lean."""

from __future__ import annotations

from pathlib import Path

import yaml

from vkgateway.gateway import rbac, recommended_policies
from vkgateway.model.names import TENANT_LABEL

FILE = Path(recommended_policies.__file__).parent / "lean-pods.yaml"


def test_the_policy_looks_at_tenants_new_pods_and_nothing_else() -> None:
    policy, _ = recommended_policies.lean_pods_policy("v1")
    spec = policy["spec"]

    assert spec["matchConstraints"] == {
        "objectSelector": {"matchExpressions": [{"key": TENANT_LABEL, "operator": "Exists"}]},
        "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
    }
    assert set(spec) == {"matchConstraints", "failurePolicy", "reinvocationPolicy", "mutations"}


def test_it_takes_the_record_away_and_refuses_no_pod() -> None:
    policy, _ = recommended_policies.lean_pods_policy("v1")
    (mutation,) = policy["spec"]["mutations"]

    assert mutation["jsonPatch"]["expression"] == '[JSONPatch{op: "remove", path: "/metadata/managedFields"}]'
    assert policy["spec"]["failurePolicy"] == "Ignore"


def test_it_is_bound_as_it_stands_for_all_pods_that_it_chooses() -> None:
    policy, binding = recommended_policies.lean_pods_policy("v1")

    assert (policy["kind"], binding["kind"]) == ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": policy["metadata"]["name"]}


def test_older_releases_get_the_same_in_their_version() -> None:
    """The file itself is what admins of new ones apply."""
    documents = list(yaml.safe_load_all(FILE.read_text()))
    assert recommended_policies.lean_pods_policy("v1") == documents
    beta = [document | {"apiVersion": "admissionregistration.k8s.io/v1beta1"} for document in documents]
    assert recommended_policies.lean_pods_policy("v1beta1") == beta
    text = FILE.read_text().splitlines()
    as_the_docs_say = "\n".join(line + "beta1" if line.endswith("/v1") else line for line in text)
    assert list(yaml.safe_load_all(as_the_docs_say)) == beta


def test_the_gateway_has_no_rights_for_it() -> None:
    """Whoever makes such policies has power over the whole cluster."""
    rules = [rule for role in (*rbac.compute_roles(), *rbac.management_roles()) for rule in role.get("rules", ())]
    assert rules
    assert [rule for rule in rules if {"admissionregistration.k8s.io", "*"} & set(rule.get("apiGroups", ()))] == []

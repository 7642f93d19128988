"""The admission policy that refuses to delete protected Tenants."""

from __future__ import annotations

from vkgateway.api.names import GROUP
from vkgateway.kube.resources import TENANTS
from vkgateway.serve import management_policies


def test_policy_is_evaluated_for_deletions_of_tenants() -> None:
    policy, binding = management_policies.deletion_protection()
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert rule == {
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["DELETE"],
        "resources": [TENANTS.plural],
    }
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_refusal_names_the_ways_out() -> None:
    policy, _ = management_policies.deletion_protection()
    (validation,) = policy["spec"]["validations"]
    assert "deletionProtection.orValue(false)" in validation["expression"]
    for words in ("vkgateway tenant set ", " --no-deletion-protection", "kubectl patch tenant "):
        assert words in validation["messageExpression"]

"""Coverage of the gateway's rules by CEL. End-to-end tests compare the verdicts on real API servers."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from tests.refused import ALLOWED, BY_LEVEL_BASELINE, BY_LEVEL_RESTRICTED, BY_POLICY, pod_of
from tests.unit.translate.samples import TENANT
from vkgateway.api.types import PodSecurity, TenantPolicy
from vkgateway.kinds.pods.policy import rules as refusal_texts
from vkgateway.kinds.pods.policy.admission import pod_rules, pod_security_rules, service_rules
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.policy.security import find_violations
from vkgateway.kinds.pods.policy.security.levels import rule_names


def text(policy: TenantPolicy) -> str:
    found = [pod_rules(policy), pod_security_rules(policy)]
    return "\n".join(variable.expression for rules in found if rules for variable in rules.variables)


@pytest.mark.parametrize("name", [*BY_POLICY, *BY_LEVEL_BASELINE])
def test_gateway_refuses_each_sample(name: str) -> None:
    assert find_refusals(pod_of(name, {**BY_POLICY, **BY_LEVEL_BASELINE}[name]), tenant=TENANT)


@pytest.mark.parametrize("name", ALLOWED)
def test_gateway_allows_what_only_resembles_a_refused_pod(name: str) -> None:
    assert not list(find_refusals(pod_of(name, ALLOWED[name]), tenant=TENANT))


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_each_level_rule_has_a_sample(level: PodSecurity) -> None:
    samples = {**BY_LEVEL_BASELINE, **(BY_LEVEL_RESTRICTED if level == "restricted" else {})}
    pods = [pod_of(name, fields) for name, fields in samples.items()]
    assert {one.rule for pod in pods for one in find_violations(pod, level=level)} == set(rule_names(level))


TEXTS = [
    refusal_texts.RESERVED_KEY,
    refusal_texts.RESOURCE_CLAIM,
    refusal_texts.USER_NAMESPACE,
    *refusal_texts.UNSUPPORTED_VOLUMES.values(),
    *refusal_texts.UNSUPPORTED_SOURCES.values(),
    refusal_texts.NODE_VOLUME,
    refusal_texts.DEVICE_VARIABLE,
    refusal_texts.DEVICE_PREFIX,
    refusal_texts.RUNTIME_CLASS,
    refusal_texts.TOLERATION,
    refusal_texts.ROOT_CA,
]


@pytest.mark.parametrize("text", TEXTS)
def test_each_refusal_text_has_a_sample(text: str) -> None:
    found = [
        one.message for name, fields in BY_POLICY.items() for one in find_refusals(pod_of(name, fields), tenant=TENANT)
    ]
    pattern = ".+".join(re.escape(part) for part in re.split(r"\{\w+\}", text))
    assert any(re.fullmatch(pattern, message) for message in found)


def test_expressions_contain_each_refusal_text() -> None:
    expressions = text(TenantPolicy(image_pull_secrets=("a",)))
    for value in [*TEXTS, refusal_texts.STATIC_POD, refusal_texts.EMPTY_SOURCE, refusal_texts.IMAGE_PULL]:
        parts = re.split(r"\{\w+\}", value)
        assert all(json.dumps(part) in expressions for part in parts if part)


@pytest.mark.parametrize(
    ("policy", "absent"),
    [
        ({"pod_security": "privileged"}, "violates PodSecurity"),
        ({"pod_security": "privileged"}, refusal_texts.NODE_VOLUME[-30:]),
        ({"pod_security": "privileged"}, "NVIDIA_VISIBLE_DEVICES"),
        ({"runtime_classes": ("*",)}, "runtime class"),
        ({"image_pull_secrets": ("*",)}, "image pull secret"),
        ({"user_namespaces": True}, "hostUsers: false"),
    ],
)
def test_expressions_leave_out_allowed_fields(policy: dict[str, Any], absent: str) -> None:
    strict = TenantPolicy(image_pull_secrets=("a",))
    assert absent in text(strict)
    assert absent not in text(TenantPolicy(**{"image_pull_secrets": ("a",), **policy}))


def test_refused_service_types() -> None:
    assert service_rules(TenantPolicy()) is None
    rules = service_rules(TenantPolicy(load_balancers="Refuse", node_ports="Forward"))
    assert rules is not None
    assert 'in ["LoadBalancer"]' in rules.condition
    assert rules.variables[-1].name == "refusals"


def test_policy_names_are_quoted() -> None:
    policy = TenantPolicy(runtime_classes=('a"]', "b"))
    assert r'!(n in ["a\"]", "b"])' in text(policy)


def test_messages_name_the_allowed_values() -> None:
    (refusal,) = find_refusals(
        pod_of("p", {"runtimeClassName": "kata"}), tenant=replace(TENANT, runtime_classes=("gvisor", "runc"))
    )
    assert refusal.message == (
        "spec.runtimeClassName: runtime class kata is not allowed for this tenant; "
        "allowed runtime classes: gvisor, runc"
    )

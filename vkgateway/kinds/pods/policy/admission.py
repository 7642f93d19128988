"""CEL rules of a tenant's policy, for ValidatingAdmissionPolicies in the tenant's API server.

https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/

The pod rules mirror the checks of `policy` and take their messages from `refusal_texts`. The expressions use only
functions that Kubernetes 1.30 supports.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.names import COMPUTE_ROOT_CA, GANG_ANNOTATIONS, GATEWAY_ANNOTATIONS, GROUP, HOLLOW_DOMAIN
from vkgateway.api.types import TenantPolicy
from vkgateway.kinds.context import ANY
from vkgateway.kinds.pods.policy import rules as refusal_texts
from vkgateway.kinds.pods.policy.rules import POD_VOLUMES, PodPolicy, allowed_runtime_classes
from vkgateway.kinds.pods.policy.security import cel
from vkgateway.kinds.pods.translation.containers import DEVICE_VARIABLES, HIDING_VALUES
from vkgateway.kinds.services.translation import LOAD_BALANCER, NODE_PORT

_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
_GROUP_LITERAL: Final = json.dumps(GROUP)
_ROOT_CA_LITERAL: Final = json.dumps(COMPUTE_ROOT_CA)
_CONTAINERS: Final = "object.spec.containers + object.spec.?initContainers.orValue([])"
_VOLUMES: Final = "object.spec.?volumes.orValue([])"


@dataclass(frozen=True, slots=True)
class Rule:
    """CEL rule for pods: a cheap condition, and the messages for a pod that breaks the rule."""

    name: str
    condition: str
    """True for each pod that breaks the rule, and cheap to evaluate for every other pod."""
    messages: str
    """Expression for a list of messages, empty for a pod that keeps the rule, in the order of `policy`."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Named expression of an admission policy. Later variables may use it."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """Match condition and variables of an admission policy.

    The last variable, `refusals`, holds the messages of all rules that an object breaks.
    """

    condition: str
    variables: tuple[Variable, ...]


_SHARED_VARIABLES: Final = (
    Variable("containers", _CONTAINERS),
    Variable("volumes", _VOLUMES),
)


def pod_rules(policy: PodPolicy) -> PolicyRules:
    """Return all pod rules except those of the pod security level, for every namespace.

    Most pods break no rule. For them, API servers evaluate one condition and no variable.
    """
    rules = [rule for rule in _all_rules(policy) if rule.messages != "[]"]
    return PolicyRules(
        condition=" || ".join(f"({rule.condition})" for rule in rules),
        variables=(
            *_SHARED_VARIABLES,
            *(Variable(rule.name, rule.messages) for rule in rules),
            Variable("refusals", " + ".join(f"variables.{rule.name}" for rule in rules)),
        ),
    )


def pod_security_rules(policy: PodPolicy) -> PolicyRules | None:
    """Return the rules of the tenant's pod security level, or None for level `privileged`.

    These rules apply in namespaces whose labels set another level. Elsewhere the PodSecurity plugin enforces the
    tenant's level.
    """
    messages = cel.violations_expression(policy.pod_security)
    return PolicyRules("true", (*_SHARED_VARIABLES, Variable("refusals", messages))) if messages != "[]" else None


def service_rules(policy: TenantPolicy) -> PolicyRules | None:
    """Return the rule for types of Services, or None if the policy refuses no type.

    A Service that had its type before the policy refused the type can still be changed.
    """
    types = {LOAD_BALANCER: policy.load_balancers, NODE_PORT: policy.node_ports}
    refused = [kind for kind, exposure in types.items() if exposure == "Refuse"]
    if not refused:
        return None
    kind = "object.spec.?type.orValue('')"
    had_it = f"oldObject != null && oldObject.spec.?type.orValue('') == {kind}"
    message = _text_expression(refusal_texts.SERVICE_TYPE, kind=kind)
    return PolicyRules(f"{kind} in {_list_literal(refused)} && !({had_it})", (Variable("refusals", f"[{message}]"),))


def _all_rules(policy: PodPolicy) -> tuple[Rule, ...]:
    return (
        _reserved_keys(),
        _resource_claims(),
        _user_namespace(policy),
        _unsupported_volumes(),
        _node_volumes(policy),
        *_device_variables(policy),
        _runtime_class(policy),
        _pull_secrets(policy),
        _reserved_tolerations(),
        _reserved_references(),
    )


def _reserved_keys() -> Rule:
    labels, annotations = "object.metadata.?labels.orValue({})", "object.metadata.?annotations.orValue({})"
    theirs = _list_literal(sorted(GANG_ANNOTATIONS | GATEWAY_ANNOTATIONS))
    static = f"{json.dumps(refusal_texts.MIRROR_ANNOTATION)} in {annotations}"
    in_labels = f"{labels}.filter(k, {_is_reserved('k')})"
    in_annotations = f"{annotations}.filter(k, {_is_reserved('k')} && !(k in {theirs}))"
    return Rule(
        "reservedKeys",
        f"{labels}.exists(k, k.contains({_GROUP_LITERAL}))"
        f" || {annotations}.exists(k, k.contains({_GROUP_LITERAL}) && !(k in {theirs})) || {static}",
        _concat_lists(
            f"{in_labels}.map(k, {_text_expression(refusal_texts.RESERVED_KEY, kind=json.dumps('labels'), key='k')})",
            (
                f"{in_annotations}.map(k, "
                f"{_text_expression(refusal_texts.RESERVED_KEY, kind=json.dumps('annotations'), key='k')})"
            ),
            _message_if(static, refusal_texts.STATIC_POD),
        ),
    )


def _resource_claims() -> Rule:
    message = _text_expression(refusal_texts.RESOURCE_CLAIM, name="r.name")
    return Rule(
        "resourceClaims",
        "has(object.spec.resourceClaims)",
        f"object.spec.?resourceClaims.orValue([]).map(r, {message})",
    )


def _user_namespace(policy: PodPolicy) -> Rule:
    asked = "!object.spec.?hostUsers.orValue(true)"
    return Rule(
        "userNamespace", asked, "[]" if policy.user_namespaces else _message_if(asked, refusal_texts.USER_NAMESPACE)
    )


def _unsupported_volumes() -> Rule:
    sources = "v.?projected.?sources.orValue([])"
    volumes = {f"has(v.{kind})": text for kind, text in refusal_texts.UNSUPPORTED_VOLUMES.items()}
    odd_sources = {f"has(s.{kind})": text for kind, text in refusal_texts.UNSUPPORTED_SOURCES.items()}
    odd_sources["s.size() == 0"] = refusal_texts.EMPTY_SOURCE
    volumes |= {f"{sources}.exists(s, {condition})": text for condition, text in odd_sources.items()}
    any_source = " || ".join(odd_sources)
    kinds = " || ".join(f"has(v.{kind})" for kind in refusal_texts.UNSUPPORTED_VOLUMES)
    return Rule(
        "unsupportedVolumes",
        f"{_VOLUMES}.exists(v, {kinds} || has(v.projected) && {sources}.exists(s, {any_source}))",
        _concat_lists(
            *(
                f"variables.volumes.filter(v, {condition}).map(v, {_text_expression(text, name='v.name')})"
                for condition, text in volumes.items()
            )
        ),
    )


def _node_volumes(policy: PodPolicy) -> Rule:
    is_other = f"!(k in {_list_literal(sorted(POD_VOLUMES | {'name', 'hostPath'}))})"
    text = _text_expression(refusal_texts.NODE_VOLUME, name="v.name", kind=f"v.filter(k, {is_other})[0]")
    messages = f"variables.volumes.filter(v, v.exists(k, {is_other})).map(v, {text})"
    return Rule(
        "nodeVolumes",
        f"{_VOLUMES}.exists(v, v.exists(k, {is_other}))",
        "[]" if policy.pod_security == "privileged" else messages,
    )


def _device_variables(policy: PodPolicy) -> tuple[Rule, ...]:
    if policy.pod_security == "privileged":
        return ()
    names = _list_literal(DEVICE_VARIABLES)
    hides = f"!has(e.valueFrom) && e.?value.orValue('') in {_list_literal(HIDING_VALUES)}"
    is_set = f"e.name in {names} && !({hides})"
    splits = f"f.?prefix.orValue('') != '' && {names}.exists(n, n.startsWith(f.prefix))"
    set_text, split_text = refusal_texts.DEVICE_VARIABLE, refusal_texts.DEVICE_PREFIX
    return (
        _container_rule("deviceVariables", "env", is_set, entry="e", name="name", text=set_text),
        _container_rule("devicePrefixes", "envFrom", splits, entry="f", name="prefix", text=split_text),
    )


def _container_rule(rule: str, field: str, broken: str, *, entry: str, name: str, text: str) -> Rule:
    """Return a rule about entries of a list field of the containers; the first that breaks it is named."""
    breaks = f"has(c.{field}) && c.{field}.exists({entry}, {broken})"
    message = _text_expression(text, container="c.name", name=f"c.{field}.filter({entry}, {broken})[0].{name}")
    return Rule(
        rule, f"({_CONTAINERS}).exists(c, {breaks})", f"variables.containers.filter(c, {breaks}).map(c, {message})"
    )


def _runtime_class(policy: PodPolicy) -> Rule:
    names = "[object.spec.?runtimeClassName.orValue('')]"
    messages = _disallowed_names(names, allowed_runtime_classes(policy), refusal_texts.RUNTIME_CLASS)
    return Rule("runtimeClass", "has(object.spec.runtimeClassName)", messages)


def _pull_secrets(policy: PodPolicy) -> Rule:
    names = "object.spec.?imagePullSecrets.orValue([]).map(s, s.?name.orValue(''))"
    messages = _disallowed_names(names, policy.image_pull_secrets, refusal_texts.IMAGE_PULL)
    return Rule("imagePullSecrets", "has(object.spec.imagePullSecrets)", messages)


def _disallowed_names(names: str, allowed: tuple[str, ...], text: str) -> str:
    """Return an expression for the messages about names that are not "" and not on an allow-list."""
    if ANY in allowed:
        return "[]"
    message = _text_expression(text, name="n", allowed=json.dumps(refusal_texts.render_names(allowed)))
    return f"{names}.filter(n, n != '' && !(n in {_list_literal(allowed)})).map(n, {message})"


def _reserved_tolerations() -> Rule:
    tolerations = "object.spec.?tolerations.orValue([])"
    keys = f"{tolerations}.map(t, t.?key.orValue('')).filter(k, {_is_reserved('k')})"
    return Rule(
        "tolerations",
        f"{tolerations}.exists(t, t.?key.orValue('').contains({_GROUP_LITERAL}))",
        f"{keys}.map(k, {_text_expression(refusal_texts.TOLERATION, key='k')})",
    )


def _reserved_references() -> Rule:
    by_env = f"has(e.valueFrom) && e.valueFrom.?configMapKeyRef.?name.orValue('') == {_ROOT_CA_LITERAL}"
    by_env_from = f"e.?configMapRef.?name.orValue('') == {_ROOT_CA_LITERAL}"
    by_source = f"s.?configMap.?name.orValue('') == {_ROOT_CA_LITERAL}"
    named = (
        f"({_CONTAINERS}).exists(c, has(c.env) && c.env.exists(e, {by_env})"
        f" || has(c.envFrom) && c.envFrom.exists(e, {by_env_from}))"
        f" || {_VOLUMES}.exists(v, v.?configMap.?name.orValue('') == {_ROOT_CA_LITERAL}"
        f" || has(v.projected) && v.projected.?sources.orValue([]).exists(s, {by_source}))"
    )
    return Rule("reservedReferences", named, _message_if(named, refusal_texts.ROOT_CA))


def _is_reserved(key: str) -> str:
    """Return an expression that is true for a reserved key, as `names.is_reserved` is."""
    prefix = rf"^([^/]*\.)?{re.escape(GROUP)}/"
    return f"({key}.matches({json.dumps(prefix)}) && !{key}.startsWith({json.dumps(HOLLOW_DOMAIN + '/')}))"


def _message_if(condition: str, text: str) -> str:
    return f"({condition} ? [{_text_expression(text)}] : [])"


def _concat_lists(*lists: str) -> str:
    return " + ".join(each for each in lists if each != "[]") or "[]"


def _list_literal(names: Iterable[str]) -> str:
    return json.dumps(list(names))


def _text_expression(text: str, **expressions: str) -> str:
    """Return a text as a CEL expression. `expressions` fill in the names in braces."""
    parts: list[Any] = _PLACEHOLDER.split(text)
    literals = [json.dumps(part) for part in parts[::2]]
    filled = [expressions[name] for name in parts[1::2]]
    mixed = [part for pair in zip(literals, [*filled, ""], strict=True) for part in pair]
    return " + ".join(part for part in mixed if part not in ("", '""'))

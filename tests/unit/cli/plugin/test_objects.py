"""Tests of the allowed fields of objects: an unknown field at any depth is left out, whatever its type."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.cli.plugin.canaries import Canaries
from tests.unit.cli.plugin.tool import GPU, node, running
from vkgateway.cli.plugin.bundle import objects
from vkgateway.cli.plugin.bundle.texts import allowed_message

CANARY = "c4n4ry"
FREE_MAPS = frozenset(
    {"nodeSelector", "requests", "limits", "capacity", "allocatable", "guarantee", "limit", "storageClassNames"}
)
"""Maps with keys of users, whose values are names or quantities."""

CONDITION = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
TENANT: dict[str, Any] = {
    "metadata": {"name": "alpha", "labels": {}, "annotations": {}, "ownerReferences": [{"kind": "X", "name": "x"}]},
    "spec": {
        "pools": [{"name": "a100", "guarantee": {GPU: "8"}, "limit": {GPU: "8"}}],
        "policy": {"podSecurity": "baseline", "storageClassNames": {}},
        "apiServer": {"exposure": {"type": "NodePort", "annotations": {}}},
    },
    "status": {"phase": "Ready", "conditions": [CONDITION], "apiServer": {"port": 1}, "pools": [{"name": "a100"}]},
}
COMPUTE: dict[str, Any] = {
    "metadata": {"name": "local"},
    "spec": {
        "connection": {"kubeconfigSecret": {"name": "x"}},
        "pools": [{"name": "a100", "nodeSelector": {}, "tolerations": [{}], "scheduling": {"mode": "kueue"}}],
    },
    "status": {"conditions": [CONDITION], "pools": [{"name": "a100", "allocatable": {}}]},
}
WEBHOOKS: dict[str, Any] = {
    "metadata": {"name": "x"},
    "webhooks": [{"name": "w", "rules": [{"operations": ["CREATE"]}], "clientConfig": {"service": {"name": "s"}}}],
}
LEASE: dict[str, Any] = {"metadata": {"name": "gateway"}, "spec": {"holderIdentity": "x"}}


def a_pod() -> dict[str, Any]:
    made = running("p")
    selector = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}
    made["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": selector}}
    made["spec"]["tolerations"] = [{"key": "a"}]
    made["status"] |= {
        "conditions": [CONDITION],
        "containerStatuses": [{"name": "c", "state": {"running": {}, "waiting": {}, "terminated": {}}}],
    }
    return made


def poison(value: Any, *, free: bool = False) -> Any:
    """Return the value with canaries under unknown keys in every map, and in the place of every list item."""
    if isinstance(value, dict):
        poisoned = {key: poison(inner, free=key in FREE_MAPS) for key, inner in value.items()}
        poisoned |= {"zz-map": {"key": CANARY}, "zz-list": [CANARY]}
        return poisoned if free else poisoned | {"zz-text": CANARY}
    if isinstance(value, list):
        return [*(poison(item) for item in value), {"zz": CANARY}]
    return value


def replace_each(value: Any) -> list[Any]:
    """Return copies of the value in which one map or list is a text instead."""
    found: list[Any] = []

    def visit(here: Any, put: Callable[[Any], None]) -> None:
        if not isinstance(here, dict | list):
            return
        put(CANARY)
        found.append(copy.deepcopy(root["value"]))
        put(here)
        for key in here if isinstance(here, dict) else range(len(here)):
            visit(here[key], lambda new, key=key: here.__setitem__(key, new))  # type: ignore[misc]

    root = {"value": copy.deepcopy(value)}
    for key in root["value"]:
        visit(root["value"][key], lambda new, key=key: root["value"].__setitem__(key, new))  # type: ignore[misc]
    return found


CASES = [
    (objects.redact_pod, a_pod()),
    (objects.redact_node, node()),
    (objects.redact_tenant, TENANT),
    (objects.redact_compute_cluster, COMPUTE),
    (objects.redact_webhooks, WEBHOOKS),
    (objects.redact_lease, LEASE),
    (objects.redact_event, Canaries().event("x", "Failed") | {"metadata": {}, "message": "", "involvedObject": {}}),
]


@pytest.mark.parametrize(("redact", "document"), CASES, ids=[case[0].__name__ for case in CASES])
def test_unknown_fields_are_left_out_at_any_depth(redact: Callable[..., Any], document: dict[str, Any]) -> None:
    shown = json.dumps(redact(poison(document), allowed_message))
    assert CANARY not in shown, shown


@pytest.mark.parametrize(("redact", "document"), CASES, ids=[case[0].__name__ for case in CASES])
def test_text_in_the_place_of_a_structure_is_removed(redact: Callable[..., Any], document: dict[str, Any]) -> None:
    variants = replace_each(document)
    assert variants
    for variant in variants:
        shown = json.dumps(redact(variant, allowed_message))
        assert CANARY not in shown, shown

"""Compute PodDisruptionBudgets with the tenant controller's result as an absolute number."""

from typing import Any

import msgspec
import pytest

from tests.unit.translate.samples import TENANT
from vkgateway.api.names import TENANT_LABEL
from vkgateway.kinds.budgets.translation import (
    NONE_ALLOWED,
    DisruptionBudgetView,
    decode_budget,
    forward_budget,
    is_up_to_date,
)

WEB = {"matchLabels": {"app": "web"}}
FAILED = [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed"}]
ENOUGH = [{"type": "DisruptionAllowed", "status": "True", "reason": "SufficientPods"}]


def budget(spec: dict[str, Any] | None = None, *, generation: int = 1, **status: Any) -> DisruptionBudgetView:
    metadata = {"name": "quorum", "namespace": "shop", "uid": "u-1", "generation": generation}
    whole = {"metadata": metadata, "spec": spec or {"minAvailable": "50%", "selector": WEB}, "status": status}
    return decode_budget(msgspec.json.encode(whole))


def required(view: DisruptionBudgetView, *, healthy_elsewhere: int = 0) -> Any:
    return forward_budget(view, tenant=TENANT, healthy_elsewhere=healthy_elsewhere)["spec"]["minAvailable"]


@pytest.mark.parametrize(
    ("status", "wanted"),
    [
        ({"observedGeneration": 1, "desiredHealthy": 2, "conditions": ENOUGH}, 2),
        ({"observedGeneration": 1, "desiredHealthy": 0}, 0),
        ({"observedGeneration": 0, "desiredHealthy": 0}, NONE_ALLOWED),
        ({}, NONE_ALLOWED),
        ({"observedGeneration": 1, "desiredHealthy": 0, "conditions": FAILED}, NONE_ALLOWED),
        ({"observedGeneration": 1, "desiredHealthy": -5}, 0),
        ({"observedGeneration": 1, "desiredHealthy": 2**40}, NONE_ALLOWED),
        ({"observedGeneration": 1, "desiredHealthy": 2, "conditions": None}, 2),
    ],
)
def test_minimum_comes_from_the_tenant_cluster_or_allows_no_disruption(status: dict[str, Any], wanted: int) -> None:
    assert required(budget(**status)) == wanted


def test_status_of_an_earlier_spec_is_ignored() -> None:
    assert required(budget(generation=2, observedGeneration=1, desiredHealthy=1)) == NONE_ALLOWED


def test_healthy_pods_in_other_compute_clusters_count() -> None:
    view = budget(observedGeneration=1, desiredHealthy=3)
    assert [required(view, healthy_elsewhere=number) for number in (0, 1, 3, 7)] == [3, 2, 0, 0]
    assert required(budget(), healthy_elsewhere=7) == NONE_ALLOWED


@pytest.mark.parametrize("policy", ["AlwaysAllow", "IfHealthyBudget", None])
def test_forwarded_budget(policy: str | None) -> None:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": {"volcano.sh/job-name": "x"}}}
    made = forward_budget(budget(spec | ({"unhealthyPodEvictionPolicy": policy} if policy else {})), tenant=TENANT)
    assert made["metadata"]["namespace"] == "alpha--shop"
    assert made["metadata"]["labels"] == {TENANT_LABEL: "alpha"}
    assert made["metadata"]["annotations"]["vkgateway.io/uid"] == "u-1"
    assert "maxUnavailable" not in made["spec"]
    assert made["spec"]["selector"] == {"matchLabels": {"volcano.sh.tenant-label.vkgateway.io/job-name": "x"}}
    assert made["spec"].get("unhealthyPodEvictionPolicy") == policy


@pytest.mark.parametrize("selector", [None, {}, WEB, {"matchLabels": {}, "matchExpressions": []}])
def test_missing_and_empty_selectors_differ(selector: dict[str, Any] | None) -> None:
    spec = {"minAvailable": 1} | ({} if selector is None else {"selector": selector})
    made = forward_budget(budget(spec), tenant=TENANT)
    assert made["spec"].get("selector") == selector
    assert is_up_to_date(decode_budget(msgspec.json.encode(made)), made)


def test_budget_of_an_earlier_uid_is_not_up_to_date() -> None:
    made = forward_budget(budget(), tenant=TENANT)
    below = decode_budget(msgspec.json.encode(made))
    below.metadata.annotations["vkgateway.io/uid"] = "u-0"
    assert not is_up_to_date(below, made)

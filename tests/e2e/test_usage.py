"""Usage by day and monthly budgets: a used-up budget stops borrowing, keeps the guarantee, and survives the gateway."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from vkgateway.tenants.usage.monitor import COUNT_SECONDS

GPU = "nvidia.com/gpu"
ADMITTED = "vkgateway.io/Admitted"


@pytest.fixture(scope="module")
def spender(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant with a guarantee of 4 GPUs."""
    platform.vkgateway("tenant", "create", "spender", "--pool", f"v100:guarantee={GPU}=4")
    yield platform.tenant("spender")
    platform.vkgateway("tenant", "delete", "spender", "--yes")


def gpu_pod(name: str, amount: int, **spec: Any) -> Document:
    return pod_manifest(name, container={"resources": {"limits": {GPU: str(amount)}}}, **spec)


def set_budget(platform: Platform, *budgets: Document) -> None:
    patch = json.dumps({"spec": {"budget": list(budgets)}})
    platform.compute.kubectl("patch", "tenant", "spender", "--type=merge", "-p", patch)


def budget_condition(platform: Platform) -> Document:
    conditions = platform.compute.get("tenant", "spender")["status"]["conditions"]
    return next((entry for entry in conditions if entry["type"] == "WithinBudget"), {})


def tenant_events(platform: Platform) -> dict[str, str]:
    """Return the types of the events about the tenant by reason."""
    found = platform.compute.get("events", "--field-selector", "involvedObject.name=spender")
    return {event["reason"]: event["type"] for event in found["items"]}


def used_hours(platform: Platform) -> float:
    rows = json.loads(platform.vkgateway("usage", "--days", "2", "--by", "tenant", "-o", "json"))
    return float(sum(row["hours"] for row in rows if row["tenant"] == "spender"))


def pending_condition(tenant: Cluster, name: str) -> Document:
    conditions = tenant.get("pod", name)["status"].get("conditions", ())
    return next((entry for entry in conditions if entry["type"] == ADMITTED), {})


def test_invalid_budget_is_refused(platform: Platform, spender: Cluster) -> None:
    wrong = json.dumps({"spec": {"budget": [{"resource": "cpu", "hours": 1}]}})
    refused = platform.compute.try_kubectl("patch", "tenant", "spender", "--type=merge", "-p", wrong)
    assert refused.code != 0
    assert "spec.budget[0].resource" in refused.err
    twice = json.dumps({"spec": {"budget": [{"resource": GPU, "hours": 1}, {"resource": GPU, "hours": 2}]}})
    refused = platform.compute.try_kubectl("patch", "tenant", "spender", "--type=merge", "-p", twice)
    assert "a resource has one budget" in refused.err


def test_budget_warns_then_stops_borrowing_and_survives_the_gateway(platform: Platform, spender: Cluster) -> None:
    spender.apply(gpu_pod("ends", 8))
    spender.wait_pod("ends")
    eventually(lambda: used_hours(platform) > 0.03, what="its use is counted")
    spender.kubectl("delete", "pod", "ends", "--grace-period=1")

    # No pod uses GPUs now: the budget stays at 90 % until the next one does.
    set_budget(platform, {"resource": GPU, "hours": round(used_hours(platform) / 0.9, 4)})
    eventually(lambda: tenant_events(platform).get("BudgetNearlyUsed") == "Warning", what="a warning at 80 %")
    spender.apply(gpu_pod("borrows", 8))
    spender.wait_pod("borrows")
    eventually(lambda: budget_condition(platform).get("reason") == "BudgetUsedUp", what="the budget is used up")
    assert budget_condition(platform)["status"] == "False"
    eventually(lambda: tenant_events(platform).get("BudgetUsedUp") == "Warning", what="a warning at 100 %")

    spender.apply(gpu_pod("beyond", 6), gpu_pod("low", 1, priorityClassName="vkgateway-low"), gpu_pod("inside", 4))
    spender.wait_pod("inside")
    for name in ("beyond", "low"):
        eventually(lambda: pending_condition(spender, name).get("reason") == "BudgetUsedUp", what=f"{name} waits")  # noqa: B023
    message = pending_condition(spender, "beyond")["message"]
    assert f"hours of {GPU} is used up: only the guarantee is available until 1 " in message

    began, before = time.monotonic(), used_hours(platform)
    platform.kill_gateway()
    eventually(lambda: used_or_none(platform) is not None, what="the gateway answers again")
    spender.apply(gpu_pod("later", 1, priorityClassName="vkgateway-low"))
    eventually(lambda: pending_condition(spender, "later").get("reason") == "BudgetUsedUp", what="borrowing is stopped")
    after = used_hours(platform)
    assert before * 0.8 < after < before + 12 * (time.monotonic() - began + COUNT_SECONDS) / 3600
    assert spender.pod_phase("borrows") == spender.pod_phase("inside") == "Running"
    assert "is used up" in platform.vkgateway("explain", "beyond", "--tenant", "spender")

    set_budget(platform, {"resource": GPU, "hours": 1000})
    spender.wait_pod("low")
    spender.wait_pod("later")
    eventually(lambda: budget_condition(platform).get("reason") == "WithinBudget", what="within the budget again")
    set_budget(platform)
    eventually(lambda: not budget_condition(platform), what="no budget, no condition")


def used_or_none(platform: Platform) -> float | None:
    answer = platform.try_vkgateway("usage", "--days", "2", "--by", "tenant", "-o", "json")
    return None if answer.code else sum(row["hours"] for row in json.loads(answer.out) if row["tenant"] == "spender")


def test_usage_is_exported(platform: Platform, spender: Cluster) -> None:
    text = platform.vkgateway("usage", "--days", "2", "--by", "day,tenant,pool,band", "-o", "csv")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["tenant"] == "spender"]
    assert {(row["pool"], row["band"], row["resource"]) for row in rows} >= {("v100", "guaranteed", GPU)}
    assert sum(float(row["borrowedHours"]) for row in rows) > 0.03

    answer = json.loads(platform.vkgateway("usage", "--days", "2", "-o", "opencost", "--price", f"{GPU}=2"))
    found = [each for day in answer["data"] for each in day.values() if each["properties"]["namespace"] == "spender"]
    assert answer["code"] == 200
    assert all(each["gpuCost"] == each["totalCost"] == pytest.approx(2 * each["gpuHours"]) for each in found)
    assert {each["properties"]["cluster"] for each in found} == {"local"}

    set_budget(platform, {"resource": GPU, "hours": 500, "pool": "v100"})
    eventually(lambda: "500" in platform.vkgateway("usage", "--budgets"), what="the budget is listed")
    line = f'vkgateway_budget_hours{{pool="v100",resource="{GPU}",tenant="spender"}} 500.0'
    eventually(lambda: line in platform.metrics(), what="the budget is in the metrics")

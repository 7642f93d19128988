"""Fixed subset of Kubernetes' conformance cases, in a tenant whose pods run on the real node.

`make conformance` runs all cases in the tenant and in the compute cluster.
"""

from __future__ import annotations

import json

import pytest

from tests.e2e.cluster import TENANT_VERSION, Platform
from vkgateway_platform.conformance.cases import load_subset

TENANT = "conform"
SECONDS = 1800
"""Timeout of a run. On two idle cores it takes a few minutes."""
READY_SECONDS = 1800
"""Timeout to build the suite on a machine without it."""


@pytest.fixture
def tenant(platform: Platform) -> str:
    platform.vkgateway("tenant", "create", TENANT, "--pool", "real")
    # Cases make runtime classes, and pods that name them.
    allowed = json.dumps({"spec": {"policy": {"runtimeClasses": ["*"]}}})
    platform.compute.kubectl("patch", "tenant", TENANT, "--type=merge", "-p", allowed)
    return TENANT


@pytest.fixture
def cases(platform: Platform) -> set[str]:
    """Return the cases of the subset that the tenant's release has. Suites of other releases must already exist."""
    if TENANT_VERSION:
        found = platform.try_vkgateway("binaries", "path", "e2e.test", "--kubernetes-version", TENANT_VERSION)
        if found.code != 0:
            pytest.skip(f"no conformance suite of Kubernetes {TENANT_VERSION} here: {found.err}")
    platform.vkgateway("conformance", "prepare", timeout=READY_SECONDS)
    return set(platform.vkgateway("conformance", "list", "--subset", "-o", "name").splitlines())


@pytest.mark.usefixtures("real")
def test_tenant_passes_the_conformance_subset(platform: Platform, cases: set[str], tenant: str) -> None:
    ran = platform.try_vkgateway("conformance", "run", tenant, "--subset", "--workers", "6", timeout=SECONDS)
    outcomes = platform.data_dir / "conformance" / "tenants" / tenant / "outcomes.json"
    assert outcomes.exists(), str(ran)
    record = json.loads(outcomes.read_text())
    wrong = {
        name: outcome.get("message", "") for name, outcome in record["outcomes"].items() if outcome["state"] != "passed"
    }
    assert wrong == {}, str(ran)
    assert record["outcomes"].keys() == cases
    assert cases == load_subset() or TENANT_VERSION
    assert len(load_subset()) >= 60
    assert ran.code == 0, str(ran)
    platform.vkgateway("tenant", "delete", tenant, "--yes")

"""Managed fields: recorded for every pod, except compute pods of tenants."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.cluster import COMPUTE_MINOR, Cluster, Document, Platform, eventually, pod_manifest
from vkgateway.planes.plane import POLICIES_SINCE

BELOW = ("-n", "alpha--default")
APPLIED = "kubectl-client-side-apply"
"""Manager that `kubectl apply` records."""
pytestmark = pytest.mark.skipif(
    COMPUTE_MINOR < POLICIES_SINCE, reason=f"a compute cluster before 1.{POLICIES_SINCE} has no such policies"
)


def managed_fields(cluster: Cluster, name: str, *options: str) -> list[dict[str, Any]]:
    """Return the managed fields of a pod, which kubectl hides by default."""
    found: Document = cluster.get("pod", name, *options, "--show-managed-fields")
    entries: list[dict[str, Any]] = found["metadata"].get("managedFields", [])
    return entries


def field_managers(entries: list[dict[str, Any]]) -> set[str]:
    return {entry["manager"] for entry in entries}


def test_tenant_pod_has_managed_fields_and_compute_pod_has_none(platform: Platform, alpha: Cluster) -> None:
    """Neither binding and status nor a forwarded change adds managed fields."""

    def compute_pod() -> Document:
        return platform.compute.get("pod", "lean", *BELOW)

    alpha.apply(pod_manifest("lean"))
    alpha.wait_pod("lean")
    assert compute_pod()["status"]["phase"] == "Running"
    assert managed_fields(platform.compute, "lean", *BELOW) == []
    assert APPLIED in field_managers(managed_fields(alpha, "lean"))

    alpha.kubectl("label", "pod", "lean", "stage=later")
    eventually(lambda: compute_pod()["metadata"]["labels"].get("stage") == "later", what="the label below")
    assert managed_fields(platform.compute, "lean", *BELOW) == []
    alpha.kubectl("delete", "pod", "lean", "--wait")


def test_unmanaged_pod_keeps_its_managed_fields(platform: Platform) -> None:
    platform.compute.apply(pod_manifest("of-nobody"))
    platform.compute.wait_pod("of-nobody")

    compute_fields = managed_fields(platform.compute, "of-nobody")
    platform.compute.kubectl("delete", "pod", "of-nobody", "--wait")
    assert APPLIED in field_managers(compute_fields)

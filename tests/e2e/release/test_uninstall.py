"""Uninstallation of the chart, after all other tests of the release; tenants keep running."""

from __future__ import annotations

from tests.e2e.chart import RELEASE, SYSTEM, ChartPlatform
from tests.e2e.cluster import Cluster


def test_uninstall_keeps_tenants_and_says_so(installed: ChartPlatform, gamma: Cluster) -> None:
    printed = installed.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait")
    assert "tenants.vkgateway.io" in printed
    assert installed.compute.find("tenant", "gamma") is not None
    pod = installed.compute.get("pod", "stays", "-n", "gamma--default")["status"]
    assert (pod["phase"], pod["containerStatuses"][0]["restartCount"]) == ("Running", 0)

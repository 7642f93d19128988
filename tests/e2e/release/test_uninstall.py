"""Uninstallation of the chart, after all other tests of the release; tenants keep running."""

from __future__ import annotations

from tests.e2e.chart import CHART, RELEASE, SYSTEM, ChartPlatform
from tests.e2e.cluster import Cluster
from tests.e2e.release.conftest import NAME


def test_uninstall_keeps_tenants_and_says_so(installed: ChartPlatform, gamma: Cluster) -> None:
    printed = installed.helm("uninstall", RELEASE, "-n", SYSTEM, "--wait")
    assert "tenants.vkgateway.io" in printed
    assert installed.compute.find("tenant", "gamma") is not None
    pod = installed.compute.get("pod", "stays", "-n", "gamma--default")["status"]
    assert (pod["phase"], pod["containerStatuses"][0]["restartCount"]) == ("Running", 0)


def test_volumes_of_etcd_keep_the_name(installed: ChartPlatform) -> None:
    """With another name, etcd would start without the tenants' objects."""
    result = installed.try_helm("install", RELEASE, str(CHART), "--namespace", SYSTEM)
    assert result.code != 0
    assert f'tenants\' objects are in the volume data-{NAME}-etcd-0. Set nameOverride to "{NAME}".' in result.err

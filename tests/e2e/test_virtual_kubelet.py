"""virtual-kubelet's end-to-end suite, as providers run it, against a real and a hollow virtual node.

`make test-virtual-kubelet` runs it. `make test` leaves it out, because the suite takes minutes to build. The suite is
built with one change: a node has ten seconds instead of one to report that a pod has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e import virtualkubelet
from tests.e2e.cluster import Cluster, Platform


@pytest.fixture(scope="module")
def programs() -> Path:
    return virtualkubelet.build_suite()


@pytest.fixture(scope="module")
def tenant(platform: Platform, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    if not platform.real:
        pytest.skip(f"no real node here: {platform.status().get('realNode')}")
    virtualkubelet.load_images(platform, programs, folder=tmp_path_factory.mktemp("images"))
    platform.vkgateway("tenant", "create", "suite", "--pool", "v100", "--pool", "real")
    tenant = platform.tenant("suite")
    virtualkubelet.create_namespace(tenant)
    return tenant


@pytest.mark.parametrize("node", ["real.local", "v100.local"])
def test_virtual_kubelet_suite_passes(tenant: Cluster, programs: Path, node: str) -> None:
    virtualkubelet.create_kubelet_pod(tenant, node)
    outcomes, output = virtualkubelet.run_suite(tenant, programs, node)
    passed = sorted(case for case, outcome in outcomes.items() if outcome == "PASS")
    sys.stdout.write(f"virtual-kubelet's suite against {node}: {len(passed)} of {len(outcomes)} passed\n")
    assert set(outcomes.values()) == {"PASS"}, output
    assert len(passed) == virtualkubelet.CASES, output

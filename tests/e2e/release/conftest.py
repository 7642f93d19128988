"""A release of the chart with two replicas of the gateway, and a tenant, for all tests of this package."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
import yaml

from tests.e2e.chart import ChartPlatform
from tests.e2e.cluster import REAL, Cluster, pod_manifest
from tests.e2e.conftest import HERE, start_platform
from tests.e2e.release.podstream import HOLLOW_POOL
from vkgateway_platform.embedded.realnode.probe import find_obstacle

NAME = "federation"
"""Start of the names of the chart's objects: the default is that of the lane `kubernetes`."""
_TEMPLATE = HERE.parents[1] / "tenant_templates/default"


@pytest.fixture(scope="package")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChartPlatform]:
    """Yield a platform with two replicas of the gateway, and with a template for two replicas of control planes."""
    if why := find_obstacle():
        pytest.skip(f"no real node here: {why}")
    templates = tmp_path_factory.mktemp("templates")
    template = templates / "replicated"
    for name in ("default", template.name):
        shutil.copytree(_TEMPLATE, templates / name)
    file = template / "template.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"pod": {"replicas": 2}}))
    # Each node has room for 110 pods. The number of pods in a stream grows with its duration.
    with start_platform("--hollow-nodes", f"{HOLLOW_POOL}=10", chart=True, name=NAME) as platform:
        assert isinstance(platform, ChartPlatform)
        platform.upgrade({"replicas": 2})
        platform.use_templates(templates)
        yield platform


@pytest.fixture(scope="package")
def gamma(installed: ChartPlatform) -> Cluster:
    """Return a tenant whose control plane has two replicas, with a running pod on the real node."""
    installed.vkgateway(
        "tenant", "create", "gamma", "--template", "replicated", "--pool", "real", "--pool", HOLLOW_POOL
    )
    cluster = installed.tenant("gamma")
    cluster.apply(pod_manifest("stays", command="echo started; sleep 3600", **REAL))
    cluster.wait_pod("stays")
    return cluster

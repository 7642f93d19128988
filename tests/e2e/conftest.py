"""Platform with two tenants for all end-to-end tests, removed after the last test."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.e2e.chart import ChartPlatform, install_chart
from tests.e2e.cluster import Cluster, Platform, new_data_dir
from tests.e2e.prometheus import Prometheus

UP_TIMEOUT = 45 * 60
"""Seconds. The first run on a machine builds Kubernetes."""
DOWN_TIMEOUT = 10 * 60
"""Seconds. System images contain many files."""


DRIVER = os.environ.get("VKGATEWAY_TEST_DRIVER", "process")
"""Driver of control planes. With `kubernetes`, the chart installs the gateway and etcd as pods."""
HERE = Path(__file__).parent
SHARING = frozenset(
    f"test_{name}.py"
    for name in (
        "admin",
        "attacks",
        "demo",
        "hollow",
        "isolation",
        "kubelet_api",
        "lean_pods",
        "monitoring",
        "names",
        "page",
        "platform",
        "pod_admission",
        "pod_statuses",
        "pods",
        "scrape_tenant",
        "services",
        "startup",
        "tenants",
        "workloads",
    )
)
"""Files whose tests use the tenants alpha and beta."""
LONG = frozenset({"test_demo.py", "test_page.py", "test_platform.py", "test_startup.py"})
"""The longest of these files, which have another platform with such tenants: so two workers share the time."""
RELEASE = "release"
"""Package whose tests use one release of the chart, in the order of its files."""


class ByPlatform(LoadFileScheduling):  # type: ignore[misc] # untyped
    """Scheduler that assigns files to workers with a platform each.

    All files that use alpha and beta go to two workers, and all files of a package with a platform to one: each tenant
    costs CPU when it is created and while it exists.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(super()._split_scope(nodeid))
        if file.parent.name == RELEASE:
            return RELEASE
        if file.parent.name == HERE.name and file.name in SHARING:
            return "long files" if file.name in LONG else "alpha and beta"
        return str(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPlatform:
    """Return the scheduler that distributes tests."""
    return ByPlatform(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all tests in this directory as end-to-end tests, and check the list of files that share tenants."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            shares = item.path.parent == HERE and {"alpha", "beta"} & set(getattr(item, "fixturenames", ()))
            assert not shares or item.path.name in SHARING, f"{item.path.name} is missing in SHARING"
    if DRIVER == "kubernetes":
        _select_tests_of_the_chart(config, items)


def _select_tests_of_the_chart(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests that use a platform, and skip those of the embedded gateway."""
    unrelated = [item for item in items if not {"platform", "installed"} & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=unrelated)
    items[:] = [item for item in items if item not in unrelated]
    for item in items:
        if (mark := item.get_closest_marker("embedded_gateway")) is not None:
            item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]))


@contextlib.contextmanager
def start_platform(*options: str, chart: bool = False, name: str = "vkgateway") -> Iterator[Platform]:
    """Start a platform, with the gateway from the chart or as a process, yield it, and remove it completely.

    `name` starts the names of the chart's objects.
    """
    platform = ChartPlatform(new_data_dir(), name=name) if chart else Platform(new_data_dir())
    if chart:
        own_options: tuple[str, ...] = ("--cluster-only",)
    else:
        webhooks = ("--webhook-range", f"{platform.host_address}/32")
        own_options = ("--templates-dir", str(platform.write_templates()), *webhooks)
    try:
        platform.vkgateway("up", *own_options, *options, timeout=UP_TIMEOUT)
        platform.kubectl_path = platform.vkgateway("binaries", "path", "kubectl").strip()
        platform.real = platform.compute.find("node", "real-0") is not None
        if isinstance(platform, ChartPlatform):
            install_chart(platform)
        yield platform
    finally:
        down = platform.try_vkgateway("down", "--purge", "--yes", timeout=DOWN_TIMEOUT)
        for folder in (platform.data_dir, platform.templates_dir):
            shutil.rmtree(folder, ignore_errors=True)
        assert down.code == 0, str(down)


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """Yield a running platform, with a real node if the machine supports it."""
    with start_platform(chart=DRIVER == "kubernetes") as platform:
        yield platform


@pytest.fixture(scope="session")
def pools(platform: Platform) -> tuple[str, ...]:
    """Return the options that give a tenant every pool of the platform."""
    names = ["a100", "v100", *(["real"] if platform.real else [])]
    return tuple(part for name in names for part in ("--pool", name))


def with_guarantee(pools: tuple[str, ...]) -> tuple[str, ...]:
    """Return these options with a guarantee of two nodes' GPUs in the first pool."""
    return tuple(f"{part}:guarantee=nvidia.com/gpu=16" if part == "a100" else part for part in pools)


@pytest.fixture(scope="session")
def alpha(platform: Platform, pools: tuple[str, ...]) -> Cluster:
    """Return a tenant's cluster."""
    platform.vkgateway("tenant", "create", "alpha", *with_guarantee(pools))
    return platform.tenant("alpha")


@pytest.fixture(scope="session")
def beta(platform: Platform, pools: tuple[str, ...]) -> Cluster:
    """Return another tenant's cluster."""
    platform.vkgateway("tenant", "create", "beta", *pools)
    return platform.tenant("beta")


@pytest.fixture(autouse=True)
def _alerts_fire(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that the alerts of the mark `fires` fired during the test."""
    mark = request.node.get_closest_marker("fires")
    if mark is None:
        yield
        return
    prometheus: Prometheus = request.getfixturevalue("prometheus")
    began = time.time()
    yield
    assert set(mark.args) <= prometheus.fired_since(began)


@pytest.fixture
def real(platform: Platform) -> None:
    """Skip a test whose pods must really run if there is no real node."""
    if not platform.real:
        pytest.skip(f"no real node here: {platform.status().get('realNode')}")

"""One platform with two tenants for all end-to-end tests; it goes away after the last of them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.e2e.cluster import Cluster, Platform, new_data_dir

UP_TIMEOUT = 45 * 60
"""Seconds; the first time on a machine, Kubernetes is built."""
DOWN_TIMEOUT = 10 * 60
"""Seconds; images of whole systems are many files."""


HERE = Path(__file__).parent
collect_ignore = [] if os.environ.get("VKGATEWAY_VIRTUAL_KUBELET") else ["test_virtual_kubelet.py"]
"""That suite takes minutes to build, so it has a command of its own."""
SHARING = frozenset(
    f"test_{name}.py"
    for name in (
        "admin",
        "demo",
        "doors",
        "fences",
        "hollow",
        "kubelet_api",
        "lean_pods",
        "names",
        "platform",
        "pod_admission",
        "pods",
        "services",
        "tenants",
        "workloads",
    )
)
"""Files whose tests use the tenants alpha and beta."""


class ByPlatform(LoadFileScheduling):  # type: ignore[misc] # untyped
    """File by file to the workers, each of which has a platform; what uses alpha and beta goes to one, all together.

    So there are two such tenants, not four: each costs CPU when it is made, and as long as it lives.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = Path(super()._split_scope(nodeid))
        return "alpha and beta" if file.parent.name == HERE.name and file.name in SHARING else str(file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByPlatform:
    """How tests are divided."""
    return ByPlatform(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder needs real programs; who shares tenants is in the list."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.e2e)
            shares = item.path.parent == HERE and {"alpha", "beta"} & set(getattr(item, "fixturenames", ()))
            assert not shares or item.path.name in SHARING, f"{item.path.name} is missing in SHARING"


@contextlib.contextmanager
def brought_up(*options: str) -> Iterator[Platform]:
    """A platform that is up for as long as the block lasts; nothing of it is left."""
    made = Platform(new_data_dir())
    try:
        made.vkgateway("up", *options, timeout=UP_TIMEOUT)
        made.kubectl_path = made.vkgateway("binaries", "path", "kubectl").strip()
        made.real = made.compute.find("node", "real-0") is not None
        yield made
    finally:
        down = made.try_vkgateway("down", "--purge", timeout=DOWN_TIMEOUT)
        shutil.rmtree(made.data_dir, ignore_errors=True)
        assert down.code == 0, str(down)


@pytest.fixture(scope="session")
def platform() -> Iterator[Platform]:
    """A platform that is up, with a real node where the machine can carry one."""
    with brought_up() as made:
        yield made


@pytest.fixture(scope="session")
def pools(platform: Platform) -> tuple[str, ...]:
    """Options that give a tenant every pool of the platform."""
    names = ["a100", "v100", *(["real"] if platform.real else [])]
    return tuple(part for name in names for part in ("--pool", name))


def guaranteed(pools: tuple[str, ...]) -> tuple[str, ...]:
    """The same pools, with the GPUs of two nodes of the first guaranteed."""
    return tuple(f"{part}:guarantee=nvidia.com/gpu=16" if part == "a100" else part for part in pools)


@pytest.fixture(scope="session")
def alpha(platform: Platform, pools: tuple[str, ...]) -> Cluster:
    """A tenant's cluster."""
    platform.vkgateway("tenant", "create", "alpha", *guaranteed(pools))
    return platform.tenant("alpha")


@pytest.fixture(scope="session")
def beta(platform: Platform, pools: tuple[str, ...]) -> Cluster:
    """Another tenant's cluster."""
    platform.vkgateway("tenant", "create", "beta", *pools)
    return platform.tenant("beta")


@pytest.fixture
def real(platform: Platform) -> None:
    """For tests whose pods must really run."""
    if not platform.real:
        pytest.skip(f"no real node here: {platform.status().get('realNode')}")

"""Pages about operators, run word for word on the real node by a new user."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Platform
from tests.e2e.foreign_pool import scheduled_by, watch_attempts
from tests.e2e.pages import run_page

ROOT = Path(__file__).parents[2]
PAGES = ["mpi", "kopf", "versions", "training", "elastic", "horovod", "spark", "volcano", "metrics-server"]
TIMEOUT = 40 * 60
"""Seconds. The first run on a machine builds programs and images."""


@pytest.fixture
def admin(platform: Platform) -> Iterator[dict[str, str]]:
    """Yield the environment of a user who completed "before you begin", and delete the pages' tenants at the end."""
    if not platform.real:
        pytest.skip(f"no real node here: {platform.status().get('realNode')}")
    before = set(platform.vkgateway("tenant", "list", "-o", "name").split())
    tools = (Path(sys.executable).parent, Path(platform.kubectl_path).parent)
    yield {
        "VKGATEWAY_DATA_DIR": str(platform.data_dir),
        "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]]),
    }
    for tenant in set(platform.vkgateway("tenant", "list", "-o", "name").split()) - before:
        platform.vkgateway("tenant", "delete", tenant, "--yes", timeout=180)


@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="no mmdebstrap here, which makes the images")
@pytest.mark.parametrize("page", PAGES)
def test_page_matches_what_happens(admin: dict[str, str], page: str) -> None:
    run_page(ROOT / "docs" / "operators" / f"{page}.md", folder=ROOT, env=admin, timeout=TIMEOUT)


@pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="no mmdebstrap here, which makes the images")
@pytest.mark.parametrize("mode", ["kueue", "volcano"])
@pytest.mark.parametrize("page", ["mpi", "training"])
def test_page_is_the_same_with_another_scheduler(
    platform: Platform, admin: dict[str, str], page: str, mode: str, tmp_path: Path
) -> None:
    with scheduled_by(platform, mode, tmp_path, name="real"), watch_attempts(platform, mode, tmp_path) as seen:
        run_page(ROOT / "docs" / "operators" / f"{page}.md", folder=ROOT, env=admin, timeout=TIMEOUT)
        assert seen(), f"no gang of the page was passed to {mode}"

"""The tutorials, run word for word and in their order by a new user, on a platform that the first one starts."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Platform, new_data_dir
from tests.e2e.conftest import DOWN_TIMEOUT, UP_TIMEOUT
from tests.e2e.pages import run_page
from vkgateway_platform.embedded.real_node_steps import why_no_real_node

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def user() -> Iterator[Platform]:
    """Yield the platform of a user who has not started it yet, and remove it at the end."""
    platform = Platform(new_data_dir())
    yield platform
    down = platform.try_vkgateway("down", "--purge", "--yes", timeout=DOWN_TIMEOUT)
    shutil.rmtree(platform.data_dir, ignore_errors=True)
    assert down.code == 0, str(down)


@pytest.mark.parametrize("page", ["first-tenant", "first-gang", "bring-your-operator"])
def test_tutorial_matches_what_happens(user: Platform, page: str) -> None:
    if page == "bring-your-operator":
        if why_not := why_no_real_node("auto"):
            pytest.skip(f"no real node here: {why_not}")
        if shutil.which("mmdebstrap") is None:
            pytest.skip("no mmdebstrap here, which makes the image")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {"VKGATEWAY_DATA_DIR": str(user.data_dir), "PATH": path}
    run_page(ROOT / "docs" / "tutorials" / f"{page}.md", folder=ROOT, env=env, timeout=UP_TIMEOUT)

"""The program promtool of Debian's Prometheus, downloaded once."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from operators.debian import unpack_package
from vkgateway.api.errors import UnavailableError


@pytest.fixture(scope="session")
def promtool() -> Path:
    if found := shutil.which("promtool"):
        return Path(found)
    try:
        return asyncio.run(unpack_package("prometheus", program="usr/bin/promtool", report=print))
    except UnavailableError as error:
        pytest.skip(f"no promtool: {error}")

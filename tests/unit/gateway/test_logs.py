"""How the daemon logs: whatever fails, its line holds no values that were being worked on."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest
import structlog

from vkgateway.gateway import logs
from vkgateway.gateway.config import Logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    logs.configure(Logging(format=form))  # type: ignore[arg-type]

    password = "hunter" + "2"
    try:
        raise ValueError(f"a defect near {len(password)} bytes")
    except ValueError:
        structlog.get_logger().exception("defect")

    assert "a defect near 7 bytes" in written.getvalue()
    assert "Traceback" in written.getvalue()
    assert password not in written.getvalue()

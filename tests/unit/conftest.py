"""What unit tests of several layers share."""

from __future__ import annotations

import pytest

from vkgateway.kinds.volumes import claim_users
from vkgateway.scheduler.service import pending_reporter


@pytest.fixture
def told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told why at once, not after a second."""
    monkeypatch.setattr(pending_reporter, "_PATIENCE", 0.05)
    monkeypatch.setattr(claim_users, "_REPORT_DELAY", 0.05)

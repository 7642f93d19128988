"""What unit tests of several layers share."""

from __future__ import annotations

import pytest

from vkgateway.sync.admission import telling
from vkgateway.sync.storage import users


@pytest.fixture
def told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits is told why at once, not after a second."""
    monkeypatch.setattr(telling, "_PATIENCE", 0.05)
    monkeypatch.setattr(users, "_PATIENCE", 0.05)

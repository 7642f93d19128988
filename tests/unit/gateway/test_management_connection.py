"""Tests of the connection to the management cluster."""

from __future__ import annotations

import pytest

from vkgateway.api.errors import InputError
from vkgateway.serve.addresses import connect_management
from vkgateway.settings.config import Config


def test_missing_connection_is_an_error_with_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        InputError, match="no connection to the management cluster: this process does not run"
    ) as caught:
        connect_management(Config(), name="the management cluster")
    assert "managementCluster.kubeconfig" in caught.value.hint

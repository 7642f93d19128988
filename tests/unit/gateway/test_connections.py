"""How the daemon reaches the management cluster, and what it says where there is no way."""

from __future__ import annotations

import pytest

from vkgateway.gateway.config import Config
from vkgateway.gateway.management_connection import connect_management
from vkgateway.model.errors import InputError


def test_without_settings_outside_of_a_pod_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        InputError, match="no connection to the management cluster: this process does not run"
    ) as caught:
        connect_management(Config(), name="the management cluster")
    assert "managementCluster.kubeconfig" in caught.value.hint

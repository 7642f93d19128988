"""The demonstration shows the platform of this machine, whatever the user's environment names."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/demo.py"


def test_neither_cluster_nor_gateway_of_the_users_own_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    main = runpy.run_path(str(SCRIPT))["main"]
    main.__globals__["demonstrate"] = lambda *, home: seen.update(os.environ, home=home)
    for name in ("VKGATEWAY_KUBECONFIG", "VKGATEWAY_GATEWAY"):
        monkeypatch.setenv(name, "elsewhere")
    monkeypatch.setattr("sys.argv", ["demo", "--kubeconfigs", str(tmp_path)])
    assert main() == 0
    assert seen["home"] == tmp_path
    assert not {"VKGATEWAY_KUBECONFIG", "VKGATEWAY_GATEWAY"} & seen.keys()

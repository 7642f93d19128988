"""Tests of `vkgateway serve`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from vkgateway.cli.serve import serve


def _without_home() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_no_home_is_needed_if_the_settings_name_a_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a pod, the user has no home directory and no entry in /etc/passwd."""
    monkeypatch.setattr(Path, "home", _without_home)
    monkeypatch.delenv("VKGATEWAY_DATA_DIR", raising=False)
    file = tmp_path / "gateway.yaml"
    file.write_text("dataDir: /var/lib/vkgateway\n")
    done = CliRunner().invoke(serve, ["--config", str(file), "--print-config"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "dataDir: /var/lib/vkgateway\n" in done.output


def test_option_overrides_settings(tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text("dataDir: /var/lib/vkgateway\n")
    arguments = ["--config", str(file), "--print-config", "--data-dir", str(tmp_path)]
    assert f"dataDir: {tmp_path}\n" in CliRunner().invoke(serve, arguments).output

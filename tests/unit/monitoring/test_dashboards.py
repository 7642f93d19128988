"""Expressions of the dashboards: promtool parses them, and they ask for metrics that the gateway has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.monitoring.expressions import unknown_metrics

FOLDER = Path(__file__).parents[3] / "deploy/monitoring/dashboards"
FILES = sorted(FOLDER.glob("*.json"))
VALUES = {"$__rate_interval": "5m", "$pool": ".*", "$tenant": ".*"}
"""Values of Grafana's variables."""


def panels(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["panels"]
    return found


def expressions(file: Path) -> list[str]:
    """Return the expressions of a dashboard with values of its variables, which Prometheus does not know."""
    found = [target["expr"] for panel in panels(file) for target in panel["targets"]]
    for name, value in VALUES.items():
        found = [expression.replace(name, value) for expression in found]
    return found


def test_there_are_three_dashboards() -> None:
    assert [file.stem for file in FILES] == ["control-planes", "platform", "tenant"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_expressions_ask_for_metrics_that_exist(file: Path) -> None:
    for expression in expressions(file):
        assert "$" not in expression
        assert "vkgateway_" in expression
        assert unknown_metrics(expression) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_promtool_parses_every_expression(file: Path, promtool: Path, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions(file))]
    written = tmp_path / "rules.yaml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = subprocess.run([promtool, "check", "rules", written], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_dashboard_has_a_fixed_uid_and_selects_its_data_source(file: Path) -> None:
    board = json.loads(file.read_text())
    assert board["uid"] == f"vkgateway-{file.stem}"
    assert board["templating"]["list"][0]["name"] == "datasource"
    queried = [part["datasource"] for panel in board["panels"] for part in (panel, *panel["targets"])]
    assert {source["uid"] for source in queried} == {"${datasource}"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_panels_do_not_overlap_and_say_what_is_normal(file: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels(file):
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert panel["description"].endswith(".")
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells

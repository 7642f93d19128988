"""Expressions of the dashboards: promtool parses them, and they ask for metrics that the gateway has."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.monitoring import DASHBOARDS, label_queries, panel_queries, read_panels
from tests.unit.monitoring.expressions import unknown_metrics


def expressions(file: Path) -> list[str]:
    return [query.expression for query in panel_queries(file)]


def test_there_are_three_dashboards() -> None:
    assert [file.stem for file in DASHBOARDS] == ["control-planes", "platform", "tenant"]


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_expressions_ask_for_metrics_that_exist(file: Path) -> None:
    for expression in expressions(file):
        assert "$" not in expression
        assert "vkgateway_" in expression
        assert unknown_metrics(expression) == []


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_values_of_variables_come_from_metrics_and_labels_that_exist(file: Path) -> None:
    for _, metric, label in label_queries(file):
        assert unknown_metrics(f'{metric}{{{label}="a"}}') == []


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_promtool_parses_every_expression(file: Path, promtool: Path, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions(file))]
    written = tmp_path / "rules.yaml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    result = subprocess.run([promtool, "check", "rules", written], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_has_a_fixed_uid_and_selects_its_data_source(file: Path) -> None:
    board = json.loads(file.read_text())
    assert board["uid"] == f"vkgateway-{file.stem}"
    assert board["templating"]["list"][0]["name"] == "datasource"
    queried = [part["datasource"] for panel in board["panels"] for part in (panel, *panel["targets"])]
    assert {source["uid"] for source in queried} == {"${datasource}"}


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_panels_do_not_overlap_and_say_what_is_normal(file: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read_panels(file):
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

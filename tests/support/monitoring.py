"""Alert rules and dashboards of deploy/monitoring, with values for Grafana's variables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / "deploy/monitoring"
RULES = FOLDER / "rules.yaml"
DASHBOARDS = tuple(sorted((FOLDER / "dashboards").glob("*.json")))
RATE_INTERVAL = "5m"
_LABEL_VALUES = re.compile(r"label_values\((.+), *(\w+)\)")


@dataclass(frozen=True, kw_only=True)
class Query:
    """Query of a panel. Grafana draws a graph of it, or shows only the current values."""

    panel: str
    expression: str
    is_current: bool


def alert_rules() -> list[dict[str, Any]]:
    """Return all alerts, as Prometheus reads them."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def read_panels(file: Path) -> list[dict[str, Any]]:
    """Return the panels of a dashboard."""
    found: list[dict[str, Any]] = json.loads(file.read_text())["panels"]
    return found


def panel_queries(file: Path, *, rate_interval: str = RATE_INTERVAL, **selected: str) -> list[Query]:
    """Return the queries of a dashboard with values of its variables, as Grafana sends them.

    `selected` has a regular expression for each variable; others have the value of "All".
    """
    variables = {name: ".*" for name, _, _ in label_queries(file)} | selected
    values = {"$__rate_interval": rate_interval, **{f"${name}": value for name, value in variables.items()}}
    return [
        Query(panel=panel["title"], expression=_fill(target["expr"], values), is_current=target["instant"])
        for panel in read_panels(file)
        for target in panel["targets"]
    ]


def label_queries(file: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each variable of a dashboard, and the metric and label that has its values."""
    for variable in json.loads(file.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert found, variable
            yield variable["name"], found[1], found[2]


def _fill(expression: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        expression = expression.replace(name, value)
    return expression

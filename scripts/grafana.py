"""Grafana's form of dashboards: panels fill rows from left to right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_COLUMNS: Final = 24
_HEIGHT: Final = 8
_SCHEMA: Final = 39
"""Version of Grafana's dashboard schema: Grafana 10 and later."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Graph, number or table of queries; `queries` are pairs of expression and legend."""

    title: str
    queries: tuple[tuple[str, str], ...]
    text: str
    """What it shows and what is normal."""
    unit: str = "short"
    kind: str = "timeseries"
    """Or `stat` and `table`, which show the current values."""
    width: int = 12
    stacked: bool = False
    thresholds: tuple[tuple[float, str], ...] = ()
    """Values, ascending, from which a graph has another colour, as lines; below the first it is green."""


@dataclass(frozen=True, kw_only=True)
class Dashboard:
    """Dashboard with a fixed uid `vkgateway-NAME`, and variables by name: the query of their values."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    variables: Mapping[str, str]


def render_dashboard(dashboard: Dashboard) -> str:
    """Return a dashboard as JSON that Grafana imports."""
    document = {
        "uid": f"vkgateway-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["vkgateway"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source(), *(_variable(*item) for item in dashboard.variables.items())]},
        "panels": [_panel(number, *place) for number, place in enumerate(_arrange(dashboard.panels), 1)],
    }
    return json.dumps(document, indent=2) + "\n"


def _data_source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "values"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _arrange(panels: Sequence[Panel]) -> Iterable[tuple[Panel, int, int]]:
    """Yield each panel with its column and row."""
    column = row = 0
    for panel in panels:
        if column + panel.width > _COLUMNS:
            column, row = 0, row + _HEIGHT
        yield panel, column, row
        column += panel.width


def _panel(number: int, panel: Panel, column: int, row: int) -> dict[str, Any]:
    is_current = panel.kind != "timeseries"
    custom: dict[str, Any] = {"fillOpacity": 30, "stacking": {"mode": "normal"}} if panel.stacked else {}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": custom}
    if panel.thresholds:
        custom["thresholdsStyle"] = {"mode": "dashed"}
        steps = [{"color": colour, "value": value} for value, colour in ((None, "green"), *panel.thresholds)]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": {"x": column, "y": row, "w": panel.width, "h": _HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": is_current,
                "range": not is_current,
                **({"format": "table"} if panel.kind == "table" else {}),
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }

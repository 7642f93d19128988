"""Writes the generated files of the chart and of deploy/monitoring: copies of definitions, roles and license, the
schema of the values, their table, metadata, alerts and dashboards.

`make chart` writes them; a unit test fails while a file differs from its source.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from chart_metadata import render_metadata
from chart_values import Value, flatten_values, parse_values, values_schema
from dashboards import DASHBOARDS
from grafana import render_dashboard

from vkgateway.settings.config import Config

CHECKOUT: Final = Path(__file__).resolve().parent.parent
CHART: Final = CHECKOUT / "deploy/chart/vkgateway"
_COPIES: Final = {
    "crds": "vkgateway/api/crds",
    "policies": "vkgateway/serve/management_policies",
    "rbac": "vkgateway/serve/rbac",
}
"""Folder of the chart's files by the folder of their source. Helm packs only what is in the chart's folder."""
_MONITORING: Final = CHECKOUT / "deploy/monitoring"


def main() -> int:
    """Write every file that differs, delete copies without a source, and print the names."""
    wanted = generated_files()
    for stale in existing_copies() - wanted.keys():
        stale.unlink()
        print(f"deleted: {stale.relative_to(CHECKOUT)}")
    for file, text in wanted.items():
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            print(f"written: {file.relative_to(CHECKOUT)}")
    return 0


def generated_files() -> dict[Path, str]:
    """Return the text of every generated file of the chart."""
    values = parse_values((CHART / "values.yaml").read_text())
    readme, metadata = CHART / "README.md", CHART / "Chart.yaml"
    return {
        **dict(_copies()),
        **dict(_rule_copies()),
        **dict(_dashboards()),
        CHART / "values.schema.json": render_schema(values),
        readme: render_readme(readme.read_text(), values),
        metadata: render_metadata(metadata.read_text(), values),
        CHART / "LICENSE": (CHECKOUT / "LICENSE").read_text(),
    }


def existing_copies() -> set[Path]:
    """Return the copies that exist in the chart."""
    return {file for folder in (*_COPIES, "dashboards") for file in (CHART / "files" / folder).glob("*")}


def _copies() -> Iterator[tuple[Path, str]]:
    for folder, source in _COPIES.items():
        for file in sorted((CHECKOUT / source).glob("*.yaml")):
            yield CHART / "files" / folder / file.name, file.read_text()


def _rule_copies() -> Iterator[tuple[Path, str]]:
    """Yield the alert rules for the chart, and as an object for the Prometheus operator."""
    rules = (_MONITORING / "rules.yaml").read_text()
    yield CHART / "files/alerts.yaml", rules
    head = (
        "# Written by `make chart` from rules.yaml.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\n"
        "metadata: {name: vkgateway, namespace: vkgateway-system}\nspec:\n"
    )
    _, groups, body = rules.partition("groups:\n")
    yield _MONITORING / "prometheusrule.yaml", head + textwrap.indent(groups + body, "  ")


def _dashboards() -> Iterator[tuple[Path, str]]:
    """Yield the dashboards, and their copies in the chart."""
    for dashboard in DASHBOARDS:
        text = render_dashboard(dashboard)
        yield _MONITORING / f"dashboards/{dashboard.name}.json", text
        yield CHART / f"files/dashboards/{dashboard.name}.json", text


def render_readme(text: str, values: list[Value]) -> str:
    """Return the README with the table of the values."""
    return re.sub(
        r"(<!-- generated: values -->\n).*?(<!-- end of generated -->)",
        lambda match: f"{match[1]}\n{values_table(values)}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )


def values_table(values: list[Value]) -> str:
    """Return a Markdown table of the values."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for value in flatten_values(values):
        default = json.dumps(value.default) if value.default is not None else ""
        lines.append(f"| `{value.key}` | `{default}` | {value.description} |")
    return "\n".join(lines) + "\n"


def render_schema(values: list[Value]) -> str:
    """Return the JSON schema of the values; that of `config` follows from the gateway's settings."""
    return json.dumps(values_schema(values, overrides={"config": settings_schema()}), indent=2) + "\n"


def settings_schema() -> dict[str, Any]:
    """Return the JSON schema of the gateway's settings, without references and defaults."""
    schema = msgspec.json.schema(Config)
    inlined = _inline(schema, definitions=schema["$defs"])
    assert isinstance(inlined, dict)
    return inlined


def _inline(part: Any, *, definitions: Mapping[str, Any]) -> Any:
    if isinstance(part, list):
        return [_inline(item, definitions=definitions) for item in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        return _inline(definitions[part["$ref"].rpartition("/")[2]], definitions=definitions)
    dropped = ("$defs", "title", "default", "required")
    return {
        key: {name: _inline(one, definitions=definitions) for name, one in value.items()}
        if key == "properties"
        else _inline(value, definitions=definitions)
        for key, value in part.items()
        if key not in dropped
    }


if __name__ == "__main__":
    sys.exit(main())

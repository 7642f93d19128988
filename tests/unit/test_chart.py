"""The chart: generated files equal their sources, and comments of values.yaml give descriptions and schemas."""

from __future__ import annotations

import json
from typing import Any

import chart_files
import pytest
from chart_values import ChartValueError, flatten_values, parse_values, values_schema


def test_generated_files_equal_their_sources() -> None:
    wanted = chart_files.generated_files()
    differing = [file.name for file, text in wanted.items() if not file.exists() or file.read_text() != text]
    assert not differing, f"run `make chart`: {differing}"
    assert chart_files.existing_copies() <= wanted.keys()


def test_the_chart_ships_every_definition_and_role() -> None:
    shipped = {file.name for file in chart_files.existing_copies()}
    for folder in ("crds", "rbac"):
        assert {file.name for file in (chart_files.CHECKOUT / "deploy" / folder).iterdir()} <= shipped


def test_every_value_has_a_description() -> None:
    values = parse_values((chart_files.CHART / "values.yaml").read_text())
    assert not [value.key for value in flatten_values(values) if not value.description]


def test_the_schema_refuses_unknown_values_at_every_level() -> None:
    schema = json.loads((chart_files.CHART / "values.schema.json").read_text())
    open_objects = [
        path
        for path, part in _objects(schema)
        if "properties" in part and part.get("additionalProperties", True) is not False
    ]
    assert not open_objects


def _objects(part: dict[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found = [(path, part)]
    for name, child in part.get("properties", {}).items():
        found += _objects(child, f"{path}.{name}")
    return found


def test_settings_are_values_under_config() -> None:
    schema = chart_files.settings_schema()
    assert schema["properties"]["logging"]["properties"]["level"]["enum"]
    assert "$ref" not in json.dumps(schema)


VALUES = """
# -- First line,
# second line.
# @schema {enum: [one,
#   two]}
name: one
group:
  # -- Whether.
  on: true
  # -- A map.
  # @schema {type: object}
  labels: {}
"""


def test_comments_give_descriptions_and_schemas() -> None:
    values = parse_values(VALUES)
    assert [(value.key, value.default, value.description) for value in flatten_values(values)] == [
        ("name", "one", "First line, second line."),
        ("group.on", True, "Whether."),
        ("group.labels", {}, "A map."),
    ]
    properties = values_schema(values, overrides={})["properties"]
    assert properties["name"] == {"description": "First line, second line.", "type": "string", "enum": ["one", "two"]}
    assert properties["group"]["additionalProperties"] is False
    assert properties["group"]["properties"]["on"]["type"] == "boolean"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("# -- A map.\nlabels: {}\n", "labels: add a schema"),
        ("# -- A list.\nnames: []\n", "names: add a schema"),
        ("name: one\n", "name has no description"),
        ("# name\nname: one\n", "name: comment '# name' starts with neither"),
        ("# -- A name.\n# @schema [a]\nname: one\n", "name: its schema is not a mapping"),
        ("- one\n", "values.yaml is not a mapping"),
    ],
)
def test_a_value_without_description_or_schema_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(ChartValueError, match=problem):
        values_schema(parse_values(text), overrides={})

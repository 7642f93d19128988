"""Values of the chart: keys, defaults, descriptions and JSON schemas, read from values.yaml and its comments.

Above a key, `# -- ` starts its description, and `# @schema ` a part of its JSON schema in YAML. Both continue in
further comment lines. The type follows from the default. A mapping refuses unknown keys; an empty one needs a schema.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
_SHARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "resources": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {"type": "object", "additionalProperties": {"type": ["string", "number"]}}
            for name in ("requests", "limits")
        }
        | {"claims": {"type": "array", "items": {"type": "object"}}},
    }
}
"""Schemas that several values share, by the name in `$ref`."""
_DESCRIPTION: Final = "# -- "
_SCHEMA: Final = "# @schema "


class ChartValueError(ValueError):
    """A value of the chart has no description or no schema."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the chart, with those below it."""

    path: tuple[str, ...]
    default: Any
    description: str
    schema: Mapping[str, Any]
    """Part of its JSON schema from the comment."""
    children: list[Value] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The dotted path, such as `etcd.members`."""
        return ".".join(self.path)


def parse_values(text: str) -> list[Value]:
    """Return the values at the top level of values.yaml, in its order.

    Raises:
        ChartValueError: a comment is neither a description nor a schema, or its schema is not valid YAML.
    """
    document = yaml.compose(text)
    if not isinstance(document, yaml.MappingNode):
        raise ChartValueError("values.yaml is not a mapping")
    return list(_read_mapping(document, lines=text.splitlines(), path=()))


def _read_mapping(node: yaml.MappingNode, *, lines: list[str], path: tuple[str, ...]) -> Iterator[Value]:
    for key, content in node.value:
        own = (*path, key.value)
        description, schema = _read_comment(_comment_above(lines, key.start_mark.line), key=".".join(own))
        described = bool(schema) or not isinstance(content, yaml.MappingNode) or not content.value
        children = [] if described else list(_read_mapping(content, lines=lines, path=own))
        yield Value(own, _plain_value(content), description, schema, children)


def _plain_value(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _comment_above(lines: list[str], line: int) -> list[str]:
    """Return the comment lines directly above a line, without indentation."""
    first = line
    while first > 0 and lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return [text.strip() for text in lines[first:line]]


def _read_comment(comment: list[str], *, key: str) -> tuple[str, dict[str, Any]]:
    """Return the description and the schema of a comment."""
    parts: dict[str, list[str]] = {_DESCRIPTION: [], _SCHEMA: []}
    current: list[str] | None = None
    for line in comment:
        marker = next((marker for marker in parts if line.startswith(marker)), None)
        if marker is not None:
            current = parts[marker]
        if current is None:
            raise ChartValueError(f"{key}: comment {line!r} starts with neither {_DESCRIPTION!r} nor {_SCHEMA!r}")
        current.append(line.removeprefix(marker or "#").strip())
    schema = yaml.safe_load(" ".join(parts[_SCHEMA])) or {}
    if not isinstance(schema, dict):
        raise ChartValueError(f"{key}: its schema is not a mapping: {schema!r}")
    return " ".join(parts[_DESCRIPTION]), dict(_SHARED[schema["$ref"]]) if "$ref" in schema else schema


def values_schema(values: list[Value], *, overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the JSON schema of the values; `overrides` replaces the schema of single values, by key.

    Raises:
        ChartValueError: the schema of a value does not follow from its default.
    """
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_mapping_schema(values, overrides, extra=("global",)),
    }


def _mapping_schema(
    values: list[Value], overrides: Mapping[str, Mapping[str, Any]], *, extra: tuple[str, ...] = ()
) -> dict[str, Any]:
    properties: dict[str, Any] = {value.path[-1]: _value_schema(value, overrides) for value in values}
    # Helm adds `global` to the values of every chart.
    properties |= {name: {"type": "object"} for name in extra}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value_schema(value: Value, overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    if value.key in overrides:
        return {"description": value.description, **overrides[value.key]}
    if value.children:
        return _mapping_schema(value.children, overrides)
    if not value.description:
        raise ChartValueError(f"{value.key} has no description")
    schema = {"description": value.description, "type": _TYPES.get(type(value.default), "object"), **value.schema}
    needed = {"object": "type", "array": "items"}.get(str(schema["type"]))
    if needed is not None and needed not in value.schema:
        raise ChartValueError(f"{value.key}: add a schema, such as `{_SCHEMA}{{{needed}: ...}}`")
    return schema


def flatten_values(values: list[Value]) -> Iterator[Value]:
    """Yield the values without those that only group others."""
    for value in values:
        if value.children:
            yield from flatten_values(value.children)
        else:
            yield value

"""Settings from a YAML file and the environment, and rendering of them with descriptions."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.settings.config import Config, Setting, iterate_settings
from vkgateway.settings.validation import invalid_settings

_SERVICE_LINK = "the value is 'tcp://"
_SERVICE_LINK_HINT = (
    "Kubernetes sets this variable for a Service of the pod's namespace. Set `enableServiceLinks: false` in the pod."
)
_HINT = "`vkgateway serve --print-config` prints every key with its default and description."


def load_settings(file: Path | None = None, *, environment: Mapping[str, str] | None = None) -> Config:
    """Return the settings from the environment, then `file` (YAML), then the defaults.

    Raises InputError with the path of the invalid key.
    """
    data = _read_yaml(file) if file is not None else {}
    _convert_settings(data, strict=True, source=str(file))
    environment = os.environ if environment is None else environment
    _apply_environment(data, environment)
    config = _convert_settings(data, strict=False, source="environment")
    _validate_settings(config, file=file, environment=environment)
    return config


def _convert_settings(data: dict[str, Any], *, strict: bool, source: str) -> Config:
    try:
        return msgspec.convert(data, Config, strict=strict)
    except msgspec.ValidationError as error:
        message = _error_message(str(error), data, source=source)
        raise InputError(message, hint=_SERVICE_LINK_HINT if _SERVICE_LINK in message else _HINT) from error


def _validate_settings(config: Config, *, file: Path | None, environment: Mapping[str, str]) -> None:
    """Raise InputError for the first invalid setting, with its source."""
    first = next(invalid_settings(config), None)
    if first is None:
        return
    key = first.key.partition("[")[0]
    variables = (
        setting.variable for setting in iterate_settings() if setting.key == key and setting.variable in environment
    )
    source = next(variables, str(file or ""))
    raise InputError(f"{source}: {first.key}: {first.why}" if source else f"{first.key}: {first.why}", hint=first.hint)


def render_settings(config: Config | None = None) -> str:
    """Return the settings as a YAML file with a description of every key."""
    import yaml

    plain = msgspec.to_builtins(config or Config())
    lines: list[str] = []
    open_sections: tuple[str, ...] = ()
    for setting in iterate_settings():
        parents = setting.path[:-1]
        if parents != open_sections:
            opened = _common_length(parents, open_sections)
            lines += ["", *(f"{'  ' * depth}{parents[depth]}:" for depth in range(opened, len(parents)))]
            open_sections = parents
        indent = "  " * len(parents)
        value = plain
        for part in setting.path:
            value = value[part]
        shown = yaml.safe_dump(value, default_flow_style=True, width=float("inf")).removesuffix("...\n").strip()
        lines += [
            f"{indent}# {setting.description} [{setting.variable}]",
            f"{indent}{setting.path[-1]}: {shown}",
        ]
    return "\n".join(lines) + "\n"


def _common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the number of items with which both begin."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _read_yaml(file: Path) -> dict[str, Any]:
    import yaml

    try:
        data = yaml.safe_load(file.read_text())
    except FileNotFoundError as error:
        raise InputError(f"settings file {file} does not exist", hint="Omit --config to use the defaults.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"settings file {file} is not valid YAML: {' '.join(str(error).split())}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError(f"settings file {file} contains a {type(data).__name__}, not a mapping")
    return data


def _apply_environment(data: dict[str, Any], environment: Mapping[str, str]) -> None:
    for setting in iterate_settings():
        text = environment.get(setting.variable)
        if text is None:
            continue
        section = data
        for part in setting.path[:-1]:
            section = section.setdefault(part, {})
        section[setting.path[-1]] = _read_variable(text, setting)


def _read_variable(text: str, setting: Setting) -> Any:
    """Return the value of a variable: lists are separated by commas, entries of a map are KEY=VALUE or JSON.

    Raises InputError if the JSON is invalid.
    """
    kind = setting.type
    if get_origin(kind) is dict and text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise InputError(f"{setting.variable}: {setting.key}: invalid JSON: {error}", hint=_HINT) from error
    items = [item for item in text.split(",") if item]
    if get_origin(kind) is tuple:
        return items
    if get_origin(kind) is dict:
        return dict(item.partition("=")[::2] for item in items)
    return text


def _error_message(message: str, data: Any, *, source: str) -> str:
    """Return `SOURCE: kubelet.port: expected int; the value is 'x'` for `Expected int - at $.kubelet.port`."""
    what, _, where = message.partition(" - at ")
    what = what[:1].lower() + what[1:]
    place = where.strip("`").partition("$")[2].lstrip(".")
    if where.startswith("`key`"):
        return f"{source}: {place or 'the file'} has a key that is not a string"
    path = tuple(place.partition("[")[0].split("."))
    setting = next((setting for setting in iterate_settings() if setting.path == path), None)
    if setting is not None and get_origin(setting.type) is Literal:
        what = f"expected one of {', '.join(get_args(setting.type))}"
    if "unknown field" not in what:
        what += f"; the value is {_value_at(data, place)!r}"
    if source == "environment" and setting is not None:
        source = setting.variable
    return f"{source}: {place}: {what}" if place else f"{source}: {what}"


def _value_at(data: Any, place: str) -> Any:
    """Return the value at a path in msgspec's notation, such as `datastore.endpoints[0]`."""
    for key, index in re.findall(r"(\w+)(?:\[(\d+)\])?", place):
        data = data[key][int(index)] if index else data[key]
    return data


def settings_table() -> str:
    """Return all settings as a Markdown table for the documentation."""
    lines = ["| key | default | environment variable | meaning |", "|---|---|---|---|"]
    for setting in iterate_settings():
        default = msgspec.json.encode(setting.default).decode()
        lines.append(f"| `{setting.key}` | `{default}` | `{setting.variable}` | {setting.description} |")
    return "\n".join(lines) + "\n"

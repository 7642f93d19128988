"""Write the generated parts of docs/reference from the code: API fields, settings, commands, metrics, exit codes.

`make reference` writes them; `make test` fails while a page differs from the code. Text outside of the markers is
written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

import click
import yaml
from prometheus_client import REGISTRY

import vkgateway.kinds.pods.startup_metrics
import vkgateway.runtime.metrics
import vkgateway.scheduler.service.metrics
import vkgateway.tenants.metrics
from vkgateway.api import errors
from vkgateway.cli import main as cli
from vkgateway.cli.plugin import main as plugin
from vkgateway.settings import file as settingsfile

FOLDER: Final = Path(__file__).parent.parent / "docs" / "reference"
HELP_WIDTH: Final = 100
"""Columns of the help texts on the page."""
_MODULES = (
    vkgateway.tenants.metrics,
    vkgateway.runtime.metrics,
    vkgateway.scheduler.service.metrics,
    vkgateway.kinds.pods.startup_metrics,
)
"""Importing these modules registers all metrics."""


def main() -> int:
    """Write every page whose generated parts differ, and print its name."""
    for page in pages():
        text = page.read_text()
        new = render_page(text)
        if new != text:
            page.write_text(new)
            print(f"written: {page.relative_to(FOLDER.parent.parent)}")
    return 0


def pages() -> list[Path]:
    """Return the pages that have generated parts."""
    return [page for page in sorted(FOLDER.glob("*.md")) if "<!-- generated: " in page.read_text()]


def render_page(text: str) -> str:
    """Return a page with its parts generated from the current code."""
    return re.sub(
        r"(<!-- generated: (\S+) -->\n).*?(<!-- end of generated -->)",
        lambda match: f"{match[1]}\n{PARTS[match[2]]().strip()}\n\n{match[3]}",
        text,
        flags=re.DOTALL,
    )


def render_fields(plural: str) -> str:
    """Return the fields of a kind as Markdown tables, one for `spec` and one for `status`."""
    text = (resources.files("vkgateway.api") / "crds" / f"{plural}.yaml").read_text()
    crd = yaml.safe_load(text)["spec"]
    schema = crd["versions"][0]["schema"]["openAPIV3Schema"]
    names = crd["names"]
    lines = [
        f"`{crd['group']}/{crd['versions'][0]['name']}`, kind `{names['kind']}`, scope `{crd['scope']}`, "
        f"short name `{names['shortNames'][0]}`."
    ]
    for part in ("spec", "status"):
        properties = schema["properties"].get(part)
        if properties is None:
            continue
        lines += ["", f"### {names['kind']} {part}", "", properties.get("description", ""), ""]
        lines += ["| field | type | default | meaning |", "|---|---|---|---|"]
        required = frozenset(properties.get("required", ()))
        lines += [_row(*field) for field in _fields(properties["properties"], required=required)]
    return "\n".join(lines)


def render_settings() -> str:
    """Return the table of the gateway's settings."""
    return settingsfile.settings_table()


def render_commands() -> str:
    """Return the help text of every command, as `--help` prints it."""
    parts = []
    groups = (("vkgateway", cli.cli), (plugin.PROGRAM, plugin.plugin))
    for name, command in (found for group in groups for found in _commands(*group)):
        context = click.Context(
            command,
            info_name=name,
            terminal_width=HELP_WIDTH,
            max_content_width=HELP_WIDTH,
            help_option_names=cli.cli.context_settings["help_option_names"],
        )
        text = click.unstyle(command.get_help(context)).replace(str(Path.home()), "~").rstrip()
        parts.append(f"### {name}\n\n```text\n{text}\n```")
    return "\n\n".join(parts)


def render_metrics() -> str:
    """Return a table of all metrics, in alphabetical order."""
    found: dict[str, tuple[str, str, str]] = {}
    for collector, names in list(REGISTRY._collector_to_names.items()):
        labels = ", ".join(f"`{label}`" for label in getattr(collector, "_labelnames", ())) or "-"
        if not any(name.startswith("vkgateway_") for name in names):
            continue
        for metric in collector.collect():
            suffix = "_total" if metric.type == "counter" else ""
            found[metric.name + suffix] = (metric.type, labels, metric.documentation)
    rows = [f"| `{name}` | {kind} | {labels} | {text} |" for name, (kind, labels, text) in sorted(found.items())]
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def render_exit_codes() -> str:
    """Return a table of the exit codes of the command line; an error without its own code has that of its base."""
    codes = {0: "The command succeeded."}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.VkgatewayError) and "exit_code" in vars(kind):
            codes[kind.exit_code] = (kind.__doc__ or "").partition("\n")[0]
    codes[cli.INTERRUPTED] = "The user interrupted the command."
    return "\n".join(["| code | meaning |", "|---:|---|", *(f"| {code} | {codes[code]} |" for code in sorted(codes))])


PARTS: Final[Mapping[str, Callable[[], str]]] = {
    "tenants": lambda: render_fields("tenants"),
    "computeclusters": lambda: render_fields("computeclusters"),
    "settings": render_settings,
    "commands": render_commands,
    "metrics": render_metrics,
    "exit-codes": render_exit_codes,
}
"""Renderer by the name in a page's marker."""


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from _commands(f"{name} {child}", found)


def _fields(
    properties: Mapping[str, Any], *, path: str = "", required: Iterable[str] = ()
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    for name, schema in properties.items():
        here = f"{path}{name}"
        yield here, schema, name in required
        inner = schema.get("items", schema)
        step = "[]." if "items" in schema else "."
        yield from _fields(inner.get("properties", {}), path=f"{here}{step}", required=inner.get("required", ()))


def _row(path: str, schema: Mapping[str, Any], required: bool) -> str:
    inner = schema.get("items", schema)
    kind = _type(schema)
    default = f"`{_yaml(schema['default'])}`" if "default" in schema else "required" if required else "-"
    text = " ".join(str(schema.get("description") or inner.get("description", "")).split())
    text = " ".join([text, *_constraints(schema, inner)])
    return f"| `{path}` | {kind} | {default} | {text.strip().replace('|', chr(92) + '|')} |"


def _constraints(schema: Mapping[str, Any], inner: Mapping[str, Any]) -> Iterator[str]:
    if values := inner.get("enum"):
        yield f"One of {', '.join(f'`{value}`' for value in values if value)}."
    for key, words in (("maxItems", "items"), ("maxProperties", "entries")):
        if key in schema:
            yield f"At most {schema[key]} {words}."


def _type(schema: Mapping[str, Any]) -> str:
    if "items" in schema:
        return f"list of {_type(schema['items'])}s"
    values = schema.get("additionalProperties")
    if isinstance(values, Mapping):
        return f"map of {_type(values)}s" if not values.get("x-kubernetes-int-or-string") else "map of quantities"
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    return str(schema.get("format") if schema.get("format") == "date-time" else schema.get("type", "object"))


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


if __name__ == "__main__":
    sys.exit(main())

"""Metadata of the chart for Artifact Hub and Helm's tools, in Chart.yaml: icon, definitions, examples and images.

https://artifacthub.io/docs/topics/annotations/helm/ describes the annotations.
"""

from __future__ import annotations

import base64
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from chart_values import Value, flatten_values

from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway.cli.check import IMAGE as CHECK_IMAGE
from vkgateway.planes.drivers.kubernetes.parameters import Parameters
from vkgateway.planes.plane import COMPONENTS
from vkgateway.version import __version__

_CHECKOUT: Final = Path(__file__).resolve().parent.parent
DEFINITIONS: Final = _CHECKOUT / "vkgateway/api/crds"
EXAMPLES: Final = _CHECKOUT / "deploy/chart/examples.yaml"
ICON: Final = _CHECKOUT / "vkgateway/page/static/icon.svg"
_MARKER: Final = "# Written by `make chart`.\n"
_DISPLAY_NAMES: Final = {"Tenant": "Tenant", "ComputeCluster": "Compute cluster"}


def render_metadata(text: str, values: Sequence[Value]) -> str:
    """Return Chart.yaml with icon and annotations after the marker."""
    head, _, _ = text.partition(_MARKER)
    annotations = {
        "category": "ai-machine-learning",
        "license": "Apache-2.0",
        "crds": list(_definitions()),
        "crdsExamples": list(yaml.safe_load_all(EXAMPLES.read_text())),
        "images": _images({value.key: value.default for value in flatten_values(list(values))}),
    }
    lines = [f"icon: {icon_url()}", "annotations:"]
    for name, value in annotations.items():
        lines.append(f"  artifacthub.io/{name}: {value if isinstance(value, str) else _block(value)}")
    return head + _MARKER + "\n".join(lines) + "\n"


def icon_url() -> str:
    """Return the page's icon as a data URL, which also works without internet.

    No public address serves the file.
    """
    return f"data:image/svg+xml;base64,{base64.b64encode(ICON.read_bytes()).decode()}"


def _block(value: object) -> str:
    """Return a literal block: values of annotations are YAML in strings."""
    text = yaml.safe_dump(value, sort_keys=False, width=110).rstrip("\n")
    return "|\n" + textwrap.indent(text, " " * 4)


def _definitions() -> Iterator[dict[str, str]]:
    for file in sorted(DEFINITIONS.glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        kind = definition["spec"]["names"]["kind"]
        (version,) = (one for one in definition["spec"]["versions"] if one["storage"])
        yield {
            "kind": kind,
            "version": version["name"],
            "name": definition["metadata"]["name"],
            "displayName": _DISPLAY_NAMES[kind],
            "description": version["schema"]["openAPIV3Schema"]["description"],
        }


def _images(defaults: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the images of an installation with default values.

    Artifact Hub cannot find them itself: it renders charts without a namespace, which this chart refuses. It scans
    images for vulnerabilities, except the whitelisted one, which only `make image` provides.
    """
    official = Parameters(registry=defaults["registry"])
    own = f"{defaults['image.repository']}:{defaults['image.tag'] or __version__}"
    found: list[dict[str, Any]] = [
        {"name": "gateway", "image": own, "whitelisted": True},
        {"name": "etcd", "image": f"{defaults['registry']}/etcd:{defaults['etcd.image.tag']}"},
    ]
    found += [
        {"name": name, "image": official.component_image(name, DEFAULT_KUBERNETES_VERSION)} for name in COMPONENTS
    ]
    return [
        *found,
        {"name": "name-server", "image": official.name_server_image},
        {"name": "test", "image": CHECK_IMAGE},
    ]

"""Metadata and README of the chart: they equal the code, and a reader of the chart alone can use them."""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import chart_files
import msgspec
import pytest
import yaml
from chart_metadata import ICON

from vkgateway.api import types as api
from vkgateway.serve.definitions import load_definitions
from vkgateway.version import __version__

CHART, CHECKOUT = chart_files.CHART, chart_files.CHECKOUT
METADATA: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
PROJECT: dict[str, Any] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
TYPES: Mapping[str, type[msgspec.Struct]] = {"Tenant": api.Tenant, "ComputeCluster": api.ComputeCluster}
LINK = re.compile(r"\]\(([^)#]*)[^)]*\)|(?:href|src)=\"([^\"]*)\"")
PAGE = re.compile(r"(?<!\*)\*([A-Z][^*|]+)\*(?!\*)")
"""Title of a page in italics."""


def annotation(name: str) -> Any:
    """Return the value of an annotation, which is YAML in a string."""
    return yaml.safe_load(METADATA["annotations"][f"artifacthub.io/{name}"])


def test_versions_are_those_of_the_package() -> None:
    assert METADATA["version"] == METADATA["appVersion"] == PROJECT["version"] == __version__


def test_the_license_is_that_of_the_package() -> None:
    assert annotation("license") == PROJECT["license"]
    assert (CHART / "LICENSE").read_text() == (CHECKOUT / "LICENSE").read_text()


def test_the_icon_is_that_of_the_page() -> None:
    kind, _, data = METADATA["icon"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data) == ICON.read_bytes()


def test_definitions_are_those_of_the_chart() -> None:
    definitions = {one["metadata"]["name"]: one["spec"] for one in load_definitions()}
    described = {one["name"]: one for one in annotation("crds")}
    assert described.keys() == definitions.keys()
    assert {f"{name.split('.')[0]}.yaml" for name in described} == {
        file.name for file in (CHART / "files/crds").iterdir()
    }
    for name, one in described.items():
        assert one["kind"] == definitions[name]["names"]["kind"]
        assert one["version"] in [version["name"] for version in definitions[name]["versions"] if version["served"]]
        assert one["displayName"]
        assert one["description"]


@pytest.mark.parametrize("example", annotation("crdsExamples"), ids=lambda example: example["kind"])
def test_examples_are_valid(example: dict[str, Any]) -> None:
    definition = next(one["spec"] for one in load_definitions() if one["spec"]["names"]["kind"] == example["kind"])
    (version,) = (one for one in definition["versions"] if f"vkgateway.io/{one['name']}" == example["apiVersion"])
    fields = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert list(unknown_fields(example["spec"], fields)) == []
    msgspec.convert(example, TYPES[example["kind"]])


def test_every_definition_has_an_example() -> None:
    assert {one["kind"] for one in annotation("crdsExamples")} == {one["kind"] for one in annotation("crds")}


def unknown_fields(value: Any, schema: Mapping[str, Any], path: str = "spec") -> Iterator[str]:
    """Yield the fields of a value that its schema does not have."""
    if isinstance(value, list):
        for item in value:
            yield from unknown_fields(item, schema["items"], path)
    elif isinstance(value, dict) and "additionalProperties" not in schema:
        for name, part in value.items():
            if name not in schema["properties"]:
                yield f"{path}.{name}"
            else:
                yield from unknown_fields(part, schema["properties"][name], f"{path}.{name}")


def test_images_have_tags() -> None:
    images = [one["image"] for one in annotation("images")]
    assert len(set(images)) == len(images) >= 6
    assert all(re.fullmatch(r"[a-z0-9./-]+:v?\d[\w.-]*", image) for image in images)


def test_keywords_and_maintainers_are_complete() -> None:
    assert len(set(METADATA["keywords"])) == len(METADATA["keywords"])
    assert METADATA["maintainers"] == [{"name": "vkgateway contributors"}]
    assert 'copyright = "vkgateway contributors"' in (CHECKOUT / "docs/conf.py").read_text()


def test_no_text_of_the_chart_links_out_of_it() -> None:
    """Artifact Hub and `helm show readme` have no other file of the checkout."""
    for name in ("README.md", "values.yaml", "Chart.yaml", "templates/NOTES.txt"):
        links = [first or second for first, second in LINK.findall(_prose(name))]
        assert [link for link in links if link and not link.startswith("https://")] == [], name


def test_pages_that_the_chart_names_exist() -> None:
    titles = {page.read_text().split("\n", 1)[0].removeprefix("# ") for page in CHECKOUT.glob("docs/**/*.md")}
    named = {title for name in ("README.md", "values.yaml") for title in PAGE.findall(_prose(name))}
    assert "Install on a cluster" in named
    assert named <= titles


def _prose(name: str) -> str:
    """Return a file of the chart without schemas, whose patterns look like links."""
    lines = (CHART / name).read_text().splitlines()
    return " ".join(line.lstrip("# ") for line in lines if "pattern:" not in line)

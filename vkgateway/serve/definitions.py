"""The gateway's CustomResourceDefinitions: installed by the gateway, or compared with those that a chart installed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.kube import errors, yamltext
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CRDS

log = structlog.get_logger(__name__)

VERSION_ANNOTATION: Final = "vkgateway.io/definition-version"
"""Annotation of each definition: a number that increases with each change of the definition."""
_UPGRADE: Final = "Upgrade the chart with `helm upgrade`, or apply deploy/crds of the gateway's release."
_DESCRIPTION: Final = "description"

Document = dict[str, Any]


class DefinitionsError(UnavailableError):
    """Definitions are missing or older than the gateway. The gateway starts when they have been installed."""


def load_definitions() -> list[Document]:
    """Return the definitions of this release."""
    folder = resources.files("vkgateway.api") / "crds"
    files = sorted(folder.iterdir(), key=lambda file: file.name)
    return [yamltext.load(file.read_text()) for file in files if file.name.endswith(".yaml")]


async def install_definitions(client: Client) -> None:
    """Create the definitions or update them to this release."""
    # In parallel, because tenants wait; all to the end, so that no part overlaps with a retry.
    parts = [apply_objects(client, [definition]) for definition in load_definitions()]
    for result in await asyncio.gather(*parts, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def check_definitions(client: Client) -> str:
    """Return how the installed definitions differ from those of this release; empty if they don't.

    Raises:
        DefinitionsError: a definition is missing or older than the gateway.
        ApiError: the definitions cannot be read.
    """
    texts = [await _check_definition(client, definition) for definition in load_definitions()]
    notice = "; ".join(text for text in texts if text)
    if notice:
        log.warning("unexpected CustomResourceDefinitions", problem=notice)
    return notice


async def _check_definition(client: Client, own: Document) -> str:
    """Return what is unusual about the installed definition; empty if it is that of this release."""
    name = own["metadata"]["name"]
    try:
        installed = msgspec.json.decode(await client.get(CRDS, name))
    except errors.NotFound as error:
        raise DefinitionsError(f"CustomResourceDefinition {name} is missing. {_UPGRADE}") from error
    own_version, version = definition_version(own), definition_version(installed)
    if version < own_version:
        raise DefinitionsError(
            f"CustomResourceDefinition {name} has version {version} and is older than the gateway, which needs version "
            f"{own_version}. {_UPGRADE}"
        )
    if version > own_version:
        return (
            f"CustomResourceDefinition {name} has version {version} and is newer than the gateway's chart with version "
            f"{own_version}. {_UPGRADE}"
        )
    if not _contains(installed["spec"], own["spec"]):
        return f"CustomResourceDefinition {name} was changed. {_UPGRADE}"
    return ""


def definition_version(definition: Mapping[str, Any]) -> int:
    """Return the version of a definition, 0 if it has none."""
    text = (definition["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def _contains(installed: Any, own: Any) -> bool:
    """Return whether the installed value has everything in `own`. API servers add defaults; descriptions may differ."""
    if isinstance(own, dict):
        return isinstance(installed, dict) and all(
            key in installed and _contains(installed[key], value)
            for key, value in own.items()
            if key != _DESCRIPTION or not isinstance(value, str)
        )
    if isinstance(own, list):
        return (
            isinstance(installed, list)
            and len(installed) == len(own)
            and all(_contains(theirs, ours) for theirs, ours in zip(installed, own, strict=True))
        )
    return bool(installed == own)

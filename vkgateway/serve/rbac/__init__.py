"""RBAC roles of the gateway in compute clusters and in the management cluster."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml


def compute_roles() -> list[dict[str, Any]]:
    """Return the manifests of the roles in a compute cluster."""
    return _read_manifests("compute.yaml")


def management_roles() -> list[dict[str, Any]]:
    """Return the manifests of the roles in the management cluster."""
    return _read_manifests("management.yaml")


def control_plane_roles() -> list[dict[str, Any]]:
    """Return the manifests of the role of the driver `kubernetes` in the management cluster."""
    return _read_manifests("control-planes.yaml")


def state_reader_roles() -> list[dict[str, Any]]:
    """Return the manifests for users who read the gateway's state through the management cluster."""
    return _read_manifests("state-reader.yaml")


def _read_manifests(file: str) -> list[dict[str, Any]]:
    text = (resources.files(__name__) / file).read_text()
    return [document for document in yaml.safe_load_all(text) if document]

"""What the gateway may do in compute clusters and in the management cluster: the roles that are granted to it."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml


def compute_roles() -> list[dict[str, Any]]:
    """What it needs in each compute cluster, and nothing else."""
    return _read_manifests("compute.yaml")


def management_roles() -> list[dict[str, Any]]:
    """What it needs in the management cluster, and nothing else."""
    return _read_manifests("management.yaml")


def _read_manifests(file: str) -> list[dict[str, Any]]:
    text = (resources.files(__name__) / file).read_text()
    return [document for document in yaml.safe_load_all(text) if document]

"""Admission policies of the management cluster. An admin applies them: the gateway has no permission for policies."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml


def deletion_protection() -> list[dict[str, Any]]:
    """Return the policy that refuses the deletion of protected Tenants, and its binding."""
    text = (resources.files(__name__) / "deletion-protection.yaml").read_text()
    return list(yaml.safe_load_all(text))

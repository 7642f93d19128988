"""What is good for a compute cluster but its admin's to decide: objects that the gateway has no right to make."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

POLICY_GROUP = "admissionregistration.k8s.io"


def lean_pods_policy(version: str) -> list[dict[str, Any]]:
    """What keeps tenants' pods small, in the version in which the cluster has such policies (`v1` or `v1beta1`)."""
    text = (resources.files(__name__) / "lean-pods.yaml").read_text()
    return [{**document, "apiVersion": f"{POLICY_GROUP}/{version}"} for document in yaml.safe_load_all(text)]

"""Recommended policies for compute clusters, which an admin applies because the gateway has no permission for them."""

from __future__ import annotations

from importlib import resources
from typing import Any

import yaml

POLICY_GROUP = "admissionregistration.k8s.io"


def lean_pods_policy(version: str) -> list[dict[str, Any]]:
    """Return the policy that removes managedFields from tenant pods, in the cluster's version (`v1` or `v1beta1`)."""
    text = (resources.files(__name__) / "lean-pods.yaml").read_text()
    return [{**document, "apiVersion": f"{POLICY_GROUP}/{version}"} for document in yaml.safe_load_all(text)]

"""Kueue's API, and the names of the objects that the gateway creates there."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
TOPOLOGY_ANNOTATION: Final = "kueue.x-k8s.io/podset-unconstrained-topology"
"""On compute pods: Kueue counts them as part of their Workload. It counts other pods a second time."""
HOSTNAME: Final = "kubernetes.io/hostname"
ANY_NODE_LABELS: Final = {"kubernetes.io/os": "linux"}
"""Node labels of a pool that selects all nodes: a flavor with a topology must name a label."""


def cohort_name(pool: str) -> str:
    """Return the name of a pool's cohort."""
    return f"vkgateway.{pool}"


def flavor_name(pool: str, content: object) -> str:
    """Return the name of a pool's flavor and topology with this content, which Kueue does not allow to change."""
    digest = hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()[:8]
    return f"vkgateway.{pool}.{digest}"

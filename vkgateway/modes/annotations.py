"""Annotations that a pool's scheduler reads on the compute pods that it admitted."""

from __future__ import annotations

from vkgateway.model.api import KUEUE
from vkgateway.modes.kueue.names import TOPOLOGY_ANNOTATION


def admitted_annotations(mode: str) -> dict[str, str]:
    """Return the annotations for the scheduler of a mode."""
    return {TOPOLOGY_ANNOTATION: "true"} if mode == KUEUE else {}

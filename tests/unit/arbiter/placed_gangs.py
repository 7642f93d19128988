"""Gangs that run at the beginning of a test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import KEY
from vkgateway.scheduler.core.snapshot import Gang, PodState


def place_gang(one: Gang, on: Sequence[str], *, borrowed: bool, **fields: object) -> Gang:
    """Return the gang with its pods placed on these nodes since its creation."""
    cluster = {"state": PodState.PLACED, "pool": KEY, "borrowed": borrowed, "since": one.created, **fields}
    pods = [replace(pod, node=name, **cluster) for pod, name in zip(one.pods, on, strict=True)]  # type: ignore[arg-type]
    return replace(one, pods=tuple(pods))

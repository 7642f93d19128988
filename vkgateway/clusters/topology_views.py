"""View of a node's NUMA zones, as an updater publishes them in a compute cluster."""

from __future__ import annotations

import msgspec

from vkgateway.api.objects import Meta
from vkgateway.scheduler.core.snapshot import Zone


class TopologyView(msgspec.Struct, frozen=True):
    """NUMA zones of one node; empty if the kubelet does not restrict how a pod spreads over them."""

    metadata: Meta
    scope: str
    """`container` or `pod`."""
    zones: tuple[Zone, ...]

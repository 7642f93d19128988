"""NUMA zones of a node, as an updater publishes them in a compute cluster."""

from __future__ import annotations

import msgspec

from vkgateway.arbiter.snapshot import Zone
from vkgateway.model.objects import Meta


class TopologyView(msgspec.Struct, frozen=True):
    """One node's zones; none where its kubelet does not mind how a pod is spread over them."""

    metadata: Meta
    scope: str
    """`container` or `pod`."""
    zones: tuple[Zone, ...]

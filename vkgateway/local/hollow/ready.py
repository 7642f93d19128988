"""Readiness of hollow nodes."""

from __future__ import annotations

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES
from vkgateway.local.hollow.nodes import MANAGED_ANNOTATION
from vkgateway.model.objects import NodeView


async def nodes_ready(client: Client, count: int) -> bool:
    """Return whether `count` hollow nodes are Ready; false if the API server does not answer."""
    try:
        page = await client.list_all(NODES)
    except errors.ApiError:
        return False
    views = [msgspec.json.decode(item, type=NodeView) for item in page.items]
    return sum(1 for view in views if _is_ready(view)) >= count


def _is_ready(view: NodeView) -> bool:
    key, value = MANAGED_ANNOTATION
    is_hollow = view.metadata.annotations.get(key) == value
    return is_hollow and any(c.type == "Ready" and c.status == "True" for c in view.status.conditions)

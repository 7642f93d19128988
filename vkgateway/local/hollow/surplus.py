"""Removal of hollow nodes beyond the requested size of a pool."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NODES
from vkgateway.local.hollow.nodes import MANAGED_ANNOTATION, POOL_LABEL
from vkgateway.model.objects import NodeView


async def remove_surplus(client: Client, counts: Mapping[str, int]) -> list[str]:
    """Delete each pool's nodes beyond its count, and return their names; nodes of others have other names."""
    page = await client.list_all(NODES)
    views = [msgspec.json.decode(item, type=NodeView) for item in page.items]
    surplus = [view.metadata for view in views if _is_surplus(view, counts)]
    for metadata in surplus:
        with contextlib.suppress(errors.NotFound):
            await client.delete(NODES, metadata.name, uid=metadata.uid)
    return sorted(metadata.name for metadata in surplus)


def _is_surplus(view: NodeView, counts: Mapping[str, int]) -> bool:
    key, value = MANAGED_ANNOTATION
    metadata = view.metadata
    pool = metadata.labels.get(POOL_LABEL, "")
    index = metadata.name.removeprefix(f"{pool}-")
    is_ours = metadata.annotations.get(key) == value and pool in counts and index.isdigit()
    return is_ours and metadata.name == f"{pool}-{int(index)}" and int(index) >= counts[pool]

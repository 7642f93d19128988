"""The UID of a cluster, which no other cluster has."""

from __future__ import annotations

from vkgateway.api.objects import decode_namespace
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NAMESPACES


async def read_cluster_uid(client: Client) -> str:
    """Return the UID of the namespace `kube-system`, which identifies a cluster; empty if it does not exist.

    Two ComputeClusters, or one and the management cluster, are the same cluster if they have the same UID.
    """
    try:
        return decode_namespace(await client.get(NAMESPACES, "kube-system")).metadata.uid
    except errors.NotFound:
        return ""

"""Identity of a compute cluster."""

from __future__ import annotations

from typing import NamedTuple


class ClusterIdentity(NamedTuple):
    """Name of a ComputeCluster, and the UID of the cluster; the UID is empty until it is read."""

    name: str
    uid: str = ""

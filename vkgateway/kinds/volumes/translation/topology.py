"""Labels that select some of a tenant's virtual nodes, for volumes and storage classes."""

from collections.abc import Sequence

from vkgateway.api.names import POOL_LABEL
from vkgateway.kinds.context import HOSTNAME_LABEL, PoolContext


def select_label(selected: Sequence[PoolContext], candidates: Sequence[PoolContext]) -> tuple[str, list[str]] | None:
    """Return key and values of a label that selects the `selected` virtual nodes among the `candidates` of a cluster.

    The key is the pool's label if whole pools are selected, else the host name's. None: all are selected.
    """
    if len(selected) == len(candidates):
        return None
    pools = {pool.name for pool in selected}
    if all(pool in selected for pool in candidates if pool.name in pools):
        return POOL_LABEL, sorted(pools)
    return HOSTNAME_LABEL, sorted(pool.node_name for pool in selected)

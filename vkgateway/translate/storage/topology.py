"""Labels that choose some of a tenant's virtual nodes, for volumes and storage classes."""

from collections.abc import Sequence

from vkgateway.model.names import POOL_LABEL
from vkgateway.translate.context import HOSTNAME_LABEL, PoolContext


def select_label(reached: Sequence[PoolContext], among: Sequence[PoolContext]) -> tuple[str, list[str]] | None:
    """Return the key of a label, and its values, that choose some virtual nodes of a cluster among all of them.

    It is the pool's label where pools are reached as a whole, else the host name's. None where all are reached.
    """
    if len(reached) == len(among):
        return None
    pools = {pool.name for pool in reached}
    if all(pool in reached for pool in among if pool.name in pools):
        return POOL_LABEL, sorted(pools)
    return HOSTNAME_LABEL, sorted(pool.node_name for pool in reached)

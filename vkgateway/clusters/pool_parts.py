"""Parts of a pool: one virtual node for the whole pool, or one per value of the dividing node label (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vkgateway.api.names import virtual_node_name
from vkgateway.api.types import Pool, TenantPool, TenantPoolStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """Nodes of a pool behind one virtual node.

    The nodes have `value` of the label `label`. An empty value selects nodes without the label, an empty label all
    nodes of the pool. A `retired` part accepts no more pods: the pool is divided by another label now, or no node has
    the value.
    """

    label: str = ""
    value: str = ""
    retired: bool = False

    def node_selector(self, pool: Pool) -> dict[str, str]:
        """Return the node selector of the part."""
        return {**pool.node_selector, self.label: self.value} if self.value else pool.node_selector

    @property
    def absent_label(self) -> str:
        """The label that the part's nodes must not carry, or ""."""
        return self.label if not self.value else ""

    def node_name(self, tenant_pool: TenantPool) -> str:
        """Return the name of the part's virtual node."""
        return virtual_node_name(tenant_pool.name, tenant_pool.compute_cluster, self.value)


WHOLE_POOL = PoolPart()


def split_pool(
    pool: Pool,
    values: frozenset[str],
    *,
    nodes_known: bool,
    shown: Iterable[TenantPoolStatus],
    is_occupied: Callable[[str], bool],
) -> tuple[PoolPart, ...]:
    """Return the parts of a pool, one for each virtual node of the tenant.

    `values` are the last known values of the dividing label on the pool's nodes. `shown` are the tenant's current
    virtual nodes of this pool. An obsolete node that `is_occupied` (called with its name) becomes retired until its
    pods have terminated. While the compute nodes are unknown, the current parts stay.
    """
    parts = {"": WHOLE_POOL}
    if pool.virtual_nodes_by:
        values = values or frozenset(("",))
        parts = {value: PoolPart(label=pool.virtual_nodes_by, value=value) for value in sorted(values)}
    previous = {status.value: status for status in shown}
    if not nodes_known and previous:
        return tuple(PoolPart(label=status.virtual_nodes_by, value=status.value) for status in previous.values())
    retired = [
        PoolPart(label=status.virtual_nodes_by, value=value, retired=True)
        for value, status in previous.items()
        if value not in parts and is_occupied(status.node_name)
    ]
    return (*parts.values(), *retired)

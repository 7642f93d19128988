"""Which virtual nodes a tenant's pool has: one, or one per value of the node label that divides it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vkgateway.model.api import Pool, TenantPool, TenantPoolStatus
from vkgateway.model.names import virtual_node_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPart:
    """The nodes of a pool behind one virtual node.

    They have `value` of the label `label`; an empty value means that they do not carry it, an empty label that they are
    all of the pool's nodes. A `retired` part takes no more pods: the pool is divided otherwise now, or no node has the
    value any more.
    """

    label: str = ""
    value: str = ""
    retired: bool = False

    def node_selector(self, pool: Pool) -> dict[str, str]:
        """Return the node selector of the part."""
        return {**pool.node_selector, self.label: self.value} if self.value else pool.node_selector

    @property
    def absent_label(self) -> str:
        """The label that its nodes do not carry, if there is one."""
        return self.label if not self.value else ""

    def node_name(self, wanted: TenantPool) -> str:
        """Return the name of the part's virtual node."""
        return virtual_node_name(wanted.name, wanted.compute_cluster, self.value)


WHOLE_POOL = PoolPart()


def split_pool(
    pool: Pool,
    values: frozenset[str],
    *,
    nodes_known: bool,
    shown: Iterable[TenantPoolStatus],
    is_occupied: Callable[[str], bool],
) -> tuple[PoolPart, ...]:
    """Return the parts of a pool, each of which is a virtual node of the tenant.

    `values` are those of the dividing label on the pool's nodes as last seen. `shown` are the tenant's virtual nodes of
    this pool so far. One that `is_occupied`, by its name, stays, retired, until its pods have ended. While the compute
    nodes are not known, the parts stay as they are shown.
    """
    found = {"": WHOLE_POOL}
    if pool.virtual_nodes_by:
        values = values or frozenset(("",))
        found = {value: PoolPart(label=pool.virtual_nodes_by, value=value) for value in sorted(values)}
    before = {status.value: status for status in shown}
    if not nodes_known and before:
        return tuple(PoolPart(label=status.virtual_nodes_by, value=status.value) for status in before.values())
    retired = [
        PoolPart(label=status.virtual_nodes_by, value=value, retired=True)
        for value, status in before.items()
        if value not in found and is_occupied(status.node_name)
    ]
    return (*found.values(), *retired)

"""What-if questions: a new gang, a guarantee, a drain of nodes, more nodes of a pool. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from vkgateway.api.quantity import Resources

MOST_PODS: Final = 10_000
"""Most pods of a gang in question."""
MOST_NODES: Final = 10_000
"""Most nodes to add or drain in one question."""
MOST_CELLS: Final = 1024
"""Most cells of a guarantee in question."""


class _Asked(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", forbid_unknown_fields=True, gc=False
):
    """Base of questions. Quantities are written as in Kubernetes; a pool is named `a100` or `a100.local`."""


class GangQuestion(_Asked, frozen=True, tag="gang", gc=False):
    """Equal pods of one tenant, submitted now as a gang; one pod is a gang of one."""

    tenant: str
    pods: int
    requests: Resources
    """Requests of each pod."""
    minimum: int | None = None
    """Pods that start together; None: all of them. With fewer than `pods`, the gang is elastic."""
    pools: tuple[str, ...] = ()
    """Allowed pools, the preferred one first. Empty: all pools of the tenant."""
    band: str = "guaranteed"
    """`guaranteed` or `low`."""
    priority: int = 0
    run_limit: float | None = None
    """Seconds after which it ends, as declared by its owner."""
    within: str = ""
    """Node label of which all its pods must share one value."""


class GuaranteeQuestion(_Asked, frozen=True, tag="guarantee", gc=False):
    """Quota of a tenant in a pool, new or in place of its current one."""

    tenant: str
    pool: str
    guarantee: Resources
    limit: Resources | None = None
    """None: unchanged."""
    weight: float | None = None
    """None: unchanged."""
    cells: tuple[int, ...] = ()
    """Empty: derived from the guarantee."""


class DrainQuestion(_Asked, frozen=True, tag="drain", gc=False):
    """Drain of nodes: they are closed, and their pods are deleted and re-created."""

    nodes: tuple[str, ...]
    """Names of compute nodes; `CLUSTER/NODE` if two compute clusters have a node of that name."""


class GrowQuestion(_Asked, frozen=True, tag="grow", gc=False):
    """Additional nodes of a pool."""

    pool: str
    nodes: int
    like: str = ""
    """Node that the new nodes copy. Empty: one of the most common kind in the pool."""


Question = GangQuestion | GuaranteeQuestion | DrainQuestion | GrowQuestion


def amounts_text(resources: Mapping[str, object]) -> str:
    """Return `cpu 4, nvidia.com/gpu 8`."""
    return ", ".join(f"{name} {amount}" for name, amount in sorted(resources.items())) or "nothing"

"""What can be asked: a gang submitted now, a guarantee, a drain of nodes, more nodes of a pool. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from vkgateway.model.quantity import Resources

MOST_PODS: Final = 10_000
"""Pods of a gang that may be asked about."""
MOST_NODES: Final = 10_000
"""Nodes by which a pool may be grown, or that may be drained, in one question."""
MOST_CELLS: Final = 1024
"""Cells of a guarantee that may be asked about."""


class _Asked(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", tag_field="kind", forbid_unknown_fields=True, gc=False
):
    """Quantities are written as in Kubernetes; a pool is named like `a100` or `a100.local`."""


class GangQuestion(_Asked, frozen=True, tag="gang", gc=False):
    """Equal pods of one tenant that are submitted now as a gang; one pod is a gang of one."""

    tenant: str
    pods: int
    requests: Resources
    """What each pod asks of its node."""
    minimum: int | None = None
    """Pods that start together; None: all of them. Fewer than `pods`: the gang is elastic."""
    pools: tuple[str, ...] = ()
    """Where it may run, best liked first. Empty: in each pool of the tenant."""
    band: str = "guaranteed"
    """`guaranteed` or `low`."""
    priority: int = 0
    run_limit: float | None = None
    """Seconds after which it has ended, as its owner declares."""
    within: str = ""
    """A node label: all its pods run within one value of it."""


class GuaranteeQuestion(_Asked, frozen=True, tag="guarantee", gc=False):
    """A tenant's part of a pool, new or in place of the one that it has."""

    tenant: str
    pool: str
    guarantee: Resources
    limit: Resources | None = None
    """None: as it is."""
    weight: float | None = None
    """None: as it is."""
    cells: tuple[int, ...] = ()
    """Empty: cut from the guarantee."""


class DrainQuestion(_Asked, frozen=True, tag="drain", gc=False):
    """Nodes are closed, and their pods are deleted and created again."""

    nodes: tuple[str, ...]
    """Names of compute nodes; `CLUSTER/NODE` where two compute clusters have one of that name."""


class GrowQuestion(_Asked, frozen=True, tag="grow", gc=False):
    """A pool gets more nodes."""

    pool: str
    nodes: int
    like: str = ""
    """The node that the new ones are like. Empty: one of the commonest kind in the pool."""


Question = GangQuestion | GuaranteeQuestion | DrainQuestion | GrowQuestion


def amounts_text(resources: Mapping[str, object]) -> str:
    """Return `cpu 4, nvidia.com/gpu 8`."""
    return ", ".join(f"{name} {amount}" for name, amount in sorted(resources.items())) or "nothing"

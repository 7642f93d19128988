"""Checks whether the nodes of a pool can hold a tenant's guarantee alongside those of the other tenants (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkgateway.api import quantity
from vkgateway.api.types import TenantPool
from vkgateway.clusters.pools import build_quota
from vkgateway.scheduler.core.snapshot import Pool, Quota

GuaranteedPod = tuple[str, str, int]
"""A pod that runs inside its tenant's guarantee: tenant, node, and thousandths of the pool's unit resource."""


def guarantee_violations(
    tenant: str, requested: TenantPool, *, pool: Pool, others: Sequence[Quota], running: Sequence[GuaranteedPod] = ()
) -> Iterator[str]:
    """Yield sentences that say why the nodes do not hold the guarantee beside all others.

    Guarantees that were accepted earlier take precedence, even if nodes failed since and cannot hold them.
    So do the pods that run inside guarantees now (`running`): they are never moved.
    """
    # Imports numpy, which would delay the start of the gateway and of the command line.
    from vkgateway.scheduler.core.guarantees.refusals import deferral_reason, refusal_reasons

    quota = build_quota(tenant, requested, granted=1.0)
    refusals = refusal_reasons(pool, others, quota)
    yield from refusals
    if not refusals and (deferral := deferral_reason(pool, others, quota, running)):
        yield deferral


def is_within_previous(requested: TenantPool, previous: TenantPool) -> bool:
    """Return whether a requested guarantee is within the guarantee that was accepted before."""
    if quantity.exceeded_resources(requested.guarantee, previous.guarantee):
        return False
    if not requested.cells and not previous.cells:
        return True
    pairs = zip(sorted(requested.cells, reverse=True), sorted(previous.cells, reverse=True), strict=False)
    return 0 < len(requested.cells) <= len(previous.cells) and all(new <= old for new, old in pairs)

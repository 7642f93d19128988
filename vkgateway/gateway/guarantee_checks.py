"""Whether what a tenant is to be guaranteed of a pool can be kept on its nodes, beside what others have (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vkgateway.arbiter.snapshot import Pool, Quota
from vkgateway.gateway.pools import build_quota
from vkgateway.model import quantity
from vkgateway.model.api import TenantPool

GuaranteedPod = tuple[str, str, int]
"""A pod that runs inside its tenant's guarantee: tenant, node, and thousandths of the pool's unit."""


def guarantee_violations(
    tenant: str, wanted: TenantPool, *, pool: Pool, others: Sequence[Quota], held: Sequence[GuaranteedPod] = ()
) -> Iterator[str]:
    """Say, in sentences, why a guarantee cannot be kept by cells that are bound at the same time as all others'.

    Whoever was accepted before comes first: also where nodes have died since and not even that can be kept; and so do
    the pods that run inside guarantees now, which are never moved (`held`).
    """
    # It brings numpy, for which neither a starting gateway nor the command line should wait.
    from vkgateway.arbiter.guarantees.refusals import deferral_reason, refusal_reasons

    mine = build_quota(tenant, wanted, granted=1.0)
    found = refusal_reasons(pool, others, mine)
    yield from found
    if not found and (later := deferral_reason(pool, others, mine, held)):
        yield later


def is_within_previous(wanted: TenantPool, had: TenantPool) -> bool:
    """Whether a tenant that was accepted with one guarantee asks for nothing beyond it with the other."""
    if quantity.exceeded_resources(wanted.guarantee, had.guarantee):
        return False
    if not wanted.cells and not had.cells:
        return True
    pairs = zip(sorted(wanted.cells, reverse=True), sorted(had.cells, reverse=True), strict=False)
    return 0 < len(wanted.cells) <= len(had.cells) and all(new <= old for new, old in pairs)

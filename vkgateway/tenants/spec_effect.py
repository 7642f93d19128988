"""Condition SpecEffective of a Tenant: parts of its spec that have no effect now, and may have one later (pure)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from vkgateway.api.types import ComputeCluster, Tenant
from vkgateway.clusters.status import Verdict, false_verdict
from vkgateway.kinds.context import ANY


def effect_verdict(
    tenant: Tenant, *, computes: Mapping[str, ComputeCluster], classes: Mapping[str, Collection[str]]
) -> Verdict | None:
    """Return why parts of the spec have no effect now; None if all have.

    `classes` are the names of the storage classes by compute cluster, without clusters whose classes are not known.
    """
    problems = [*_empty_pools(tenant, computes), *_missing_classes(tenant, classes)]
    if not problems:
        return None
    reason = problems[0][0]
    return false_verdict(reason, "; ".join(sentence for _, sentence in problems))


def _empty_pools(tenant: Tenant, computes: Mapping[str, ComputeCluster]) -> Iterator[tuple[str, str]]:
    if not tenant.spec.pools:
        yield "NoPools", "spec.pools is empty, so that the tenant has no nodes and its pods stay Pending; add a pool"
    for index, pool in enumerate(tenant.spec.pools):
        compute = computes.get(pool.compute_cluster)
        seen = next((each for each in compute.status.pools if each.name == pool.name), None) if compute else None
        if compute is not None and seen is not None and not seen.nodes:
            spec = next((each for each in compute.spec.pools if each.name == pool.name), None)
            labels = ",".join(f"{key}={value}" for key, value in sorted((spec.node_selector if spec else {}).items()))
            yield (
                "PoolWithoutNodes",
                f"spec.pools[{index}]: pool {pool.name!r} of compute cluster {pool.compute_cluster!r} has no nodes; "
                f"label nodes with {labels}, or correct the pool's nodeSelector",
            )


def _missing_classes(tenant: Tenant, classes: Mapping[str, Collection[str]]) -> Iterator[tuple[str, str]]:
    used = {pool.compute_cluster for pool in tenant.spec.pools}
    if not used or not used <= classes.keys():
        return
    found = sorted({name for cluster in used for name in classes[cluster]})
    policy = tenant.spec.policy
    for field, names in (
        ("storageClasses", [name for name in policy.storage_classes if name != ANY]),
        ("storageClassNames", list(policy.storage_class_names.values())),
    ):
        if missing := [name for name in names if name not in found]:
            yield (
                "StorageClassMissing",
                f"spec.policy.{field}: {', '.join(missing)}: no compute cluster of the tenant has this storage class; "
                f"available: {', '.join(found) or 'none'}",
            )

"""Store of the tenants' accepted specs, whose guarantees reduce what is available to other tenants."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from vkgateway.api.names import RESERVED_PREFIX
from vkgateway.api.objects import Meta
from vkgateway.api.types import ComputeCluster, Tenant, TenantBudget, TenantSpec
from vkgateway.clusters.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.tenants.acceptance import (
    GuaranteedPodsLookup,
    PoolFactsLookup,
    find_objections,
    pool_offers,
    sum_guarantees,
    unknown_cluster,
)

ACCEPTED_SPEC_ANNOTATION = f"{RESERVED_PREFIX}accepted-spec"
"""Annotation of a Tenant: the last accepted spec, which stays in force while a changed spec is refused."""
ACCEPTED_FOR_ANNOTATION = f"{RESERVED_PREFIX}accepted-for"
"""Annotation of a Tenant: the UID for which the spec was accepted. A copy of the object carries both annotations."""

_decode_spec = msgspec.json.Decoder(TenantSpec).decode
_ACCEPTED_VERDICT = true_verdict("Accepted", "the spec is valid and the pools can hold the guarantees")


def acceptance_annotations(spec: TenantSpec, uid: str) -> dict[str, str]:
    """Return the annotations that store the accepted spec on the Tenant."""
    return {ACCEPTED_SPEC_ANNOTATION: msgspec.json.encode(spec).decode(), ACCEPTED_FOR_ANNOTATION: uid}


def read_accepted_spec(tenant: Tenant) -> TenantSpec | None:
    """Return the accepted spec that the Tenant carries; None if it is missing, unreadable or another Tenant's.

    A spec without a UID counts as this Tenant's: earlier releases did not write the UID.
    """
    found = tenant.metadata.annotations
    text = found.get(ACCEPTED_SPEC_ANNOTATION)
    if text is None or found.get(ACCEPTED_FOR_ANNOTATION, tenant.metadata.uid) != tenant.metadata.uid:
        return None
    try:
        return _decode_spec(text.encode())
    except msgspec.DecodeError:
        return None


class AcceptedSpecs:
    """Accepted specs by tenant. Each decision takes effect at once, so that no capacity is guaranteed twice.

    With `facts`, guarantees are also checked node by node, and with `guaranteed_pods` against the pods that run inside
    guarantees. Without them, only sums are checked.
    """

    def __init__(
        self, facts: PoolFactsLookup | None = None, guaranteed_pods: GuaranteedPodsLookup = lambda _: ()
    ) -> None:
        self._pool_facts = facts
        self._guaranteed_pods = guaranteed_pods
        self._specs: dict[str, TenantSpec] = {}

    def load(self, tenants: Iterable[Tenant]) -> None:
        """Load the specs that were accepted before this process started."""
        for tenant in tenants:
            spec = read_accepted_spec(tenant)
            if spec is not None and not tenant.spec.delete_after:
                self._specs.setdefault(tenant.metadata.name, spec)

    def spec_of(self, name: str) -> TenantSpec | None:
        """Return the spec in force for a tenant."""
        return self._specs.get(name)

    def budgets_of(self, name: str) -> tuple[TenantBudget, ...]:
        """Return the budgets in force of a tenant."""
        spec = self._specs.get(name)
        return spec.budget if spec is not None else ()

    def decide_acceptance(
        self, tenant: Tenant, *, computes: Iterable[ComputeCluster], templates: Collection[str]
    ) -> Verdict:
        """Return whether the tenant's current spec is accepted; an accepted spec is in force from now on."""
        name, spec = tenant.metadata.name, tenant.spec
        previous = self._specs.get(name)
        if previous == spec:
            return _ACCEPTED_VERDICT
        offers = pool_offers(computes, others=self._other_tenants(name))
        facts = self._pool_facts
        objections = find_objections(
            tenant,
            offers=offers,
            templates=templates,
            previous=previous,
            facts=facts,
            guaranteed_pods=self._guaranteed_pods,
        )
        if objections:
            return false_verdict(objections[0].reason, "; ".join(str(one) for one in objections))
        if unknown := unknown_cluster(tenant, offers=offers, previous=previous, facts=facts):
            return unknown_verdict("ComputeClusterUnknown", f"waiting for compute cluster {unknown!r} to be connected")
        self._specs[name] = spec
        return _ACCEPTED_VERDICT

    def remove(self, name: str) -> None:
        """Remove a tenant's spec, which releases its guarantees."""
        self._specs.pop(name, None)

    def total_guarantee(self, compute_cluster: str, pool: str) -> dict[str, str]:
        """Return the sum of all tenants' guarantees in a pool."""
        return sum_guarantees(self._other_tenants(""), compute_cluster=compute_cluster, pool=pool)

    def tenants_of(self, compute_cluster: str) -> list[str]:
        """Return the sorted names of the tenants whose accepted specs have pools of a compute cluster."""
        return sorted(
            name
            for name, spec in self._specs.items()
            if any(pool.compute_cluster == compute_cluster for pool in spec.pools)
        )

    def tenants_in(self, compute_cluster: str, pool: str) -> list[str]:
        """Return the sorted names of the tenants that use a pool."""
        key = compute_cluster, pool
        return sorted(
            name
            for name, spec in self._specs.items()
            if any((wanted.compute_cluster, wanted.name) == key for wanted in spec.pools)
        )

    def _other_tenants(self, name: str) -> list[Tenant]:
        return [Tenant(metadata=Meta(name=other), spec=spec) for other, spec in self._specs.items() if other != name]

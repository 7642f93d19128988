"""Which tenants were accepted with which spec: what they are guaranteed counts against everybody else."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from vkgateway.gateway.acceptance import (
    GuaranteedPodsLookup,
    PoolFactsLookup,
    find_objections,
    pool_offers,
    sum_guarantees,
    unknown_cluster,
)
from vkgateway.gateway.status import Verdict, false_verdict, true_verdict, unknown_verdict
from vkgateway.model.api import ComputeCluster, Tenant, TenantSpec
from vkgateway.model.names import RESERVED_PREFIX
from vkgateway.model.objects import Meta

ACCEPTED_SPEC_ANNOTATION = f"{RESERVED_PREFIX}accepted-spec"
"""Annotation of a Tenant: the spec that was accepted last, which stays in force while a changed one is refused."""
ACCEPTED_FOR_ANNOTATION = f"{RESERVED_PREFIX}accepted-for"
"""Annotation beside it: the UID of the Tenant that it was accepted for, since a copy of the object has both."""

_decode_spec = msgspec.json.Decoder(TenantSpec).decode
_ACCEPTED_VERDICT = true_verdict("Accepted", "its pools, version and template are known, and its guarantees fit")


def acceptance_annotations(spec: TenantSpec, uid: str) -> dict[str, str]:
    """Return the annotations by which a Tenant remembers what was accepted for it."""
    return {ACCEPTED_SPEC_ANNOTATION: msgspec.json.encode(spec).decode(), ACCEPTED_FOR_ANNOTATION: uid}


def read_accepted_spec(tenant: Tenant) -> TenantSpec | None:
    """Return the accepted spec that the object carries; None if it carries none that can be read, or another's.

    Where it is not said whose it is, it is taken for its own: so it was written until releases said so.
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
    """Decides, one tenant at a time, and remembers at once, so that nothing is promised twice.

    With `facts`, what the nodes of a pool are, guarantees are also held against single nodes, and with `standing`
    against what runs inside guarantees there; without, against sums.
    """

    def __init__(self, facts: PoolFactsLookup | None = None, standing: GuaranteedPodsLookup = lambda _: ()) -> None:
        self._pool_facts = facts
        self._guaranteed_pods = standing
        self._specs: dict[str, TenantSpec] = {}

    def load(self, tenants: Iterable[Tenant]) -> None:
        """Take over what was accepted before this process began."""
        for tenant in tenants:
            spec = read_accepted_spec(tenant)
            if spec is not None:
                self._specs.setdefault(tenant.metadata.name, spec)

    def spec_of(self, name: str) -> TenantSpec | None:
        """Return the spec in force for a tenant."""
        return self._specs.get(name)

    def decide_acceptance(
        self, tenant: Tenant, *, computes: Iterable[ComputeCluster], templates: Collection[str]
    ) -> Verdict:
        """Say whether the tenant is accepted as its spec is now; what is accepted is in force from here on."""
        name, spec = tenant.metadata.name, tenant.spec
        had = self._specs.get(name)
        if had == spec:
            return _ACCEPTED_VERDICT
        there = pool_offers(computes, others=self._other_tenants(name))
        facts, standing = self._pool_facts, self._guaranteed_pods
        found = find_objections(tenant, offers=there, templates=templates, had=had, facts=facts, standing=standing)
        if found:
            return false_verdict(found[0].reason, "; ".join(str(one) for one in found))
        if unknown := unknown_cluster(tenant, offers=there, had=had, facts=facts):
            return unknown_verdict("ComputeClusterUnknown", f"waits until compute cluster {unknown!r} is connected")
        self._specs[name] = spec
        return _ACCEPTED_VERDICT

    def remove(self, name: str) -> None:
        """Give back what a tenant was guaranteed."""
        self._specs.pop(name, None)

    def total_guarantee(self, compute_cluster: str, pool: str) -> dict[str, str]:
        """Return what is guaranteed of a pool, all tenants together."""
        return sum_guarantees(self._other_tenants(""), compute_cluster=compute_cluster, pool=pool)

    def tenants_of(self, compute_cluster: str) -> list[str]:
        """Return the tenants that have pools of a compute cluster, by name."""
        return sorted(
            name
            for name, spec in self._specs.items()
            if any(pool.compute_cluster == compute_cluster for pool in spec.pools)
        )

    def _other_tenants(self, name: str) -> list[Tenant]:
        return [Tenant(metadata=Meta(name=other), spec=spec) for other, spec in self._specs.items() if other != name]

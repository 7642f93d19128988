"""Which tenants were accepted with which spec: what they are guaranteed counts against everybody else."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from vkgateway.gateway.acceptance import Facts, Standing, guarantees, objections, offers, undecidable
from vkgateway.gateway.status import Verdict, failing, passed, waiting
from vkgateway.model.api import ComputeCluster, Tenant, TenantSpec
from vkgateway.model.names import RESERVED_PREFIX
from vkgateway.model.objects import Meta

ACCEPTED_SPEC = f"{RESERVED_PREFIX}accepted-spec"
"""Annotation of a Tenant: the spec that was accepted last, which stays in force while a changed one is refused."""
ACCEPTED_FOR = f"{RESERVED_PREFIX}accepted-for"
"""Annotation beside it: the UID of the Tenant that it was accepted for, since a copy of the object has both."""

_decode = msgspec.json.Decoder(TenantSpec).decode
_ACCEPTED = passed("Accepted", "its pools, version and template are known, and its guarantees fit")


def marks(spec: TenantSpec, uid: str) -> dict[str, str]:
    """Return the annotations by which a Tenant remembers what was accepted for it."""
    return {ACCEPTED_SPEC: msgspec.json.encode(spec).decode(), ACCEPTED_FOR: uid}


def written(tenant: Tenant) -> TenantSpec | None:
    """Return the accepted spec that the object carries; None if it carries none that can be read, or another's.

    Where it is not said whose it is, it is taken for its own: so it was written until releases said so.
    """
    found = tenant.metadata.annotations
    text = found.get(ACCEPTED_SPEC)
    if text is None or found.get(ACCEPTED_FOR, tenant.metadata.uid) != tenant.metadata.uid:
        return None
    try:
        return _decode(text.encode())
    except msgspec.DecodeError:
        return None


class Ledger:
    """Decides, one tenant at a time, and remembers at once, so that nothing is promised twice.

    With `facts`, what the nodes of a pool are, guarantees are also held against single nodes, and with `standing`
    against what runs inside guarantees there; without, against sums.
    """

    def __init__(self, facts: Facts | None = None, standing: Standing = lambda _: ()) -> None:
        self._facts = facts
        self._standing = standing
        self._accepted: dict[str, TenantSpec] = {}

    def load(self, tenants: Iterable[Tenant]) -> None:
        """Take over what was accepted before this process began."""
        for tenant in tenants:
            spec = written(tenant)
            if spec is not None:
                self._accepted.setdefault(tenant.metadata.name, spec)

    def accepted(self, name: str) -> TenantSpec | None:
        """Return the spec in force for a tenant."""
        return self._accepted.get(name)

    def decide(self, tenant: Tenant, *, computes: Iterable[ComputeCluster], templates: Collection[str]) -> Verdict:
        """Say whether the tenant is accepted as its spec is now; what is accepted is in force from here on."""
        name, spec = tenant.metadata.name, tenant.spec
        had = self._accepted.get(name)
        if had == spec:
            return _ACCEPTED
        there = offers(computes, others=self._others(name))
        facts, standing = self._facts, self._standing
        found = objections(tenant, offers=there, templates=templates, had=had, facts=facts, standing=standing)
        if found:
            return failing(found[0].reason, "; ".join(str(one) for one in found))
        if unknown := undecidable(tenant, offers=there, had=had, facts=facts):
            return waiting("ComputeClusterUnknown", f"waits until compute cluster {unknown!r} is connected")
        self._accepted[name] = spec
        return _ACCEPTED

    def forget(self, name: str) -> None:
        """Give back what a tenant was guaranteed."""
        self._accepted.pop(name, None)

    def guaranteed(self, compute_cluster: str, pool: str) -> dict[str, str]:
        """Return what is guaranteed of a pool, all tenants together."""
        return guarantees(self._others(""), compute_cluster=compute_cluster, pool=pool)

    def users(self, compute_cluster: str) -> list[str]:
        """Return the tenants that have pools of a compute cluster, by name."""
        return sorted(
            name
            for name, spec in self._accepted.items()
            if any(pool.compute_cluster == compute_cluster for pool in spec.pools)
        )

    def _others(self, name: str) -> list[Tenant]:
        return [Tenant(metadata=Meta(name=other), spec=spec) for other, spec in self._accepted.items() if other != name]

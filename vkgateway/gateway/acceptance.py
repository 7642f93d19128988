"""Whether a Tenant can be had as it is asked for: the rules behind its condition Accepted (pure)."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vkgateway.model import quantity
from vkgateway.model.api import ComputeCluster, Tenant, TenantPool
from vkgateway.model.errors import InputError
from vkgateway.model.names import validate_tenant_name
from vkgateway.model.quantity import Quantity, Resources

OLDEST_MINOR = 30
_VERSION = re.compile(r"1\.(\d{1,3})\.(\d{1,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What a pool holds (None: not known now), and how much of it is guaranteed to other tenants."""

    allocatable: Mapping[str, Quantity] | None
    guaranteed_to_others: Mapping[str, Quantity] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objection:
    """One thing that stands against a tenant: `reason` for programs, the rest for people."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


Offers = Mapping[str, Mapping[str, PoolOffer]]
"""Compute cluster name to pool name to what it offers."""


def guarantees(tenants: Iterable[Tenant], *, compute_cluster: str, pool: str) -> dict[str, str]:
    """Sum what tenants are guaranteed of one pool."""
    return quantity.total(
        wanted.guarantee
        for tenant in tenants
        for wanted in tenant.spec.pools
        if (wanted.compute_cluster, wanted.name) == (compute_cluster, pool)
    )


def offers(computes: Iterable[ComputeCluster], *, others: Sequence[Tenant]) -> Offers:
    """Return what compute clusters offer by their own word, beside what the other tenants are guaranteed."""
    found: dict[str, dict[str, PoolOffer]] = {}
    for compute in computes:
        name = compute.metadata.name
        seen = {pool.name: pool.allocatable for pool in compute.status.pools}
        found[name] = {
            pool.name: PoolOffer(seen.get(pool.name), guarantees(others, compute_cluster=name, pool=pool.name))
            for pool in compute.spec.pools
        }
    return found


def undecidable(tenant: Tenant, *, offers: Offers) -> str:
    """Name the compute cluster whose size must be known before the tenant's guarantees can be judged, or ""."""
    for pool in tenant.spec.pools:
        offer = offers.get(pool.compute_cluster, {}).get(pool.name)
        if pool.guarantee and offer is not None and offer.allocatable is None:
            return pool.compute_cluster
    return ""


def objections(tenant: Tenant, *, offers: Offers, templates: Collection[str] | None = None) -> list[Objection]:
    """Return all that stands against the tenant, in the order of its fields; empty if it is acceptable.

    Without `templates` its template is not looked at; where a pool's size is not known, neither is its guarantee.
    """
    spec = tenant.spec
    found = [*_name(tenant.metadata.name), *_template(spec.template, templates=templates)]
    found += _version(spec.kubernetes_version)
    found += _duplicates(spec.pools)
    for index, pool in enumerate(spec.pools):
        found += _pool(pool, path=f"spec.pools[{index}]", offers=offers)
    return found


def _name(name: str) -> Iterator[Objection]:
    try:
        validate_tenant_name(name)
    except InputError as error:
        yield Objection("InvalidName", "metadata.name", f"{error}; {error.hint}")


def _template(name: str, *, templates: Collection[str] | None) -> Iterator[Objection]:
    if templates is not None and name not in templates:
        yield Objection(
            "UnknownTemplate",
            "spec.template",
            f"there is no template {name!r}; there are: {_listed(templates)}",
        )


def _version(version: str) -> Iterator[Objection]:
    match = _VERSION.fullmatch(version)
    if match is None:
        message = f"{version!r} is not a Kubernetes version; write it like 1.36.3"
    elif int(match[1]) < OLDEST_MINOR:
        message = f"Kubernetes {version} is too old; the oldest that works is 1.{OLDEST_MINOR}.0"
    else:
        return
    yield Objection("UnknownVersion", "spec.kubernetesVersion", message)


def _duplicates(pools: Sequence[TenantPool]) -> Iterator[Objection]:
    seen: set[tuple[str, str]] = set()
    for index, pool in enumerate(pools):
        key = (pool.compute_cluster, pool.name)
        if key in seen:
            message = f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r} is named twice"
            yield Objection("DuplicatePool", f"spec.pools[{index}]", message)
        seen.add(key)


def _pool(pool: TenantPool, *, path: str, offers: Offers) -> Iterator[Objection]:
    cluster = offers.get(pool.compute_cluster)
    if cluster is None:
        message = f"there is no compute cluster {pool.compute_cluster!r}; there are: {_listed(offers)}"
        yield Objection("UnknownComputeCluster", f"{path}.computeCluster", message)
        return
    offer = cluster.get(pool.name)
    if offer is None:
        message = f"compute cluster {pool.compute_cluster!r} has no pool {pool.name!r}; it has: {_listed(cluster)}"
        yield Objection("UnknownPool", f"{path}.name", message)
        return
    unreadable = list(_quantities(pool, path=path))
    yield from unreadable
    if not unreadable:
        yield from _limits(pool, path=path)
        yield from _capacity(pool, path=path, offer=offer)


def _quantities(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    for part, resources in (("guarantee", pool.guarantee), ("limit", pool.limit)):
        for name, text in resources.items():
            try:
                negative = quantity.parse(text) < 0
            except ValueError as error:
                yield Objection("InvalidQuantity", f"{path}.{part}[{name}]", str(error))
                continue
            if negative:
                yield Objection("InvalidQuantity", f"{path}.{part}[{name}]", f"{text} is less than nothing")


def _limits(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    limited: Resources = {name: amount for name, amount in pool.guarantee.items() if name in pool.limit}
    for name in quantity.exceeding(limited, pool.limit):
        message = f"{pool.limit[name]} is less than the guarantee of {pool.guarantee[name]}; raise it or lower that"
        yield Objection("LimitBelowGuarantee", f"{path}.limit[{name}]", message)


def _capacity(pool: TenantPool, *, path: str, offer: PoolOffer) -> Iterator[Objection]:
    if offer.allocatable is None:
        return
    left = quantity.subtract(offer.allocatable, offer.guaranteed_to_others)
    for name in quantity.exceeding(pool.guarantee, left):
        yield Objection(
            "GuaranteeBeyondPool",
            f"{path}.guarantee[{name}]",
            _beyond(pool, name, held=offer.allocatable, taken=offer.guaranteed_to_others, left=left),
        )


def _beyond(
    pool: TenantPool,
    name: str,
    *,
    held: Mapping[str, Quantity],
    taken: Mapping[str, Quantity],
    left: Mapping[str, Quantity],
) -> str:
    asked = pool.guarantee[name]
    where = f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r}"
    if name not in held:
        return f"{asked} asked for, but {where} has no {name}; it offers: {_listed(held)}"
    return (
        f"{asked} asked for, but {where} holds {held[name]}, of which {taken.get(name, 0)} are guaranteed to "
        f"other tenants; ask for at most {left[name]}"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"

"""Rules behind a Tenant's condition Accepted (pure)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vkgateway.api import quantity
from vkgateway.api.errors import InputError
from vkgateway.api.names import OBJECT_NAME_MAX, is_ip_address, validate_tenant_name
from vkgateway.api.quantity import Quantity, Resources
from vkgateway.api.requests import is_extended
from vkgateway.api.types import ComputeCluster, Tenant, TenantPool, TenantSpec
from vkgateway.clusters.guarantee_checks import GuaranteedPod, guarantee_violations, is_within_previous
from vkgateway.clusters.pools import build_quota
from vkgateway.scheduler.core.snapshot import Pool, PoolKey, Quota
from vkgateway.tenants.exposure_acceptance import exposure_problems
from vkgateway.tenants.usage.budgets import budget_problems

OLDEST_MINOR = 30
_CORE_RESOURCES = frozenset({"cpu", "memory", "pods", "ephemeral-storage"})
_VERSION = re.compile(r"1\.(\d{1,3})\.(\d{1,3})", re.ASCII)
_LABEL = r"[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """Allocatable resources of a pool (None: unknown), and what is guaranteed to other tenants."""

    allocatable: Mapping[str, Quantity] | None
    guaranteed_to_others: Mapping[str, Quantity] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()
    """Guarantees of the other tenants, one quota per tenant."""


@dataclass(frozen=True, slots=True)
class Objection:
    """Reason why a tenant is not accepted: `reason` is for programs, `field` and `message` are for people."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


OffersByCluster = Mapping[str, Mapping[str, PoolOffer]]
"""Pool offers by compute cluster name and pool name."""

PoolFactsLookup = Callable[[PoolKey], Pool | None]
"""Returns a pool's nodes and the resources that unmanaged pods use there; None if unknown."""

GuaranteedPodsLookup = Callable[[PoolKey], Sequence[GuaranteedPod]]
"""Returns the pods of a pool that run inside their tenants' guarantees."""


def sum_guarantees(tenants: Iterable[Tenant], *, compute_cluster: str, pool: str) -> dict[str, str]:
    """Return the sum of the tenants' guarantees in one pool."""
    return quantity.sum_resources(
        wanted.guarantee
        for tenant in tenants
        for wanted in tenant.spec.pools
        if (wanted.compute_cluster, wanted.name) == (compute_cluster, pool)
    )


def pool_offers(computes: Iterable[ComputeCluster], *, others: Sequence[Tenant]) -> OffersByCluster:
    """Return what each pool offers according to the status of its compute cluster, and the others' guarantees."""
    found: dict[str, dict[str, PoolOffer]] = {}
    for compute in computes:
        name = compute.metadata.name
        seen = {pool.name: pool.allocatable for pool in compute.status.pools}
        found[name] = {
            pool.name: PoolOffer(
                seen.get(pool.name),
                sum_guarantees(others, compute_cluster=name, pool=pool.name),
                _pool_quotas(others, key=(name, pool.name)),
            )
            for pool in compute.spec.pools
        }
    return found


def _pool_quotas(tenants: Iterable[Tenant], *, key: PoolKey) -> tuple[Quota, ...]:
    return tuple(
        build_quota(tenant.metadata.name, wanted)
        for tenant in tenants
        for wanted in tenant.spec.pools
        if (wanted.compute_cluster, wanted.name) == key
    )


def unknown_cluster(
    tenant: Tenant, *, offers: OffersByCluster, previous: TenantSpec | None = None, facts: PoolFactsLookup | None = None
) -> str:
    """Return the compute cluster whose capacity must be known before the guarantees can be checked, or ""."""
    for pool in tenant.spec.pools:
        offer = offers.get(pool.compute_cluster, {}).get(pool.name)
        if not pool.guarantee or offer is None or _was_accepted(pool, previous):
            continue
        if offer.allocatable is None or (facts is not None and facts((pool.compute_cluster, pool.name)) is None):
            return pool.compute_cluster
    return ""


def find_objections(
    tenant: Tenant,
    *,
    offers: OffersByCluster,
    templates: Collection[str] | None = None,
    previous: TenantSpec | None = None,
    facts: PoolFactsLookup | None = None,
    guaranteed_pods: GuaranteedPodsLookup = lambda _: (),
) -> list[Objection]:
    """Return the objections to the tenant in the order of its fields; empty if the tenant is acceptable.

    Without `templates`, the template is not checked. If a pool's capacity is unknown, its guarantee is not checked.
    Guarantees within the `previous` spec were accepted before and stay accepted, however many nodes are left.
    With `facts`, resources that the arbiter allocates are checked node by node; all others are checked by their sums.
    Of the running tenant pods, only those inside guarantees (`guaranteed_pods`) count: all others are preemptible.
    """
    spec = tenant.spec
    objections = [*_check_name(tenant.metadata.name), *_check_template(spec.template, templates=templates)]
    objections += _check_version(spec.kubernetes_version, served=_served_version(tenant, previous))
    objections += _check_certificate_names(spec.api_server.subject_alt_names)
    objections += [
        Objection("InvalidExposure", f"spec.apiServer.exposure.{field}", message)
        for field, message in exposure_problems(spec.api_server.exposure, is_host=_is_host)
    ]
    objections += [
        Objection("InvalidBudget", f"spec.{field}", message)
        for field, message in budget_problems(spec.budget, {pool.name for pool in spec.pools})
    ]
    objections += _check_duplicates(spec.pools)
    for index, pool in enumerate(spec.pools):
        path = f"spec.pools[{index}]"
        pool_objections = list(_check_pool(pool, path=path, offers=offers))
        if not pool_objections:
            pool_objections += _check_limited_names(pool, path=path, offers=offers, previous=previous)
        objections += pool_objections
        if not pool_objections and not _was_accepted(pool, previous):
            key = pool.compute_cluster, pool.name
            known = facts(key) if facts is not None and pool.guarantee else None
            running = guaranteed_pods(key) if known is not None else ()
            offer = offers[key[0]][key[1]]
            objections += _check_guarantee(tenant, pool, path=path, offer=offer, facts=known, running=running)
    if not objections:
        objections += _check_budgeted_names(spec, offers=offers, previous=previous)
    return objections


def _old_pool(pool: TenantPool, previous: TenantSpec | None) -> TenantPool | None:
    key = pool.compute_cluster, pool.name
    old_pools = previous.pools if previous is not None else ()
    return next((old_pool for old_pool in old_pools if (old_pool.compute_cluster, old_pool.name) == key), None)


def _was_accepted(pool: TenantPool, previous: TenantSpec | None) -> bool:
    """Return whether the previous spec already had the guarantee that the pool asks for."""
    old_pool = _old_pool(pool, previous)
    return old_pool is not None and is_within_previous(pool, old_pool)


def _check_name(name: str) -> Iterator[Objection]:
    try:
        validate_tenant_name(name)
    except InputError as error:
        yield Objection("InvalidName", "metadata.name", f"{error}; {error.hint}")


def _check_template(name: str, *, templates: Collection[str] | None) -> Iterator[Objection]:
    if templates is not None and name not in templates:
        yield Objection(
            "UnknownTemplate",
            "spec.template",
            f"template {name!r} does not exist; available templates: {_format_names(templates)}",
        )


def _served_version(tenant: Tenant, previous: TenantSpec | None) -> str:
    """Return the version that the control plane served last; empty if it never served.

    An accepted spec from which no control plane could be created is no obstacle to a downgrade.
    """
    served = tenant.status.api_server
    if served is None:
        return ""
    return served.version or (previous.kubernetes_version if previous is not None else "")


def _check_version(version: str, *, served: str) -> Iterator[Objection]:
    where = "spec.kubernetesVersion"
    match, current = _VERSION.fullmatch(version), _VERSION.fullmatch(served)
    if match is None:
        message = f"{version!r} is not a Kubernetes version; use the form 1.36.3"
        yield Objection("UnknownVersion", where, message)
    elif int(match[1]) < OLDEST_MINOR:
        message = f"Kubernetes {version} is too old; the oldest supported version is 1.{OLDEST_MINOR}.0"
        yield Objection("UnknownVersion", where, message)
    elif current is not None and int(match[1]) < int(current[1]):
        message = f"the control plane runs {served} and cannot be downgraded to {version}, an older minor version"
        yield Objection("VersionGoesBack", where, message)
    elif current is not None and int(match[1]) > int(current[1]) + 1:
        first, last = int(current[1]) + 1, int(match[1]) - 1
        path = ", then ".join([*(f"1.{minor}" for minor in range(first, last + 1)), version])
        message = (
            f"the control plane runs {served}, and Kubernetes is upgraded one minor version at a time; "
            f"upgrade to {path}"
        )
        yield Objection("VersionSkips", where, message)


def _check_certificate_names(names: Sequence[str]) -> Iterator[Objection]:
    for index, name in enumerate(names):
        if not _is_host(name):
            message = f"{name!r} is neither a DNS name (such as api.example.com) nor an IP address"
            yield Objection("InvalidName", f"spec.apiServer.subjectAltNames[{index}]", message)


def _is_host(name: str) -> bool:
    is_name = len(name) <= OBJECT_NAME_MAX and _HOST.fullmatch(name) is not None
    return is_name or (is_ip_address(name) and "%" not in name)


def _check_duplicates(pools: Sequence[TenantPool]) -> Iterator[Objection]:
    seen: set[tuple[str, str]] = set()
    for index, pool in enumerate(pools):
        key = (pool.compute_cluster, pool.name)
        if key in seen:
            message = (
                f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r} is listed twice; remove one entry"
            )
            yield Objection("DuplicatePool", f"spec.pools[{index}]", message)
        seen.add(key)


def _check_pool(pool: TenantPool, *, path: str, offers: OffersByCluster) -> Iterator[Objection]:
    cluster = offers.get(pool.compute_cluster)
    if cluster is None:
        message = (
            f"compute cluster {pool.compute_cluster!r} does not exist; available compute clusters: "
            f"{_format_names(offers)}"
        )
        yield Objection("UnknownComputeCluster", f"{path}.computeCluster", message)
        return
    offer = cluster.get(pool.name)
    if offer is None:
        message = (
            f"compute cluster {pool.compute_cluster!r} has no pool {pool.name!r}; available pools: "
            f"{_format_names(cluster)}"
        )
        yield Objection("UnknownPool", f"{path}.name", message)
        return
    invalid = list(_check_quantities(pool, path=path))
    yield from invalid
    if not invalid:
        yield from _check_limits(pool, path=path)
        yield from _check_shares(pool, path=path)


def _check_quantities(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    for part, resources in (("guarantee", pool.guarantee), ("limit", pool.limit)):
        for name, text in resources.items():
            try:
                negative = quantity.parse_quantity(text) < 0
            except ValueError as error:
                yield Objection("InvalidQuantity", f"{path}.{part}[{name}]", str(error))
                continue
            if negative:
                yield Objection("InvalidQuantity", f"{path}.{part}[{name}]", f"{text} is negative; use 0 or more")


def _check_limits(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    limited: Resources = {name: amount for name, amount in pool.guarantee.items() if name in pool.limit}
    for name in quantity.exceeded_resources(limited, pool.limit):
        message = (
            f"{pool.limit[name]} is less than the guarantee of {pool.guarantee[name]}; "
            "raise the limit or lower the guarantee"
        )
        yield Objection("LimitBelowGuarantee", f"{path}.limit[{name}]", message)


def _check_limited_names(
    pool: TenantPool, *, path: str, offers: OffersByCluster, previous: TenantSpec | None
) -> Iterator[Objection]:
    """A limit of a resource that no node has limits nothing: its name is probably misspelt.

    A limit that was accepted before stays accepted, even if the nodes with the resource are away.
    """
    allocatable = offers[pool.compute_cluster][pool.name].allocatable
    before = _old_pool(pool, previous)
    for name, text in pool.limit.items() if allocatable else ():
        if not allocatable or name in allocatable or _is_core(name) or (before is not None and name in before.limit):
            continue
        if quantity.parse_quantity(text):
            message = (
                f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r} has no {name}, so the limit "
                f"would have no effect; available resources: {_format_names(allocatable)}"
            )
            yield Objection("UnknownResource", f"{path}.limit[{name}]", message)


def _check_budgeted_names(
    spec: TenantSpec, *, offers: OffersByCluster, previous: TenantSpec | None
) -> Iterator[Objection]:
    """A budget of a resource that no pool of the tenant has is never used."""
    for index, budget in enumerate(spec.budget):
        pools = [pool for pool in spec.pools if budget.pool in ("", pool.name)]
        allocatable = [offers[pool.compute_cluster][pool.name].allocatable for pool in pools]
        had = previous is not None and any(each.resource == budget.resource for each in previous.budget)
        is_known = bool(allocatable) and all(allocatable)
        if is_known and not had and not any(budget.resource in (one or ()) for one in allocatable):
            names = {name for one in allocatable for name in one or () if is_extended(name)}
            message = f"no pool of the tenant has {budget.resource}; available: {_format_names(names)}"
            yield Objection("UnknownResource", f"spec.budget[{index}].resource", message)


def _is_core(name: str) -> bool:
    """Return whether any node may come to have a resource of Kubernetes' own."""
    return name in _CORE_RESOURCES or name.startswith("hugepages-")


def _check_shares(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    if not 0 < pool.weight < math.inf:
        yield Objection("InvalidQuantity", f"{path}.weight", f"{pool.weight:g} is not a positive number")
    for cell in pool.cells:
        if cell < 1:
            yield Objection("InvalidQuantity", f"{path}.cells", f"cell size {cell} is too small; the smallest is 1")
            return
    total = sum(pool.cells)
    if total and not any(
        is_extended(name) and quantity.parse_quantity(text) >= total for name, text in pool.guarantee.items()
    ):
        message = (
            f"the cells add up to {total}, more than the guarantee of any extended resource (such as nvidia.com/gpu); "
            "raise the guarantee or remove cells"
        )
        yield Objection("CellsBeyondGuarantee", f"{path}.cells", message)


def _check_guarantee(
    tenant: Tenant,
    pool: TenantPool,
    *,
    path: str,
    offer: PoolOffer,
    facts: Pool | None,
    running: Sequence[GuaranteedPod],
) -> Iterator[Objection]:
    by_node = facts.governed if facts is not None else ()
    yield from _check_capacity(pool, path=path, offer=offer, excluded=by_node)
    if facts is not None and by_node:
        name = tenant.metadata.name
        for sentence in guarantee_violations(name, pool, pool=facts, others=offer.quotas, running=running):
            yield Objection("GuaranteeBeyondPool", f"{path}.guarantee", sentence)


def _check_capacity(pool: TenantPool, *, path: str, offer: PoolOffer, excluded: Collection[str]) -> Iterator[Objection]:
    if offer.allocatable is None:
        return
    available = quantity.subtract_resources(offer.allocatable, offer.guaranteed_to_others)
    guarantee = {name: amount for name, amount in pool.guarantee.items() if name not in excluded}
    for name in quantity.exceeded_resources(guarantee, available):
        yield Objection(
            "GuaranteeBeyondPool",
            f"{path}.guarantee[{name}]",
            _capacity_message(
                pool, name, capacity=offer.allocatable, guaranteed=offer.guaranteed_to_others, available=available
            ),
        )


def _capacity_message(
    pool: TenantPool,
    name: str,
    *,
    capacity: Mapping[str, Quantity],
    guaranteed: Mapping[str, Quantity],
    available: Mapping[str, Quantity],
) -> str:
    requested = pool.guarantee[name]
    where = f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r}"
    if name not in capacity:
        return f"{requested} requested, but {where} has no {name}; available resources: {_format_names(capacity)}"
    return (
        f"{requested} requested, but {where} has {capacity[name]}, of which {guaranteed.get(name, 0)} are guaranteed "
        f"to other tenants; request at most {available[name]}"
    )


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"

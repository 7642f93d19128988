"""Whether a Tenant can be had as it is asked for: the rules behind its condition Accepted (pure)."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vkgateway.arbiter.snapshot import Pool, PoolKey, Quota
from vkgateway.gateway.guarantee_checks import GuaranteedPod, guarantee_violations, is_within_previous
from vkgateway.gateway.pools import build_quota
from vkgateway.model import quantity
from vkgateway.model.api import ComputeCluster, Tenant, TenantPool, TenantSpec
from vkgateway.model.errors import InputError
from vkgateway.model.names import OBJECT_NAME_MAX, validate_tenant_name
from vkgateway.model.quantity import Quantity, Resources
from vkgateway.translate.governed import is_extended

OLDEST_MINOR = 30
_VERSION = re.compile(r"1\.(\d{1,3})\.(\d{1,3})", re.ASCII)
_LABEL = r"[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What a pool holds (None: not known now), and how much of it is guaranteed to other tenants."""

    allocatable: Mapping[str, Quantity] | None
    guaranteed_to_others: Mapping[str, Quantity] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()
    """The same, tenant by tenant."""


@dataclass(frozen=True, slots=True)
class Objection:
    """One thing that stands against a tenant: `reason` for programs, the rest for people."""

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


OffersByCluster = Mapping[str, Mapping[str, PoolOffer]]
"""Compute cluster name to pool name to what it offers."""

PoolFactsLookup = Callable[[PoolKey], Pool | None]
"""A pool's nodes, with what pods that are not the gateway's hold there; None: not known now."""

GuaranteedPodsLookup = Callable[[PoolKey], Sequence[GuaranteedPod]]
"""The pods that run inside guarantees in a pool."""


def sum_guarantees(tenants: Iterable[Tenant], *, compute_cluster: str, pool: str) -> dict[str, str]:
    """Sum what tenants are guaranteed of one pool."""
    return quantity.sum_resources(
        wanted.guarantee
        for tenant in tenants
        for wanted in tenant.spec.pools
        if (wanted.compute_cluster, wanted.name) == (compute_cluster, pool)
    )


def pool_offers(computes: Iterable[ComputeCluster], *, others: Sequence[Tenant]) -> OffersByCluster:
    """Return what compute clusters offer by their own word, beside what the other tenants are guaranteed."""
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
    tenant: Tenant, *, offers: OffersByCluster, had: TenantSpec | None = None, facts: PoolFactsLookup | None = None
) -> str:
    """Name the compute cluster whose size must be known before the tenant's guarantees can be judged, or ""."""
    for pool in tenant.spec.pools:
        offer = offers.get(pool.compute_cluster, {}).get(pool.name)
        if not pool.guarantee or offer is None or _was_accepted(pool, had):
            continue
        if offer.allocatable is None or (facts is not None and facts((pool.compute_cluster, pool.name)) is None):
            return pool.compute_cluster
    return ""


def find_objections(
    tenant: Tenant,
    *,
    offers: OffersByCluster,
    templates: Collection[str] | None = None,
    had: TenantSpec | None = None,
    facts: PoolFactsLookup | None = None,
    standing: GuaranteedPodsLookup = lambda _: (),
) -> list[Objection]:
    """Return all that stands against the tenant, in the order of its fields; empty if it is acceptable.

    Without `templates` its template is not looked at; where a pool's size is not known, neither is its guarantee.
    `had` was accepted before: what it guarantees is not questioned again, however many nodes are left. With `facts`
    the resources that the arbiter hands out are judged by nodes, otherwise by sums like all others; of what we run on
    the nodes only that inside guarantees (`standing`) counts, since all else goes when it is called in.
    """
    spec = tenant.spec
    found = [*_check_name(tenant.metadata.name), *_check_template(spec.template, templates=templates)]
    found += _check_version(spec.kubernetes_version, runs=_served_version(tenant, had))
    found += _check_certificate_names(spec.api_server.subject_alt_names)
    found += _check_duplicates(spec.pools)
    for index, pool in enumerate(spec.pools):
        path = f"spec.pools[{index}]"
        unfit = list(_check_pool(pool, path=path, offers=offers))
        found += unfit
        if not unfit and not _was_accepted(pool, had):
            key = pool.compute_cluster, pool.name
            known = facts(key) if facts is not None and pool.guarantee else None
            held = standing(key) if known is not None else ()
            found += _check_guarantee(tenant, pool, path=path, offer=offers[key[0]][key[1]], facts=known, held=held)
    return found


def _was_accepted(pool: TenantPool, had: TenantSpec | None) -> bool:
    """Whether all that is to be guaranteed of a pool was guaranteed before."""
    places = {(old.compute_cluster, old.name): old for old in (had.pools if had is not None else ())}
    old = places.get((pool.compute_cluster, pool.name))
    return old is not None and is_within_previous(pool, old)


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
            f"there is no template {name!r}; there are: {_format_names(templates)}",
        )


def _served_version(tenant: Tenant, had: TenantSpec | None) -> str:
    """The release that the tenant's control plane served with last; empty where it never did.

    A spec may have been accepted of which no control plane could be made: it is no hindrance.
    """
    served = tenant.status.api_server
    if served is None:
        return ""
    return served.version or (had.kubernetes_version if had is not None else "")


def _check_version(version: str, *, runs: str) -> Iterator[Objection]:
    where = "spec.kubernetesVersion"
    match, before = _VERSION.fullmatch(version), _VERSION.fullmatch(runs)
    if match is None:
        message = f"{version!r} is not a Kubernetes version; write it like 1.36.3"
        yield Objection("UnknownVersion", where, message)
    elif int(match[1]) < OLDEST_MINOR:
        message = f"Kubernetes {version} is too old; the oldest that works is 1.{OLDEST_MINOR}.0"
        yield Objection("UnknownVersion", where, message)
    elif before is not None and int(match[1]) < int(before[1]):
        message = f"the control plane serves with {runs} and cannot go back to {version}, an older minor release"
        yield Objection("VersionGoesBack", where, message)
    elif before is not None and int(match[1]) > int(before[1]) + 1:
        first, last = int(before[1]) + 1, int(match[1]) - 1
        then = "that" if first == last else f"one of 1.{last}"
        message = (
            f"the control plane serves with {runs}, and Kubernetes goes up one minor release at a time: "
            f"ask for a release 1.{first} first, and for {version} when it serves with {then}"
        )
        yield Objection("VersionSkips", where, message)


def _check_certificate_names(names: Sequence[str]) -> Iterator[Objection]:
    for index, name in enumerate(names):
        if not (_is_address(name) or (len(name) <= OBJECT_NAME_MAX and _HOST.fullmatch(name))):
            message = f"{name!r} is neither a DNS name, like api.example.com, nor an IP address"
            yield Objection("InvalidName", f"spec.apiServer.subjectAltNames[{index}]", message)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name


def _check_duplicates(pools: Sequence[TenantPool]) -> Iterator[Objection]:
    seen: set[tuple[str, str]] = set()
    for index, pool in enumerate(pools):
        key = (pool.compute_cluster, pool.name)
        if key in seen:
            message = f"pool {pool.name!r} of compute cluster {pool.compute_cluster!r} is named twice"
            yield Objection("DuplicatePool", f"spec.pools[{index}]", message)
        seen.add(key)


def _check_pool(pool: TenantPool, *, path: str, offers: OffersByCluster) -> Iterator[Objection]:
    cluster = offers.get(pool.compute_cluster)
    if cluster is None:
        message = f"there is no compute cluster {pool.compute_cluster!r}; there are: {_format_names(offers)}"
        yield Objection("UnknownComputeCluster", f"{path}.computeCluster", message)
        return
    offer = cluster.get(pool.name)
    if offer is None:
        message = (
            f"compute cluster {pool.compute_cluster!r} has no pool {pool.name!r}; it has: {_format_names(cluster)}"
        )
        yield Objection("UnknownPool", f"{path}.name", message)
        return
    unreadable = list(_check_quantities(pool, path=path))
    yield from unreadable
    if not unreadable:
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
                yield Objection("InvalidQuantity", f"{path}.{part}[{name}]", f"{text} is less than nothing")


def _check_limits(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    limited: Resources = {name: amount for name, amount in pool.guarantee.items() if name in pool.limit}
    for name in quantity.exceeded_resources(limited, pool.limit):
        message = f"{pool.limit[name]} is less than the guarantee of {pool.guarantee[name]}; raise it or lower that"
        yield Objection("LimitBelowGuarantee", f"{path}.limit[{name}]", message)


def _check_shares(pool: TenantPool, *, path: str) -> Iterator[Objection]:
    if not 0 < pool.weight < math.inf:
        yield Objection("InvalidQuantity", f"{path}.weight", f"{pool.weight:g} is not a number above 0")
    for cell in pool.cells:
        if cell < 1:
            yield Objection("InvalidQuantity", f"{path}.cells", f"a cell of {cell}; the smallest is 1")
            return
    held = sum(pool.cells)
    if held and not any(
        is_extended(name) and quantity.parse_quantity(text) >= held for name, text in pool.guarantee.items()
    ):
        message = f"cells of {held} in all are more than is guaranteed of an extended resource like nvidia.com/gpu"
        yield Objection("CellsBeyondGuarantee", f"{path}.cells", message)


def _check_guarantee(
    tenant: Tenant, pool: TenantPool, *, path: str, offer: PoolOffer, facts: Pool | None, held: Sequence[GuaranteedPod]
) -> Iterator[Objection]:
    by_node = facts.governed if facts is not None else ()
    yield from _check_capacity(pool, path=path, offer=offer, leaving_out=by_node)
    if facts is not None and by_node:
        for sentence in guarantee_violations(tenant.metadata.name, pool, pool=facts, others=offer.quotas, held=held):
            yield Objection("GuaranteeBeyondPool", f"{path}.guarantee", sentence)


def _check_capacity(
    pool: TenantPool, *, path: str, offer: PoolOffer, leaving_out: Collection[str]
) -> Iterator[Objection]:
    if offer.allocatable is None:
        return
    left = quantity.subtract_resources(offer.allocatable, offer.guaranteed_to_others)
    wanted = {name: amount for name, amount in pool.guarantee.items() if name not in leaving_out}
    for name in quantity.exceeded_resources(wanted, left):
        yield Objection(
            "GuaranteeBeyondPool",
            f"{path}.guarantee[{name}]",
            _capacity_message(pool, name, held=offer.allocatable, taken=offer.guaranteed_to_others, left=left),
        )


def _capacity_message(
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
        return f"{asked} asked for, but {where} has no {name}; it offers: {_format_names(held)}"
    return (
        f"{asked} asked for, but {where} holds {held[name]}, of which {taken.get(name, 0)} are guaranteed to "
        f"other tenants; ask for at most {left[name]}"
    )


def _format_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"

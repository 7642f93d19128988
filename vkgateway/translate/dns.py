"""Name resolution of compute pods: the tenant's DNS plus the pod's own settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vkgateway.model.objects import Object
from vkgateway.translate.context import TenantContext

_CLUSTER_POLICIES: Final = frozenset({"ClusterFirst", "ClusterFirstWithHostNet"})
_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCH_CHARACTERS_MAX: Final = 2048
"""Limit of API servers for a dnsConfig (core/v1 validation)."""
_NDOTS: Final = {"name": "ndots", "value": "5"}


def forward_dns(spec: Mapping[str, Any], *, tenant: TenantContext, namespace: str) -> Object:
    """Return the dnsPolicy and dnsConfig of a compute pod for a tenant pod in `namespace`.

    Empty: both are kept.

    A policy that resolves cluster names uses the tenant's DNS, with the search paths of the tenant's namespace, as the
    tenant's kubelet would write them. The pod's own dnsConfig is appended, and its options win. Pods of a tenant
    without DNS use their node's resolver, as do pods with `hostNetwork` and policy ClusterFirst.
    """
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    if policy not in _CLUSTER_POLICIES:
        return {}
    if not tenant.dns_servers or (spec.get("hostNetwork") and policy == "ClusterFirst"):
        return {"dnsPolicy": "Default"}
    own = spec.get("dnsConfig") or {}
    domain = tenant.cluster_domain
    searches = (f"{namespace}.svc.{domain}", f"svc.{domain}", domain)
    config: Object = {
        **own,
        "nameservers": _merge_unique(tenant.dns_servers, own.get("nameservers"))[:_NAMESERVERS_MAX],
        "searches": _limit_searches(_merge_unique(searches, own.get("searches"))),
        "options": _merge_options(own.get("options") or ()),
    }
    return {"dnsPolicy": "None", "dnsConfig": config}


def _merge_unique(first: Iterable[str], more: Iterable[str] | None) -> list[str]:
    return list(dict.fromkeys((*first, *(more or ()))))


def _limit_searches(searches: Sequence[str]) -> list[str]:
    """Return the search paths up to the limits of API servers. Kubelets drop the rest, too."""
    kept: list[str] = []
    for path in searches[:_SEARCHES_MAX]:
        if len(" ".join([*kept, path])) > _SEARCH_CHARACTERS_MAX:
            break
        kept.append(path)
    return kept


def _merge_options(own: Sequence[Object]) -> list[Object]:
    return [*own] if any(option.get("name") == _NDOTS["name"] for option in own) else [_NDOTS, *own]

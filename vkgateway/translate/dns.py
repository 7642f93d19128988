"""Name resolution of compute pods: the tenant's own DNS, and what the pod adds to it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from vkgateway.model.objects import Object
from vkgateway.translate.context import TenantContext

_CLUSTER_POLICIES: Final = frozenset({"ClusterFirst", "ClusterFirstWithHostNet"})
_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCH_CHARACTERS_MAX: Final = 2048
"""What API servers take in a dnsConfig (core/v1 validation)."""
_NDOTS: Final = {"name": "ndots", "value": "5"}


def forward_dns(spec: Mapping[str, Any], *, tenant: TenantContext, namespace: str) -> Object:
    """The dnsPolicy and dnsConfig of a compute pod whose tenant pod is in `namespace`; empty where they stay.

    A policy by which the cluster's names are found leads to the tenant's DNS, with the search paths of the tenant's
    namespace, as its kubelet would write them. What the pod's own dnsConfig adds comes after that, and its options
    win. A tenant without DNS, and a pod on its host's network that does not ask for more, use their node's resolver.
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
    """As many search paths as are taken; kubelets leave the others out, too."""
    kept: list[str] = []
    for path in searches[:_SEARCHES_MAX]:
        if len(" ".join([*kept, path])) > _SEARCH_CHARACTERS_MAX:
            break
        kept.append(path)
    return kept


def _merge_options(own: Sequence[Object]) -> list[Object]:
    return [*own] if any(option.get("name") == _NDOTS["name"] for option in own) else [_NDOTS, *own]

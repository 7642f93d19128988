"""Where a compute pod may run: affinity among pods, topology spread and tolerations, confined to tenant and pool."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vkgateway.model.names import TENANT_LABEL, compute_namespace, is_reserved
from vkgateway.model.objects import Object
from vkgateway.translate.context import POOL_WIDE_KEYS, PoolContext, TenantContext
from vkgateway.translate.selectors import NodeTerms

NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_PLATFORM_TAINTS: Final = ("node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_EVICTING_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def forward_affinity(
    affinity: Mapping[str, Any], *, terms: NodeTerms, tenant: TenantContext, labels: Mapping[str, str]
) -> Object:
    """The compute pod's affinity, `labels` being the tenant pod's; empty if nothing is left of it."""
    left: Object = {}
    for kind, value in affinity.items():
        if kind == "nodeAffinity":
            kept = terms.affinity(value)
        elif kind in ("podAffinity", "podAntiAffinity"):
            kept = _pod_affinity(value or {}, tenant, labels)
        else:
            kept = value
        if kept:
            left[kind] = kept
    return left


def pinned(affinity: Mapping[str, Any], node: str) -> Object:
    """An affinity that requires, beside what it says, the compute node of a name. It is not changed."""
    by_node = affinity.get("nodeAffinity") or {}
    required = by_node.get(_REQUIRED) or {}
    only = {"key": "metadata.name", "operator": "In", "values": [node]}
    alternatives: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchFields": [*(term.get("matchFields") or ()), only]} for term in alternatives]
    return {**affinity, "nodeAffinity": {**by_node, _REQUIRED: {**required, "nodeSelectorTerms": terms}}}


def _pod_affinity(affinity: Mapping[str, Any], tenant: TenantContext, labels: Mapping[str, str]) -> Object:
    left = {key: value for key, value in affinity.items() if key not in (_REQUIRED, _PREFERRED)}
    required = [
        pod_affinity_term(term, tenant, labels) for term in affinity.get(_REQUIRED) or () if not _is_pool_wide(term)
    ]
    preferred = [
        {**weighted, "podAffinityTerm": pod_affinity_term(weighted["podAffinityTerm"], tenant, labels)}
        for weighted in affinity.get(_PREFERRED) or ()
        if not _is_pool_wide(weighted["podAffinityTerm"])
    ]
    if required:
        left[_REQUIRED] = required
    if preferred:
        left[_PREFERRED] = preferred
    return left


def _is_pool_wide(term: Mapping[str, Any]) -> bool:
    """Below one virtual node all nodes are the same domain of such a key: the tenant's scheduler has used it up."""
    return term.get("topologyKey") in POOL_WIDE_KEYS


def pod_affinity_term(term: Mapping[str, Any], tenant: TenantContext, labels: Mapping[str, str]) -> Object:
    """A pod affinity term that sees this tenant's pods only, its namespaces named as they are below."""
    made = {**term, **_confined(term, tenant, labels)}
    if term.get("namespaces"):
        made["namespaces"] = [compute_namespace(tenant.name, name) for name in term["namespaces"]]
    selector = term.get("namespaceSelector")
    if selector is not None:
        made["namespaceSelector"] = _namespace_selector(selector, tenant)
    return made


def spread_constraints(
    constraints: Sequence[Mapping[str, Any]], *, tenant: TenantContext, labels: Mapping[str, str]
) -> list[Object]:
    """Topology spread constraints that count this tenant's pods only."""
    return [
        {**constraint, **_confined(constraint, tenant, labels)}
        for constraint in constraints
        if not _is_pool_wide(constraint)
    ]


def _confined(term: Mapping[str, Any], tenant: TenantContext, labels: Mapping[str, str]) -> Object:
    """The term's label selector, narrowed to the tenant; without one the term matches nothing, and stays so.

    The tenant's API server has merged the label keys into the selector already (KEP-3633, KEP-3243); the compute
    API server would merge them anew, and refuses keys that stand there twice. So what was merged is taken out.
    """
    selector = term.get("labelSelector")
    if selector is None:
        return {}
    made = dict(selector)
    same, other = term.get("matchLabelKeys") or (), term.get("mismatchLabelKeys") or ()
    if same or other:
        made["matchExpressions"] = [
            entry
            for entry in made.get("matchExpressions") or ()
            if not (entry["key"] in same or (entry["key"] in other and _is_merged(entry, labels)))
        ]
    made["matchLabels"] = {**(selector.get("matchLabels") or {}), TENANT_LABEL: tenant.name}
    return {"labelSelector": made}


def _is_merged(entry: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return entry["operator"] == "NotIn" and entry.get("values") == [labels.get(entry["key"])]


def unsupported_namespace_selector(selector: Mapping[str, Any] | None) -> str | None:
    """The label by which a namespaceSelector chooses and that compute namespaces do not carry, or None."""
    if not selector:
        return None
    keys = [*(selector.get("matchLabels") or ())]
    keys += [entry["key"] for entry in selector.get("matchExpressions") or ()]
    return next((key for key in keys if key != NAMESPACE_NAME_LABEL), None)


def _namespace_selector(selector: Mapping[str, Any], tenant: TenantContext) -> Object:
    labels = dict(selector.get("matchLabels") or {})
    if NAMESPACE_NAME_LABEL in labels:
        labels[NAMESPACE_NAME_LABEL] = compute_namespace(tenant.name, labels[NAMESPACE_NAME_LABEL])
    made: Object = {**selector, "matchLabels": {**labels, TENANT_LABEL: tenant.name}}
    if selector.get("matchExpressions"):
        made["matchExpressions"] = [_mapped_names(entry, tenant) for entry in selector["matchExpressions"]]
    return made


def _mapped_names(entry: Mapping[str, Any], tenant: TenantContext) -> Object:
    if entry["key"] != NAMESPACE_NAME_LABEL or not entry.get("values"):
        return dict(entry)
    return {**entry, "values": [compute_namespace(tenant.name, name) for name in entry["values"]]}


def forward_tolerations(tolerations: Sequence[Object] | None, pool: PoolContext) -> list[Object]:
    """The tenant's tolerations as `tenant_tolerations` has them, and the pool's after them."""
    made = tenant_tolerations(tolerations)
    return made + [extra for extra in pool.tolerations if extra not in made]


def tenant_tolerations(tolerations: Sequence[Object] | None) -> list[Object]:
    """Of a tenant's tolerations, what goes down.

    Those of the platform's own taints (cordoned nodes, roles, cloud providers) stay above. One that tolerates every
    taint goes down as what it means to a running pod: not to be evicted when its node is away.
    """
    made: list[Object] = []
    for toleration in tolerations or ():
        key = toleration.get("key") or ""
        if not key:
            made += _instead_of_every_taint(toleration)
        elif not _is_platform_taint(key):
            made.append(toleration)
    return made


def _is_platform_taint(key: str) -> bool:
    return key == _UNSCHEDULABLE or key.startswith(_PLATFORM_TAINTS) or is_reserved(key)


def _instead_of_every_taint(toleration: Mapping[str, Any]) -> list[Object]:
    if toleration.get("effect") not in (None, "", "NoExecute"):
        return []
    return [{**toleration, "key": key, "operator": "Exists", "effect": "NoExecute"} for key in _EVICTING_TAINTS]

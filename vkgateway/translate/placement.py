"""Pod affinity, topology spread and tolerations of a compute pod, confined to tenant and pool."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from vkgateway.model.names import is_reserved
from vkgateway.model.objects import Object
from vkgateway.translate.context import POOL_WIDE_LABELS, PoolContext
from vkgateway.translate.node_terms import NodeTerms
from vkgateway.translate.peer_terms import PeerTerms

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_PLATFORM_TAINTS: Final = ("node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_EVICTING_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def forward_affinity(affinity: Mapping[str, Any], *, terms: NodeTerms, peers: PeerTerms) -> Object:
    """Return the compute pod's affinity, empty if no term is left."""
    left: Object = {}
    for kind, value in affinity.items():
        if kind == "nodeAffinity":
            kept = terms.forward_affinity(value)
        elif kind in ("podAffinity", "podAntiAffinity"):
            kept = _forward_pod_affinity(value or {}, peers)
        else:
            kept = value
        if kept:
            left[kind] = kept
    return left


def require_node(affinity: Mapping[str, Any], node: str) -> Object:
    """Return a copy of an affinity that also requires the compute node with a name."""
    return _require_match(affinity, "matchFields", {"key": "metadata.name", "operator": "In", "values": [node]})


def exclude_label(affinity: Mapping[str, Any], label: str) -> Object:
    """Return a copy of an affinity that also requires a compute node without a label."""
    return _require_match(affinity, "matchExpressions", {"key": label, "operator": "DoesNotExist"})


def _require_match(affinity: Mapping[str, Any], kind: str, requirement: Mapping[str, Any]) -> Object:
    by_node = affinity.get("nodeAffinity") or {}
    required = by_node.get(_REQUIRED) or {}
    alternatives: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [{**term, kind: [*(term.get(kind) or ()), requirement]} for term in alternatives]
    return {**affinity, "nodeAffinity": {**by_node, _REQUIRED: {**required, "nodeSelectorTerms": terms}}}


def _forward_pod_affinity(affinity: Mapping[str, Any], peers: PeerTerms) -> Object:
    left = {key: value for key, value in affinity.items() if key not in (_REQUIRED, _PREFERRED)}
    required = [peers.forward_affinity_term(term) for term in affinity.get(_REQUIRED) or () if not _is_pool_wide(term)]
    preferred = [
        {**weighted, "podAffinityTerm": peers.forward_affinity_term(weighted["podAffinityTerm"])}
        for weighted in affinity.get(_PREFERRED) or ()
        if not _is_pool_wide(weighted["podAffinityTerm"])
    ]
    if required:
        left[_REQUIRED] = required
    if preferred:
        left[_PREFERRED] = preferred
    return left


def _is_pool_wide(term: Mapping[str, Any]) -> bool:
    """Return whether all compute nodes of one virtual node are one domain of the term's topology key.

    The tenant's scheduler evaluated such a term.
    """
    return term.get("topologyKey") in POOL_WIDE_LABELS


def forward_spread_constraints(constraints: Sequence[Mapping[str, Any]], *, peers: PeerTerms) -> list[Object]:
    """Return topology spread constraints that count this tenant's pods only."""
    return [peers.forward_spread(constraint) for constraint in constraints if not _is_pool_wide(constraint)]


def forward_tolerations(tolerations: Sequence[Object] | None, pool: PoolContext) -> list[Object]:
    """Return the tolerations of a compute pod: those of `tenant_tolerations`, then the pool's."""
    made = tenant_tolerations(tolerations)
    return made + [extra for extra in pool.tolerations if extra not in made]


def tenant_tolerations(tolerations: Sequence[Object] | None) -> list[Object]:
    """Return the tenant's tolerations that are forwarded.

    Tolerations of platform taints (cordoned nodes, roles, cloud providers) are dropped. A toleration of every taint is
    reduced to what it means for a running pod: no eviction when its node is unreachable.
    """
    made: list[Object] = []
    for toleration in tolerations or ():
        key = toleration.get("key") or ""
        if not key:
            made += _expand_toleration(toleration)
        elif not _is_platform_taint(key):
            made.append(toleration)
    return made


def _is_platform_taint(key: str) -> bool:
    return key == _UNSCHEDULABLE or key.startswith(_PLATFORM_TAINTS) or is_reserved(key)


def _expand_toleration(toleration: Mapping[str, Any]) -> list[Object]:
    if toleration.get("effect") not in (None, "", "NoExecute"):
        return []
    return [{**toleration, "key": key, "operator": "Exists", "effect": "NoExecute"} for key in _EVICTING_TAINTS]

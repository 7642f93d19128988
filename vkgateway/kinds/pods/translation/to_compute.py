"""Compute pod made from a tenant's pod: contents, placement, identity and name resolution."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from vkgateway.api.names import (
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    GUARANTEED_CLASS,
    LOW_CLASS,
    POD_SERVICE_ACCOUNT,
    is_reserved,
    token_secret_name,
)
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.kinds.context import POOL_WIDE_LABELS, PoolContext, TenantContext
from vkgateway.kinds.metadata import forward_metadata
from vkgateway.kinds.pods.translation.containers import (
    NO_RENAMED_CLAIMS,
    PodValues,
    api_host_aliases,
    forward_container,
    forward_volume,
    pod_values,
)
from vkgateway.kinds.pods.translation.node_terms import PREFERRED, REQUIRED, NodeTerms
from vkgateway.kinds.pods.translation.peer_terms import NamespaceLabels, PeerTerms

_TENANT_ONLY_FIELDS: Final = (
    "nodeName",  # the compute scheduler chooses
    "schedulerName",
    "priority",  # the band's class sets value and preemption policy
    "preemptionPolicy",
    "serviceAccount",  # the old name of serviceAccountName
    "overhead",  # the compute cluster's RuntimeClass sets it
    "ephemeralContainers",  # not allowed at creation
    "subdomain",  # a kubelet would write the compute namespace's name into /etc/hosts
    "schedulingGroup",  # the arbiter schedules gangs, and the named objects do not exist in the compute cluster
    "workloadRef",
)
"""Fields that are never forwarded."""

_BAND_CLASSES: Final = {"low": LOW_CLASS, "guaranteed": GUARANTEED_CLASS}

_PLATFORM_TAINTS: Final = ("node-role.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_EVICTING_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")

_CLUSTER_POLICIES: Final = frozenset({"ClusterFirst", "ClusterFirstWithHostNet"})
_NAMESERVERS_MAX: Final = 3
_SEARCHES_MAX: Final = 32
_SEARCH_CHARACTERS_MAX: Final = 2048
"""Limit of API servers for a dnsConfig (core/v1 validation)."""
_DEFAULT_GRACE: Final = 30
"""Default of terminationGracePeriodSeconds (core/v1 PodSpec)."""
_NDOTS: Final = {"name": "ndots", "value": "5"}


def _no_namespaces() -> Mapping[str, Mapping[str, str]]:
    return {}


def forward_pod(
    pod: Object,
    *,
    tenant: TenantContext,
    pool: PoolContext,
    namespace: str,
    compute_node: str = "",
    borrowed: bool | None = None,
    marks: SchedulerMarks | None = None,
    namespaces: NamespaceLabels = _no_namespaces,
    claims: Mapping[str, str] = NO_RENAMED_CLAIMS,
) -> Object:
    """Return the compute pod of a tenant pod, for the compute namespace `namespace`.

    `compute_node`, if set, is required by node affinity. `borrowed` work gets the low band, whatever class the tenant
    set. None: no scheduler admitted the pod. The compute pod records both. `marks` are for the scheduler
    of the pool. `namespaces` returns the labels of the tenant's namespaces, for pod affinity with a namespace selector.
    `claims` holds the compute names of claims that are renamed.

    The pod must have name, namespace and uid, and `rules.find_refusals` must return nothing for it. It is not changed.
    The result shares unchanged parts with it, so callers must change neither. Unknown fields are forwarded unchanged.

    A compute pod never uses the compute cluster's DNS, which would resolve other tenants' Services. Its Service
    variables are those of its compute namespace, which contains only the tenant's Services.

    Raises:
        OversizeError: the compute pod is larger than any API server accepts.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    secret = token_secret_name(metadata["name"], metadata["uid"])
    values = pod_values(pod, tenant=tenant, node_name=pool.node_name, token_secret=secret, claims=claims)
    made = {key: value for key, value in spec.items() if key not in _TENANT_ONLY_FIELDS}
    _forward_contents(made, values)
    _forward_placement(made, pod, tenant=tenant, pool=pool, namespaces=namespaces)
    _forward_identity(made, tenant=tenant, namespace=metadata["namespace"])
    _forward_hostname(made, pod, tenant=tenant)
    made["priorityClassName"] = LOW_CLASS if borrowed else _BAND_CLASSES[pod_band(spec)]
    below = forward_metadata(pod, tenant=tenant, pool=pool, namespace=namespace, derived=values.derived_annotations)
    if compute_node:
        made["affinity"] = require_node(made.get("affinity") or {}, compute_node)
        below["annotations"][COMPUTE_NODE_ANNOTATION] = compute_node
    if borrowed is not None:
        below["annotations"][BORROWED_ANNOTATION] = "true" if borrowed else "false"
    if marks is not None:
        _mark_for_scheduler(made, below, marks)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": below, "spec": made}


def _mark_for_scheduler(made: dict[str, Any], below: Object, marks: SchedulerMarks) -> None:
    if marks.scheduler_name:
        made["schedulerName"] = marks.scheduler_name
    if marks.priority_class:
        made["priorityClassName"] = marks.priority_class
    if marks.grace is not None:
        given = made.get("terminationGracePeriodSeconds")
        made["terminationGracePeriodSeconds"] = min(marks.grace, _DEFAULT_GRACE if given is None else given)
    below["labels"] |= marks.labels
    below["annotations"] |= marks.annotations


def pod_band(spec: Mapping[str, Any]) -> Literal["guaranteed", "low"]:
    """Return the band that a pod's spec requests: low by its class or by a negative priority, else guaranteed.

    Tenants have PriorityClasses of their own, so the value decides, not a list of names. `system-*` classes are
    guaranteed: public programs such as metrics-server request them, and nothing of them reaches the compute cluster.
    """
    low = spec.get("priorityClassName") == LOW_CLASS or (spec.get("priority") or 0) < 0
    return "low" if low else "guaranteed"


def is_scheduled(pod: Object) -> bool:
    """Return whether a scheduler bound the pod, as opposed to a `nodeName` that was set directly."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(entry["type"] == "PodScheduled" and entry["status"] == "True" for entry in conditions)


def _forward_contents(made: dict[str, Any], values: PodValues) -> None:
    for kind in ("initContainers", "containers"):
        if made.get(kind):
            made[kind] = [forward_container(container, values) for container in made[kind]]
    if made.get("volumes"):
        made["volumes"] = [forward_volume(volume, values) for volume in made["volumes"]]


def _forward_placement(
    made: dict[str, Any], pod: Object, *, tenant: TenantContext, pool: PoolContext, namespaces: NamespaceLabels
) -> None:
    made["tolerations"] = forward_tolerations(made.get("tolerations"), pool)
    affinity, selector = made.pop("affinity", None), made.get("nodeSelector")
    made["nodeSelector"] = pool.node_selector
    if affinity or selector:
        terms = NodeTerms(pool, scheduled=is_scheduled(pod))
        made["nodeSelector"] = terms.forward_selector(selector)
        kept = forward_affinity(affinity or {}, terms=terms, peers=PeerTerms(tenant, namespaces))
        if kept:
            made["affinity"] = kept
    if pool.without_label:
        made["affinity"] = exclude_label(made.get("affinity") or {}, pool.without_label)
    constraints = made.get("topologySpreadConstraints")
    if constraints:
        made["topologySpreadConstraints"] = forward_spread_constraints(constraints, peers=PeerTerms(tenant, namespaces))


def _forward_hostname(made: dict[str, Any], pod: Object, *, tenant: TenantContext) -> None:
    """Set the fully qualified host name explicitly. A kubelet would derive it from the compute namespace."""
    metadata, spec = pod["metadata"], pod["spec"]
    if not (spec.get("setHostnameAsFQDN") and spec.get("subdomain")) or spec.get("hostnameOverride"):
        return
    del made["setHostnameAsFQDN"]
    if not spec.get("hostNetwork"):
        name = spec.get("hostname") or metadata["name"]
        zone = f"{metadata['namespace']}.svc.{tenant.cluster_domain}"
        made["hostnameOverride"] = f"{name}.{spec['subdomain']}.{zone}"


def _forward_identity(made: dict[str, Any], *, tenant: TenantContext, namespace: str) -> None:
    made["serviceAccountName"] = POD_SERVICE_ACCOUNT
    made["automountServiceAccountToken"] = False
    if made.get("runtimeClassName"):
        made["runtimeClassName"] = tenant.runtime_class_names.get(made["runtimeClassName"], made["runtimeClassName"])
    made |= forward_dns(made, tenant=tenant, namespace=namespace)
    aliases = api_host_aliases(
        tenant.api_service or tenant.api_host, tenant.cluster_domain, in_default=namespace == "default"
    )
    if aliases:
        made["hostAliases"] = [*(made.get("hostAliases") or ()), *aliases]


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
    required = by_node.get(REQUIRED) or {}
    alternatives: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [{**term, kind: [*(term.get(kind) or ()), requirement]} for term in alternatives]
    return {**affinity, "nodeAffinity": {**by_node, REQUIRED: {**required, "nodeSelectorTerms": terms}}}


def _forward_pod_affinity(affinity: Mapping[str, Any], peers: PeerTerms) -> Object:
    left = {key: value for key, value in affinity.items() if key not in (REQUIRED, PREFERRED)}
    required = [peers.forward_affinity_term(term) for term in affinity.get(REQUIRED) or () if not _is_pool_wide(term)]
    preferred = [
        {**weighted, "podAffinityTerm": peers.forward_affinity_term(weighted["podAffinityTerm"])}
        for weighted in affinity.get(PREFERRED) or ()
        if not _is_pool_wide(weighted["podAffinityTerm"])
    ]
    if required:
        left[REQUIRED] = required
    if preferred:
        left[PREFERRED] = preferred
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

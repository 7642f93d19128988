"""Compute pod made from a tenant's pod."""

from collections.abc import Mapping
from typing import Any, Final

from vkgateway.model.names import (
    BORROWED_ANNOTATION,
    COMPUTE_NODE_ANNOTATION,
    GUARANTEED_CLASS,
    LOW_CLASS,
    POD_SERVICE_ACCOUNT,
    token_secret_name,
)
from vkgateway.model.objects import Object
from vkgateway.translate.containers import (
    NO_RENAMED_CLAIMS,
    PodValues,
    api_host_aliases,
    forward_container,
    forward_volume,
    pod_values,
)
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.dns import forward_dns
from vkgateway.translate.governed import pod_band
from vkgateway.translate.metadata import forward_metadata
from vkgateway.translate.node_terms import NodeTerms
from vkgateway.translate.peer_terms import NamespaceLabels, PeerTerms
from vkgateway.translate.placement import (
    exclude_label,
    forward_affinity,
    forward_spread_constraints,
    forward_tolerations,
    require_node,
)

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
    namespaces: NamespaceLabels = _no_namespaces,
    claims: Mapping[str, str] = NO_RENAMED_CLAIMS,
) -> Object:
    """Return the compute pod of a tenant pod, for the compute namespace `namespace`.

    `compute_node`, if set, is required by node affinity. `borrowed` work gets the low band, whatever class the tenant
    set. None: the arbiter did not place the pod. The compute pod records both. `namespaces` returns the labels of the
    tenant's namespaces, for pod affinity with a namespace selector. `claims` holds the compute names of claims that are
    renamed.

    The pod must have name, namespace and uid, and `policy.find_refusals` must return nothing for it. It is not changed.
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
    return {"apiVersion": "v1", "kind": "Pod", "metadata": below, "spec": made}


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

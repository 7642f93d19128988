"""A tenant's pod becomes a compute pod, ready to be created."""

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
    "nodeName",  # the compute scheduler's choice
    "schedulerName",
    "priority",  # the band's class brings its own value and preemption policy
    "preemptionPolicy",
    "serviceAccount",  # the old name of serviceAccountName
    "overhead",  # the compute cluster's RuntimeClass brings its own
    "ephemeralContainers",  # none can be given at creation
    "subdomain",  # a kubelet would write the compute namespace's name into /etc/hosts
    "schedulingGroup",  # gangs are the arbiter's, and the objects that they name are not below
    "workloadRef",
)
"""What stays above whatever its value."""

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
    """The compute pod that stands for a tenant's pod in the compute namespace `namespace`.

    With `compute_node` it requires that node. Work that is `borrowed` is low, whatever class the tenant gave it; None:
    the arbiter did not place it. Both are written down on the compute pod. `namespaces` tells the labels of the
    tenant's namespaces, for pod affinity that chooses namespaces by them; `claims` what its claims are called below,
    where that differs.

    The pod must be one that `policy.find_refusals` finds nothing against, with name, namespace and uid. It is not
    changed, and what need not differ is shared with it: callers change neither. Fields that are not known here go down
    as they are.

    Raises:
        OversizeError: what it would become is larger than any API server takes.

    Never does a pod use the compute cluster's DNS, which would answer with other people's Services. The variables of
    Services are those of its compute namespace, where nothing but the tenant's own stand.
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
    """Tell whether a scheduler bound the pod, rather than somebody who set `nodeName` by hand."""
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
    """The full name as hostname is told outright: a kubelet would make it of the compute namespace's name."""
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

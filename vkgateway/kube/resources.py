"""The kinds of objects that vkgateway uses, and their URL paths."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote

from vkgateway.api.errors import InputError


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource of the API, namespaced or cluster-scoped.

    `prefix` is `api/v1` or `apis/<group>/<version>`, without leading and trailing slashes.
    """

    prefix: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The `apiVersion` of the objects: `v1` or `<group>/<version>`."""
        return self.prefix.partition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the absolute, percent-encoded URL path. Without a namespace, the path covers all namespaces.

        Raises:
            InputError: the name is empty: the path would cover all objects instead of one.
        """
        path = f"/{self.prefix}"
        if namespace and self.namespaced:
            path += f"/namespaces/{quote_url_part(namespace)}"
        path += f"/{self.plural}"
        if name is not None:
            if not name:
                raise InputError(f"the name of a {self.kind} is empty", hint="Name one object.")
            path += f"/{quote_url_part(name)}"
        if subresource:
            path += f"/{subresource}"
        return path


PODS = Resource("api/v1", "pods", "Pod")
NODES = Resource("api/v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("api/v1", "namespaces", "Namespace", namespaced=False)
CONFIG_MAPS = Resource("api/v1", "configmaps", "ConfigMap")
SECRETS = Resource("api/v1", "secrets", "Secret")
SERVICE_ACCOUNTS = Resource("api/v1", "serviceaccounts", "ServiceAccount")
SERVICES = Resource("api/v1", "services", "Service")
ENDPOINT_SLICES = Resource("apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice")
EVENTS = Resource("api/v1", "events", "Event")
LIMIT_RANGES = Resource("api/v1", "limitranges", "LimitRange")
LEASES = Resource("apis/coordination.k8s.io/v1", "leases", "Lease")
NETWORK_POLICIES = Resource("apis/networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
INGRESSES = Resource("apis/networking.k8s.io/v1", "ingresses", "Ingress")
INGRESS_CLASSES = Resource("apis/networking.k8s.io/v1", "ingressclasses", "IngressClass", namespaced=False)
DISRUPTION_BUDGETS = Resource("apis/policy/v1", "poddisruptionbudgets", "PodDisruptionBudget")
SERVICE_CIDRS = Resource("apis/networking.k8s.io/v1", "servicecidrs", "ServiceCIDR", namespaced=False)
PRIORITY_CLASSES = Resource("apis/scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", namespaced=False)
RUNTIME_CLASSES = Resource("apis/node.k8s.io/v1", "runtimeclasses", "RuntimeClass", namespaced=False)
STORAGE_CLASSES = Resource("apis/storage.k8s.io/v1", "storageclasses", "StorageClass", namespaced=False)
PERSISTENT_VOLUMES = Resource("api/v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PERSISTENT_VOLUME_CLAIMS = Resource("api/v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NODE_TOPOLOGIES = Resource(
    "apis/topology.node.k8s.io/v1alpha2", "noderesourcetopologies", "NodeResourceTopology", namespaced=False
)
DEPLOYMENTS = Resource("apis/apps/v1", "deployments", "Deployment")
DAEMON_SETS = Resource("apis/apps/v1", "daemonsets", "DaemonSet")
JOBS = Resource("apis/batch/v1", "jobs", "Job")
ROLES = Resource("apis/rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDINGS = Resource("apis/rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = Resource("apis/rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(
    "apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False
)
CRDS = Resource(
    "apis/apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
TENANTS = Resource("apis/vkgateway.io/v1alpha1", "tenants", "Tenant", namespaced=False)
COMPUTE_CLUSTERS = Resource("apis/vkgateway.io/v1alpha1", "computeclusters", "ComputeCluster", namespaced=False)

KNOWN_RESOURCES: dict[tuple[str, str], Resource] = {
    (resource.api_version, resource.kind): resource
    for resource in (
        PODS,
        NODES,
        NAMESPACES,
        CONFIG_MAPS,
        SECRETS,
        SERVICE_ACCOUNTS,
        SERVICES,
        ENDPOINT_SLICES,
        EVENTS,
        LIMIT_RANGES,
        LEASES,
        NETWORK_POLICIES,
        INGRESSES,
        INGRESS_CLASSES,
        DISRUPTION_BUDGETS,
        SERVICE_CIDRS,
        PRIORITY_CLASSES,
        RUNTIME_CLASSES,
        STORAGE_CLASSES,
        PERSISTENT_VOLUMES,
        PERSISTENT_VOLUME_CLAIMS,
        DEPLOYMENTS,
        DAEMON_SETS,
        JOBS,
        ROLES,
        ROLE_BINDINGS,
        CLUSTER_ROLES,
        CLUSTER_ROLE_BINDINGS,
        CRDS,
        TENANTS,
        COMPUTE_CLUSTERS,
    )
}
"""Resources by `apiVersion` and `kind`, to find an object's resource without a discovery request."""


_SAFE: Final = "-._~:"


@lru_cache(maxsize=4096)
def quote_url_part(text: str) -> str:
    """Return a name or a parameter's value, percent-encoded."""
    return quote(text, safe=_SAFE)

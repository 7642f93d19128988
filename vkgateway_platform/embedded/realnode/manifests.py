"""Objects for the node in the compute cluster: the name service, its permissions, and the node's GPUs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vkgateway_platform.embedded.realnode.options import RealNodeOptions

_DNS_PORTS = ({"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"})
_DNS_RESOURCES = {"": ["endpoints", "services", "pods", "namespaces"], "discovery.k8s.io": ["endpointslices"]}

_NETPOL_RESOURCES = {
    "": ["pods", "namespaces"],
    "discovery.k8s.io": ["endpointslices"],
    "networking.k8s.io": ["networkpolicies"],
}

NETPOL_USER = "system:vkgateway-netpol"
"""User of the process that enforces NetworkPolicies."""


def cluster_objects(options: RealNodeOptions) -> list[dict[str, Any]]:
    """Return the objects to apply in the compute cluster, in order.

    CoreDNS is a process on the node, not a pod: the Service has no selector, and a custom EndpointSlice has the node's
    address.
    """
    return [
        *_read_rights("system:coredns", _DNS_RESOURCES),
        *_read_rights(NETPOL_USER, _NETPOL_RESOURCES),
        _name_service(options),
        _name_service_endpoints(options),
    ]


def node_status_patch(options: RealNodeOptions) -> dict[str, Any]:
    """Return a merge patch for the Node's `status` subresource that gives it its extended resources.

    https://kubernetes.io/docs/tasks/administer-cluster/extended-resource-node/
    """
    return {"status": {"capacity": dict(options.resources), "allocatable": dict(options.resources)}}


def _read_rights(name: str, readable: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    rules = [
        {"apiGroups": [group], "resources": list(resources), "verbs": ["list", "watch"]}
        for group, resources in readable.items()
    ]
    api_version = "rbac.authorization.k8s.io/v1"
    role = {"apiVersion": api_version, "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules}
    binding = {
        "apiVersion": api_version,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}],
    }
    return [role, binding]


def _name_service(options: RealNodeOptions) -> dict[str, Any]:
    ports = [{**port, "targetPort": 53} for port in _DNS_PORTS]
    labels = {"k8s-app": "kube-dns", "kubernetes.io/name": "CoreDNS"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": labels},
        "spec": {"type": "ClusterIP", "clusterIP": options.cluster_dns, "ports": ports},
    }


def _name_service_endpoints(options: RealNodeOptions) -> dict[str, Any]:
    labels = {
        "kubernetes.io/service-name": "kube-dns",
        "endpointslice.kubernetes.io/managed-by": "vkgateway.io",
    }
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "kube-dns-vkgateway", "namespace": "kube-system", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [options.network.node_address], "conditions": {"ready": True}}],
        "ports": [dict(port) for port in _DNS_PORTS],
    }

"""Objects of one control plane in the management cluster (pure)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.names import (
    API_SERVER,
    CONTROL_PLANE,
    FILES,
    PORT,
    component_labels,
    pod_selector,
)
from vkgateway.planes.drivers.kubernetes.network_policies import control_plane_policies
from vkgateway.planes.drivers.kubernetes.parameters import Parameters
from vkgateway.planes.drivers.kubernetes.pods import control_plane_pod
from vkgateway.planes.plane import ControlPlaneSpec
from vkgateway.planes.plane_files import PlaneFiles

Document = dict[str, Any]

_PROXY_SECONDS: Final = 2


def namespace(tenant: str, *, name: str) -> Document:
    """Return the namespace of a tenant's control plane; it admits pods of the level `restricted` only."""
    labels = component_labels(tenant, CONTROL_PLANE) | {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def api_server_service(tenant: str, *, namespace: str, port: int) -> Document:
    """Return the Service of a tenant's API server. Its address stays while the namespace exists."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": component_metadata(tenant, CONTROL_PLANE, name=API_SERVER, namespace=namespace),
        "spec": {
            "type": "ClusterIP",
            "selector": pod_selector(tenant, CONTROL_PLANE),
            "ports": [{"name": "https", "port": port, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def control_plane_objects(
    plane: ControlPlaneSpec,
    *,
    files: PlaneFiles,
    version: str,
    parameters: Parameters,
    namespace: str,
    gateway: ServerEndpoint,
) -> list[Document]:
    """Return the Secret, the policies and the Deployment of a control plane, in the order of creation.

    A single pod needs no PodDisruptionBudget. One that is left from before allows every eviction of it.
    """
    tenant, replicas = plane.cluster, plane.pod.replicas
    return [
        files_secret(tenant, files.contents, namespace=namespace),
        *control_plane_policies(
            tenant,
            namespace=namespace,
            etcd=plane.etcd_endpoints,
            gateway=gateway,
            clients=(*parameters.client_ranges, *plane.client_ranges),
            blocked=parameters.blocked_ranges,
        ),
        *([disruption_budget(tenant, CONTROL_PLANE, namespace=namespace)] if replicas > 1 else []),
        deployment(
            tenant,
            CONTROL_PLANE,
            namespace=namespace,
            pod=control_plane_pod(plane, files=files, version=version, parameters=parameters),
            replicas=replicas,
        ),
    ]


def files_secret(tenant: str, contents: Mapping[str, bytes], *, namespace: str) -> Document:
    """Return the Secret with the files of a control plane."""
    return secret(FILES, contents, labels=component_labels(tenant, CONTROL_PLANE), namespace=namespace)


def secret(name: str, contents: Mapping[str, bytes], *, labels: Mapping[str, str], namespace: str) -> Document:
    """Return a Secret with contents by key."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels)},
        "type": "Opaque",
        "data": {key: base64.b64encode(content).decode() for key, content in contents.items()},
    }


def deployment(tenant: str, component: str, *, namespace: str, pod: Document, replicas: int = 1) -> Document:
    """Return the Deployment of a component. A new pod is ready before an old one stops.

    Among several pods, it is ready for as long as kube-proxy may need to learn of it.
    """
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": component_metadata(tenant, component, namespace=namespace),
        "spec": {
            "replicas": replicas,
            "minReadySeconds": 0 if replicas == 1 else _PROXY_SECONDS,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": pod_selector(tenant, component)},
            "template": {"metadata": {"labels": component_labels(tenant, component)}, "spec": pod},
        },
    }


def disruption_budget(tenant: str, component: str, *, namespace: str) -> Document:
    """Return the budget of a component with several pods: one may be unavailable."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": component_metadata(tenant, component, namespace=namespace),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": pod_selector(tenant, component)},
        },
    }


def component_metadata(tenant: str, component: str, *, namespace: str, name: str = "") -> Document:
    """Return the metadata of an object of a component; its name is the component's by default."""
    return {"name": name or component, "namespace": namespace, "labels": component_labels(tenant, component)}

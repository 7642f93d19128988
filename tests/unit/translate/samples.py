"""Tenant, pool, and pods as an API server returns them, for the tests of translation."""

import copy
from typing import Any

from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.pods.translation.to_compute import forward_pod

TENANT = TenantContext(name="alpha", api_host="10.213.0.1", api_port=20123)
POOL = PoolContext(
    name="a100",
    compute_cluster="local",
    node_name="a100.local",
    node_selector={"platform.vkgateway.io/pool": "a100"},
    node_labels={"kubernetes.io/os": "linux", "nvidia.com/gpu.product": "A100"},
    carried_labels=frozenset({"kubernetes.io/os", "nvidia.com/gpu.product", "topology.kubernetes.io/zone"}),
)
BELOW = "alpha--default"
SCHEDULED = {
    "type": "PodScheduled",
    "status": "True",
    "lastProbeTime": None,
    "lastTransitionTime": "2026-03-01T12:00:00Z",
}
DEFAULT_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for name in ("not-ready", "unreachable")
]


def container(name: str = "app", **more: Any) -> Object:
    """Return a container."""
    return {"name": name, "image": "busybox:1", "resources": {}, "imagePullPolicy": "IfNotPresent", **more}


def pod(*, metadata: Object | None = None, status: Object | None = None, **spec: Any) -> Object:
    """Return a pod as the tenant's API server stores it: defaulted, admitted and bound by its scheduler."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "web-1",
            "namespace": "default",
            "uid": "6c5f1f7e-0001",
            "resourceVersion": "42",
            "generation": 1,
            "creationTimestamp": "2026-03-01T12:00:00Z",
            "labels": {"app": "web", "pod-template-hash": "abc"},
            "annotations": {"example.com/note": "hello"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r"}],
            "managedFields": [{"manager": "kubectl"}],
            **(metadata or {}),
        },
        "spec": {
            "containers": [container()],
            "nodeName": "a100.local",
            "schedulerName": "default-scheduler",
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": "robot",
            "serviceAccount": "robot",
            "priority": 1000,
            "priorityClassName": "vkgateway-guaranteed",
            "preemptionPolicy": "PreemptLowerPriority",
            "enableServiceLinks": True,
            "terminationGracePeriodSeconds": 30,
            "securityContext": {},
            "tolerations": copy.deepcopy(DEFAULT_TOLERATIONS),
            "volumes": [api_access_volume()],
            **spec,
        },
        "status": status or {"phase": "Pending", "qosClass": "BestEffort", "conditions": [dict(SCHEDULED)]},
    }


def api_access_volume() -> Object:
    """Return the volume that ServiceAccount admission adds to every pod."""
    return {
        "name": "kube-api-access-x7k2p",
        "projected": {
            "defaultMode": 420,
            "sources": [
                {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
                {
                    "downwardAPI": {
                        "items": [
                            {
                                "path": "namespace",
                                "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                            }
                        ]
                    }
                },
            ],
        },
    }


def forward(
    tenant_pod: Object,
    *,
    tenant: TenantContext = TENANT,
    pool: PoolContext = POOL,
    compute_node: str = "",
    borrowed: bool | None = None,
    marks: SchedulerMarks | None = None,
    namespaces: dict[str, dict[str, str]] | None = None,
) -> Object:
    """Forward a pod, and check that it is not changed."""
    before = copy.deepcopy(tenant_pod)
    made = forward_pod(
        tenant_pod,
        tenant=tenant,
        pool=pool,
        namespace=BELOW,
        compute_node=compute_node,
        borrowed=borrowed,
        marks=marks,
        namespaces=lambda: namespaces or {},
    )
    assert tenant_pod == before
    return made


def compute_pod(tenant_pod: Object, status: Object) -> Object:
    """Return the compute pod of a tenant pod as the compute API server stores it, on a host."""
    made = forward(tenant_pod)
    made["metadata"] |= {"uid": "c0ffee00-0001", "resourceVersion": "7"}
    made["spec"] |= {"nodeName": "host-17"}
    return {**made, "status": status}

"""Which fields of Kubernetes objects a bundle contains (pure).

Not contained, whatever their value: environment, commands, arguments, probes, volumes, mounts, data of ConfigMaps and
Secrets, CA bundles, `last-applied-configuration` and other unknown annotations, managed fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from vkgateway.cli.plugin.bundle.shapes import (
    Shape,
    apply_shape,
    host_of_url,
    image,
    keys_only,
    phrase,
    plain,
    plain_list,
    plain_map,
    safe_annotations,
    safe_labels,
)

MessageFilter = Callable[[str, Any], Any]

_METADATA: Final[Shape] = {
    "name": plain,
    "namespace": plain,
    "uid": plain,
    "generation": plain,
    "creationTimestamp": plain,
    "deletionTimestamp": plain,
    "deletionGracePeriodSeconds": plain,
    "labels": safe_labels,
    "annotations": safe_annotations,
    "finalizers": plain_list,
    "ownerReferences": [{"apiVersion": plain, "kind": plain, "name": plain, "controller": plain}],
}
_TAINT: Final[Shape] = {"key": plain, "value": plain, "effect": plain, "operator": plain, "tolerationSeconds": plain}
_RESOURCES: Final[Shape] = {"requests": plain_map, "limits": plain_map}
_CONTAINER: Final[Shape] = {"name": plain, "image": image, "resources": _RESOURCES, "restartPolicy": plain}
_TERMINATED: Final[Shape] = {
    "exitCode": plain,
    "signal": plain,
    "reason": plain,
    "startedAt": plain,
    "finishedAt": plain,
}
_STATE: Final[Shape] = {
    "waiting": {"reason": plain},
    "running": {"startedAt": plain},
    "terminated": _TERMINATED,
}
_CONTAINER_STATUS: Final[Shape] = {
    "name": plain,
    "ready": plain,
    "started": plain,
    "restartCount": plain,
    "image": image,
    "state": _STATE,
    "lastState": _STATE,
}
_TERM: Final[Shape] = {
    "matchExpressions": [{"key": plain, "operator": plain, "values": plain_list}],
    "matchFields": [{"key": plain, "operator": plain, "values": plain_list}],
}
_NODE_AFFINITY: Final[Shape] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_TERM]},
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": plain, "preference": _TERM}],
}


def redact_pod(pod: Mapping[str, Any], message: MessageFilter) -> Any:
    """Return the allowed part of a pod."""
    statuses: Shape = [_CONTAINER_STATUS]
    return apply_shape(
        {
            "metadata": _METADATA,
            "spec": {
                "nodeName": plain,
                "schedulerName": plain,
                "schedulingGates": [{"name": plain}],
                "schedulingGroup": plain_map,
                "workloadRef": plain_map,
                "priority": plain,
                "priorityClassName": plain,
                "preemptionPolicy": plain,
                "restartPolicy": plain,
                "runtimeClassName": plain,
                "terminationGracePeriodSeconds": plain,
                "activeDeadlineSeconds": plain,
                "hostNetwork": plain,
                "nodeSelector": plain_map,
                "tolerations": [_TAINT],
                "affinity": {"nodeAffinity": _NODE_AFFINITY},
                "resources": _RESOURCES,
                "overhead": plain_map,
                "containers": [_CONTAINER],
                "initContainers": [_CONTAINER],
            },
            "status": {
                "phase": plain,
                "reason": plain,
                "message": lambda text: message((pod.get("status") or {}).get("reason") or "", text),
                "startTime": plain,
                "qosClass": plain,
                "nominatedNodeName": plain,
                "conditions": _conditions(message),
                "containerStatuses": statuses,
                "initContainerStatuses": statuses,
            },
        },
        pod,
    )


def redact_node(node: Mapping[str, Any], message: MessageFilter) -> Any:
    """Return the allowed part of a node."""
    info = ("kubeletVersion", "containerRuntimeVersion", "kernelVersion", "osImage", "architecture", "operatingSystem")
    return apply_shape(
        {
            "metadata": _METADATA,
            "spec": {"unschedulable": plain, "taints": [_TAINT]},
            "status": {
                "capacity": plain_map,
                "allocatable": plain_map,
                "conditions": _conditions(message),
                "nodeInfo": dict.fromkeys(info, phrase),
            },
        },
        node,
    )


def redact_event(event: Mapping[str, Any], message: MessageFilter) -> Any:
    """Return the allowed part of an event."""
    return apply_shape(
        {
            "metadata": {"namespace": plain, "creationTimestamp": plain},
            "involvedObject": {"kind": plain, "namespace": plain, "name": plain, "uid": plain},
            "type": plain,
            "reason": plain,
            "message": lambda text: message(event.get("reason") or "", text),
            "count": plain,
            "firstTimestamp": plain,
            "lastTimestamp": plain,
            "eventTime": plain,
            "source": {"component": plain},
            "reportingComponent": plain,
        },
        event,
    )


def redact_webhooks(configuration: Mapping[str, Any], _: MessageFilter) -> Any:
    """Return the allowed part of a webhook configuration: its rules, and the host that it calls."""
    rule: Shape = {
        "apiGroups": plain_list,
        "apiVersions": plain_list,
        "operations": plain_list,
        "resources": plain_list,
        "scope": plain,
    }
    client: Shape = {"service": {"namespace": plain, "name": plain, "port": plain}, "url": host_of_url}
    webhook: Shape = {
        "name": plain,
        "rules": [rule],
        "failurePolicy": plain,
        "matchPolicy": plain,
        "sideEffects": plain,
        "timeoutSeconds": plain,
        "reinvocationPolicy": plain,
        "clientConfig": client,
    }
    return apply_shape({"metadata": _METADATA, "webhooks": [webhook]}, configuration)


def redact_tenant(tenant: Mapping[str, Any], message: MessageFilter) -> Any:
    """Return the allowed part of a Tenant."""
    pool: Shape = {
        "name": plain,
        "computeCluster": plain,
        "guarantee": plain_map,
        "limit": plain_map,
        "weight": plain,
        "cells": plain_list,
    }
    exposure: Shape = {"type": plain, "hostname": plain, "port": plain, "annotations": keys_only}
    policy_lists = ("runtimeClasses", "storageClasses", "imagePullSecrets", "pluginAnnotations")
    policy_names = ("podSecurity", "defaultStorageClass", "userNamespaces", "loadBalancers", "nodePorts")
    return apply_shape(
        {
            "metadata": _METADATA,
            "spec": {
                "template": plain,
                "kubernetesVersion": plain,
                "pools": [pool],
                "policy": {
                    **dict.fromkeys(policy_lists, plain_list),
                    **dict.fromkeys(policy_names, plain),
                    "runtimeClassNames": plain_map,
                    "storageClassNames": plain_map,
                },
                "preemption": {"withinTenant": plain},
                "apiServer": {"port": plain, "subjectAltNames": plain_list, "exposure": exposure},
                "controlPlane": {"driver": plain},
                "budget": [plain_map],
            },
            "status": {
                "observedGeneration": plain,
                "phase": plain,
                "conditions": _conditions(message),
                "apiServer": {"url": host_of_url, "port": plain, "version": plain},
                "pools": [
                    {
                        "name": plain,
                        "computeCluster": plain,
                        "nodeName": plain,
                        "value": plain,
                        "ready": plain,
                        "capacity": plain_map,
                    }
                ],
            },
        },
        tenant,
    )


def redact_compute_cluster(compute: Mapping[str, Any], message: MessageFilter) -> Any:
    """Return the allowed part of a ComputeCluster."""
    scheduling: Shape = {
        "mode": plain,
        "queue": phrase,
        "manageQueues": plain,
        "schedulerName": plain,
        "priorityClassName": plain,
        "podLabels": keys_only,
        "podAnnotations": keys_only,
    }
    numbers = ("noticeSeconds", "graceSeconds", "briefRunSeconds", "briefNoticeSeconds", "reserve")
    pool: Shape = {
        **dict.fromkeys(("name", "cellResource", "virtualNodesBy", "lowYieldsTo", *numbers), plain),
        "enforceRunLimits": plain,
        "defaultRunLimits": {"guaranteed": plain, "low": plain},
        "nodeSelector": plain_map,
        "tolerations": [_TAINT],
        "levels": plain_list,
        "passedThrough": plain_list,
        "scheduling": scheduling,
    }
    pool_status: Shape = {
        **dict.fromkeys(("name", "nodes", "usableNodes", "schedulingMode"), plain),
        "allocatable": plain_map,
        "guaranteed": plain_map,
    }
    return apply_shape(
        {
            "metadata": _METADATA,
            "spec": {
                "connection": {"kubeconfigSecret": {"namespace": plain, "name": plain, "key": plain}},
                "pools": [pool],
            },
            "status": {
                "observedGeneration": plain,
                "version": plain,
                "conditions": _conditions(message),
                "pools": [pool_status],
            },
        },
        compute,
    )


def redact_lease(lease: Mapping[str, Any], _: MessageFilter) -> Any:
    """Return the allowed part of a Lease."""
    fields = ("holderIdentity", "leaseDurationSeconds", "acquireTime", "renewTime", "leaseTransitions")
    return apply_shape({"metadata": _METADATA, "spec": dict.fromkeys(fields, plain)}, lease)


def _conditions(message: MessageFilter) -> Shape:
    names = ("type", "status", "reason", "lastTransitionTime", "lastHeartbeatTime", "observedGeneration")
    shape: Shape = dict.fromkeys(names, plain)

    def redact(conditions: Any) -> Any:
        if not isinstance(conditions, list):
            return None
        return [
            {**apply_shape(shape, entry), "message": message(entry.get("reason") or "", entry.get("message"))}
            for entry in conditions
            if isinstance(entry, Mapping)
        ]

    return redact

"""Typical pod of a training job, as an API server returns it, and its compute pod when it runs."""

from __future__ import annotations

from typing import Any

from vkgateway.api.objects import Object

_SINCE = "2026-03-01T12:00:05Z"


def typical_pod(number: int) -> Object:
    """Return a pod with one init container, two containers, ten variables, four volumes: defaulted, admitted, bound."""
    name = f"train-{number:05d}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"6c5f1f7e-0000-4000-8000-{number:012d}",
            "resourceVersion": str(1000 + number),
            "generation": 1,
            "creationTimestamp": "2026-03-01T12:00:00Z",
            "labels": {"app": "train", "batch.kubernetes.io/job-name": "train", "team": "vision"},
            "annotations": {"example.com/note": "resnet"},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "j"}],
        },
        "spec": _pod_spec(name),
        "status": {"phase": "Pending", "qosClass": "Burstable", "conditions": []},
    }


def _pod_spec(hostname: str) -> Object:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    variables: list[Object] = [
        {"name": key, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for key, path in fields.items()
    ]
    variables.append({"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "registry", "key": "token"}}})
    variables += [{"name": f"OPTION_{number}", "value": f"value-{number}"} for number in range(6)]
    return {
        "initContainers": [_make_container("fetch")],
        "containers": [
            _make_container("train", env=variables, resources={"limits": {"cpu": "4", "memory": "16Gi"}}),
            _make_container("sidecar"),
        ],
        "volumes": _make_volumes(),
        "hostname": hostname,
        "nodeName": "a100.local",
        "schedulerName": "default-scheduler",
        "restartPolicy": "Never",
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "priority": 0,
        "priorityClassName": "vkgateway-guaranteed",
        "preemptionPolicy": "PreemptLowerPriority",
        "enableServiceLinks": True,
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "tolerations": [
            {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for key in ("not-ready", "unreachable")
        ],
    }


def _make_container(name: str, **more: Any) -> Object:
    mounts = {"data": "/data", "settings": "/etc/train", "kube-api-access-x7k2p": "/var/run/secrets/kubernetes.io/sa"}
    return {
        "name": name,
        "image": "registry.example.org/train:1",
        "command": ["python", "train.py", "--epochs", "10"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        **more,
    }


def _make_volumes() -> list[Object]:
    field = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    sources: list[Object] = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": field}]}},
    ]
    return [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "settings", "configMap": {"name": "settings", "defaultMode": 420}},
        {"name": "scratch", "emptyDir": {}},
        {"name": "kube-api-access-x7k2p", "projected": {"defaultMode": 420, "sources": sources}},
    ]


def running_compute_pod(compute_pod: Object) -> Object:
    """Return the compute pod as its node reports it when it runs."""
    spec = compute_pod["spec"]
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    started = {"running": {"startedAt": _SINCE}}
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": _SINCE, "finishedAt": _SINCE}}
    status = {
        "phase": "Running",
        "observedGeneration": 1,
        "startTime": _SINCE,
        "hostIP": "10.213.0.2",
        "hostIPs": [{"ip": "10.213.0.2"}],
        "podIP": "10.214.0.7",
        "podIPs": [{"ip": "10.214.0.7"}],
        "qosClass": "Burstable",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _SINCE} for kind in kinds
        ],
        "initContainerStatuses": [_container_status(container, ended) for container in spec["initContainers"]],
        "containerStatuses": [_container_status(container, started) for container in spec["containers"]],
    }
    metadata = {**compute_pod["metadata"], "uid": "below-" + compute_pod["metadata"]["name"]}
    return {"metadata": metadata, "spec": {"nodeName": "real-0"}, "status": status}


def _container_status(container: Object, state: Object) -> Object:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "sha256:aa1605980da3691e258e48445ad6d1dc222823ee8377992c3caf3f007b87ae6e",
        "containerID": "containerd://22d68b20800cefd623a736df27d6219d254da87bc4dcd021f0e3c4be86becfad",
        "state": state,
        "lastState": {},
        "ready": True,
        "started": True,
        "restartCount": 0,
        "resources": {},
    }

"""Pods of control planes: containers, files, probes and security settings (pure).

The pods meet the Pod Security level `restricted`.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from vkgateway.controlplane.components import PROGRAMS, component_arguments, component_environment
from vkgateway.controlplane.drivers.kubernetes.names import FILES, MOUNT, PORT
from vkgateway.controlplane.drivers.kubernetes.parameters import Parameters
from vkgateway.controlplane.plane import COMPONENTS, ComponentName, ControlPlaneSpec
from vkgateway.controlplane.plane_files import PlaneFiles

_USER: Final = 65532
"""User and group of all containers, those of distroless images."""
_CLIENT_PORTS: Mapping[ComponentName, int] = {"controller-manager": 10257, "scheduler": 10259}
_REQUESTS: Mapping[str, Mapping[str, str]] = {
    "apiserver": {"cpu": "50m", "memory": "256Mi"},
    "controller-manager": {"cpu": "20m", "memory": "64Mi"},
    "scheduler": {"cpu": "10m", "memory": "48Mi"},
}
_STOP_SECONDS: Final = 10


def control_plane_pod(
    plane: ControlPlaneSpec, *, files: PlaneFiles, version: str, parameters: Parameters
) -> dict[str, Any]:
    """Return the spec of the pod with all components of a control plane."""
    return {
        **pod_defaults(parameters),
        "containers": [
            _component_container(name, plane=plane, files=files, version=version, parameters=parameters)
            for name in COMPONENTS
        ],
        "volumes": [
            secret_volume(_volume_name(name), FILES, keys=sorted(_component_files(name, files))) for name in COMPONENTS
        ],
    }


def pod_defaults(parameters: Parameters) -> dict[str, Any]:
    """Return the fields that all pods of the driver share."""
    defaults: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if parameters.image_pull_secrets:
        defaults["imagePullSecrets"] = [{"name": name} for name in parameters.image_pull_secrets]
    if parameters.priority_class_name:
        defaults["priorityClassName"] = parameters.priority_class_name
    if parameters.node_selector:
        defaults["nodeSelector"] = dict(parameters.node_selector)
    if parameters.tolerations:
        defaults["tolerations"] = msgspec.to_builtins(parameters.tolerations)
    return defaults


def container_security(*, added: Sequence[str] = ()) -> dict[str, Any]:
    """Return the security context of a container; `added` are capabilities that its program needs to start."""
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if added:
        capabilities["add"] = list(added)
    return {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": capabilities}


def secret_volume(name: str, secret: str, *, keys: Sequence[str]) -> dict[str, Any]:
    """Return a volume with some keys of a Secret, readable for the group of the pod only."""
    items = [{"key": key, "path": key} for key in keys]
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440, "items": items}}


def _component_container(
    name: ComponentName, *, plane: ControlPlaneSpec, files: PlaneFiles, version: str, parameters: Parameters
) -> dict[str, Any]:
    environment = component_environment(name, plane=plane, files=files)
    return {
        "name": name,
        "image": parameters.component_image(name, version),
        "imagePullPolicy": "IfNotPresent",
        "command": [PROGRAMS[name]],
        "args": component_arguments(name, plane=plane, files=files),
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": {"requests": dict(_REQUESTS[name])},
        "securityContext": container_security(),
        # The status of a container that fails shows its last lines, so reading them needs no right to logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _volume_name(name), "mountPath": str(MOUNT), "readOnly": True}],
        **(_api_server_probes(plane) if name == "apiserver" else {}),
    }


def _api_server_probes(plane: ControlPlaneSpec) -> dict[str, Any]:
    """Return the port and the probes of the API server.

    It answers the kubelet's requests without credentials from Kubernetes 1.32 on. Before, a probe can only connect.
    """

    def probe(path: str, **timing: int) -> dict[str, Any]:
        if plane.has_anonymous_health:
            return {"httpGet": {"path": path, "port": PORT, "scheme": "HTTPS"}, "timeoutSeconds": 15, **timing}
        return {"tcpSocket": {"port": PORT}, "timeoutSeconds": 5, **timing}

    return {
        "ports": [{"name": "https", "containerPort": PORT}],
        "startupProbe": probe("/livez", periodSeconds=1, failureThreshold=120),
        "livenessProbe": probe("/livez", periodSeconds=10, failureThreshold=8),
        "readinessProbe": probe("/readyz", periodSeconds=1, failureThreshold=3),
    }


def _component_files(name: ComponentName, files: PlaneFiles) -> set[str]:
    """Return the names of the files that a component reads: no key that it does not need."""
    own = {f"{name}.crt", f"{name}.key", f"{name}.kubeconfig", "ca.crt"}
    if name == "scheduler":
        return own & files.contents.keys()
    if name == "controller-manager":
        return (own | {"ca.key", "sa.key"}) & files.contents.keys()
    others = ("controller-manager.", "scheduler.", "coredns.", "admin.", "ca.key")
    return {entry for entry in files.contents if not entry.startswith(others)}


def _volume_name(name: str) -> str:
    return f"{name}-files"

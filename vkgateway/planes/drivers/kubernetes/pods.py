"""Pods of control planes: containers, files, probes and security settings (pure).

The pods meet the Pod Security level `restricted`.
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from vkgateway.api.quantity import Quantity, parse_quantity
from vkgateway.planes.components import PROGRAMS, component_arguments, component_environment
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE, FILES, MOUNT, PORT, pod_selector
from vkgateway.planes.drivers.kubernetes.parameters import Parameters
from vkgateway.planes.plane import CLIENT_PORTS, COMPONENTS, ComponentName, ControlPlaneSpec, Tuning
from vkgateway.planes.plane_files import PlaneFiles
from vkgateway.planes.pod_settings import ContainerResources, PodSettings

_USER: Final = 65532
"""User and group of all containers, those of distroless images."""
_REQUESTS: Mapping[ComponentName, Mapping[str, Quantity]] = {
    "apiserver": {"cpu": "50m", "memory": "256Mi"},
    "controller-manager": {"cpu": "20m", "memory": "64Mi"},
    "scheduler": {"cpu": "10m", "memory": "48Mi"},
}
_SERVING: Final = "/readyz?exclude=poststarthook/rbac/bootstrap-roles"
"""The default roles of a new cluster come a second later. The gateway needs none of them, and waits for them itself."""
_ALIVE: Final = "/livez?exclude=etcd"
"""Without etcd, a restart helps no API server: all tenants' servers would restart, and then wait in turn."""
_STOP_SECONDS: Final = 10
_SHARED_STOP_SECONDS: Final = 30
"""Of an API server among others, which completes running requests after the delay of its shutdown."""
_HEAP_SHARE: Final = Decimal("0.9")
"""Share of a memory limit at which Go collects garbage more often, so that the kernel does not end the program."""

_NO_SETTINGS: Final = PodSettings()


def control_plane_pod(
    plane: ControlPlaneSpec, *, files: PlaneFiles, version: str, parameters: Parameters
) -> dict[str, Any]:
    """Return the spec of the pod with all components of a control plane."""
    is_single = plane.pod.replicas == 1
    return {
        **pod_defaults(parameters, plane.pod),
        "terminationGracePeriodSeconds": _STOP_SECONDS if is_single else _SHARED_STOP_SECONDS,
        **({} if is_single else {"topologySpreadConstraints": spread_constraints(plane.cluster, CONTROL_PLANE)}),
        "containers": [
            _component_container(name, plane=plane, files=files, version=version, parameters=parameters)
            for name in COMPONENTS
        ],
        "volumes": [
            secret_volume(_volume_name(name), FILES, keys=sorted(_component_files(name, files))) for name in COMPONENTS
        ],
    }


def pod_defaults(parameters: Parameters, pod: PodSettings = _NO_SETTINGS) -> dict[str, Any]:
    """Return the fields that all pods of the driver share. Settings of a template add to the parameters."""
    priority = pod.priority_class_name or parameters.priority_class_name
    selector = {**parameters.node_selector, **pod.node_selector}
    tolerations = [*parameters.tolerations, *pod.tolerations]
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
    if priority:
        defaults["priorityClassName"] = priority
    if selector:
        defaults["nodeSelector"] = selector
    if tolerations:
        defaults["tolerations"] = msgspec.to_builtins(list(dict.fromkeys(tolerations)))
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
    resources = plane.tuning.get(name, Tuning()).resources
    environment = {**_go_limits(resources), **component_environment(name, plane=plane, files=files)}
    probes = _api_server_probes(plane) if name == "apiserver" else _client_probes(CLIENT_PORTS[name])
    return {
        "name": name,
        "image": parameters.component_image(name, version),
        "imagePullPolicy": "IfNotPresent",
        "command": [PROGRAMS[name]],
        "args": component_arguments(name, plane=plane, files=files),
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": msgspec.to_builtins(resources.with_default_requests(_REQUESTS[name])),
        "securityContext": container_security(),
        # The status of a container that fails shows its last lines, so reading them needs no right to logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": _volume_name(name), "mountPath": str(MOUNT), "readOnly": True}],
        **probes,
    }


def _go_limits(resources: ContainerResources) -> dict[str, str]:
    """Return what Go programs must know of their limits. Variables of a template take precedence."""
    found = {}
    if "memory" in resources.limits:
        found["GOMEMLIMIT"] = str(int(parse_quantity(resources.limits["memory"]) * _HEAP_SHARE))
    if "cpu" in resources.limits:
        found["GOMAXPROCS"] = str(max(1, math.ceil(parse_quantity(resources.limits["cpu"]))))
    return found


def spread_constraints(tenant: str, component: str) -> list[dict[str, Any]]:
    """Return the preference for replicas in different zones and on different nodes."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": pod_selector(tenant, component)},
            # While pods are replaced, the old ones do not count.
            "matchLabelKeys": ["pod-template-hash"],
        }
        for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
    ]


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
        "startupProbe": probe(_SERVING, periodSeconds=1, failureThreshold=120),
        "livenessProbe": probe(_ALIVE, periodSeconds=10, failureThreshold=8),
        "readinessProbe": probe(_SERVING, periodSeconds=1, failureThreshold=3),
    }


def _client_probes(port: int) -> dict[str, Any]:
    """Return the liveness probe of a client of the API server. It fails when the client cannot renew its lease."""
    probe = {"httpGet": {"path": "/healthz", "port": port, "scheme": "HTTPS"}, "timeoutSeconds": 15}
    return {"livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 8}}


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

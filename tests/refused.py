"""Pods that a tenant's policy refuses, one rule each: for the gateway's judgement, and for that of real API servers."""

from typing import Any, Final

Object = dict[str, Any]


def _container(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "busybox", **fields}


def _secured(context: Object, *names: str) -> Object:
    return {"containers": [_container(name, securityContext=context) for name in names or ("main",)]}


def _volume(**source: Any) -> Object:
    return {"volumes": [{"name": "data", **source}]}


_APP_ARMOR: Final = "container.apparmor.security.beta.kubernetes.io/main"
_ROOT_CA: Final = "vkgateway-root-ca.crt"

_NAME: Final = {"fieldPath": "metadata.name"}

ALLOWED: Final[dict[str, Object]] = {
    "hides-devices": {
        "containers": [
            _container(
                env=[
                    {"name": "NVIDIA_VISIBLE_DEVICES", "value": ""},
                    {"name": "AMD_VISIBLE_DEVICES"},
                    {"name": "ASCEND_VISIBLE_DEVICES", "value": "void"},
                    {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": ""},
                    {"name": "CUDA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": _NAME}},
                ]
            )
        ]
    },
}
"""Pods close to a refused one, which pass."""

BY_POLICY: Final[dict[str, Object]] = {
    "label": {"metadata": {"labels": {"vkgateway.io/tenant": "beta"}}},
    "label-of-a-gang": {"metadata": {"labels": {"vkgateway.io/gang": "a"}}},
    "label-of-a-part": {"metadata": {"labels": {"x.vkgateway.io/y": "a"}}},
    "annotation": {"metadata": {"annotations": {"vkgateway.io/borrowed": "false"}}},
    "resource-claim": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]},
    "user-namespace": {"hostUsers": False},
    "inline-csi": _volume(csi={"driver": "disks.example.org"}),
    "trust-bundle": _volume(projected={"sources": [{"clusterTrustBundle": {"name": "a", "path": "ca.crt"}}]}),
    "pod-certificate": _volume(
        projected={
            "sources": [
                {"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519", "credentialBundlePath": "x.pem"}}
            ]
        }
    ),
    "nfs": _volume(nfs={"server": "10.0.0.1", "path": "/"}),
    "device-variable": {"containers": [_container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])]},
    "device-variable-of-a-field": {
        "containers": [_container()],
        "initContainers": [
            _container(
                "init",
                env=[{"name": "A", "value": "1"}, {"name": "AMD_VISIBLE_DEVICES", "valueFrom": {"fieldRef": _NAME}}],
            )
        ],
    },
    "device-prefix": {"containers": [_container(envFrom=[{"prefix": "NVIDIA_", "configMapRef": {"name": "a"}}])]},
    "runtime-class": {"runtimeClassName": "kata"},
    "toleration": {"tolerations": [{"key": "vkgateway.io/drain", "operator": "Exists"}]},
    "root-ca-volume": _volume(configMap={"name": _ROOT_CA}),
    "root-ca-source": _volume(projected={"sources": [{"configMap": {"name": _ROOT_CA}}]}),
    "root-ca-env": {
        "containers": [
            _container(env=[{"name": "A", "valueFrom": {"configMapKeyRef": {"name": _ROOT_CA, "key": "ca.crt"}}}])
        ]
    },
    "root-ca-env-from": {
        "containers": [_container()],
        "initContainers": [_container("init", envFrom=[{"configMapRef": {"name": _ROOT_CA}}])],
    },
}
"""What any tenant is refused, whatever its level."""

BY_LEVEL_BASELINE: Final[dict[str, Object]] = {
    "host-network": {"hostNetwork": True},
    "host-pid-and-ipc": {"hostPID": True, "hostIPC": True},
    "host-path": _volume(hostPath={"path": "/"}),
    "host-port": {"containers": [_container(ports=[{"containerPort": 80, "hostPort": 80}])]},
    "host-probe": {"containers": [_container(livenessProbe={"httpGet": {"port": 80, "host": "10.0.0.1"}})]},
    "host-of-hook": {"containers": [_container(lifecycle={"preStop": {"httpGet": {"port": 80, "host": "10.0.0.1"}}})]},
    "privileged": _secured({"privileged": True}, "a", "b"),
    "privileged-init": {
        "containers": [_container()],
        "initContainers": [_container("init", securityContext={"privileged": True})],
    },
    "capability": _secured({"capabilities": {"add": ["NET_ADMIN"]}}),
    "proc-mount": _secured({"procMount": "Unmasked"}),
    "selinux-type": _secured({"seLinuxOptions": {"type": "spc_t"}}),
    "selinux-user": {"securityContext": {"seLinuxOptions": {"user": "u", "role": "r"}}},
    "seccomp": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "app-armor": _secured({"appArmorProfile": {"type": "Unconfined"}}),
    "sysctl": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "windows-host-process": {
        "hostNetwork": True,
        "os": {"name": "windows"},
        "securityContext": {"windowsOptions": {"hostProcess": True}, "runAsNonRoot": True},
    },
}
"""What level baseline refuses."""

BY_LEVEL_RESTRICTED: Final[dict[str, Object]] = {
    "plain": {},
    "root": _secured({"runAsUser": 0}),
    "not-non-root": _secured({"runAsNonRoot": False}, "a", "b"),
    "all-but-volumes": {
        **_secured(
            {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
                "runAsNonRoot": True,
                "seccompProfile": {"type": "RuntimeDefault"},
            }
        ),
        **_volume(nfs={"server": "10.0.0.1", "path": "/"}),
    },
}
"""What level restricted refuses besides."""


def pod_of(name: str, fields: Object, *, namespace: str = "default") -> Object:
    """Return a pod with the fields of a sample."""
    spec = {"containers": [_container()], **fields}
    metadata = spec.pop("metadata", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, **metadata},
        "spec": spec,
    }

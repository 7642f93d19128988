"""Command lines of API server, controller-manager and scheduler; Kubernetes 1.30 and later know every flag."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vkgateway.planes.plane import CLIENT_PORTS, ComponentName, ControlPlaneSpec, Tuning
from vkgateway.planes.plane_files import FRONT_PROXY_USER, PlaneFiles, has_admission_settings

PROGRAMS: Mapping[ComponentName, str] = {
    "apiserver": "kube-apiserver",
    "controller-manager": "kube-controller-manager",
    "scheduler": "kube-scheduler",
}
# Controllers without a purpose here: no cloud, no attachable volumes, no node CIDRs. Kubernetes 1.30 rejects unknown
# names, so names of later releases must not be in this list.
DISABLED_CONTROLLERS = (
    "cloud-node-lifecycle-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "service-lb-controller",
)
# Resources that change rarely and have few watchers. Each watch cache wakes twice a second even when idle, and there
# are some sixty. Without a cache, a watch goes to etcd. Releases ignore names that they do not know.
UNCACHED_RESOURCES = (
    "apiservices.apiregistration.k8s.io",
    "certificatesigningrequests.certificates.k8s.io",
    "clusterrolebindings.rbac.authorization.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
    "controllerrevisions.apps",
    "cronjobs.batch",
    "csidrivers.storage.k8s.io",
    "csinodes.storage.k8s.io",
    "csistoragecapacities.storage.k8s.io",
    "customresourcedefinitions.apiextensions.k8s.io",
    "deviceclasses.resource.k8s.io",
    "devicetaintrules.resource.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
    "horizontalpodautoscalers.autoscaling",
    "ingressclasses.networking.k8s.io",
    "ingresses.networking.k8s.io",
    "ipaddresses.networking.k8s.io",
    "limitranges",
    "mutatingadmissionpolicies.admissionregistration.k8s.io",
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io",
    "mutatingwebhookconfigurations.admissionregistration.k8s.io",
    "networkpolicies.networking.k8s.io",
    "persistentvolumes",
    "poddisruptionbudgets.policy",
    "podtemplates",
    "priorityclasses.scheduling.k8s.io",
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io",
    "replicationcontrollers",
    "resourceclaims.resource.k8s.io",
    "resourceclaimtemplates.resource.k8s.io",
    "resourcequotas",
    "resourceslices.resource.k8s.io",
    "rolebindings.rbac.authorization.k8s.io",
    "roles.rbac.authorization.k8s.io",
    "runtimeclasses.node.k8s.io",
    "servicecidrs.networking.k8s.io",
    "storageclasses.storage.k8s.io",
    "validatingadmissionpolicies.admissionregistration.k8s.io",
    "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "validatingwebhookconfigurations.admissionregistration.k8s.io",
    "volumeattachments.storage.k8s.io",
    "volumeattributesclasses.storage.k8s.io",
)
# The garbage collector starts when the heap has grown by half instead of doubled: 50 MB less memory, 2 ms more CPU time
# per pod.
_SMALL_HEAP = {"GOGC": "50"}
_NO_LAST_RELEASE = 1000

# Releases that serve MutatingAdmissionPolicy in this version disable it by default.
_BETA = "v1beta1"

# Feature gates to disable, by the minor releases that enable them: features that fail for an etcd user other than root,
# and features that a single API server does not need.
_DISABLED_GATES: Mapping[str, range] = {
    # etcd reports its version and progress to root only. Streaming lists would always fail. With the gate off the
    # server refuses them, and clients list and watch.
    "WatchList": range(30, _NO_LAST_RELEASE),
    # Watch caches count their keys every second to estimate the cost of lists, and wait in vain until they are current.
    "SizeBasedListCostEstimate": range(34, _NO_LAST_RELEASE),
    # Snapshots of lists stay until the watch cache drops their events or etcd compacts them. The server learns of a
    # compaction from a key that a tenant's etcd user must not read.
    "ListFromCacheSnapshot": range(34, _NO_LAST_RELEASE),
    # The server reads everything from etcd twice in ten minutes to detect a wrong cache.
    "DetectCacheInconsistency": range(34, _NO_LAST_RELEASE),
    # Leases by which several API servers of a cluster identify each other and the versions that they serve.
    "APIServerIdentity": range(30, _NO_LAST_RELEASE),
    "UnknownVersionInteroperabilityProxy": range(36, _NO_LAST_RELEASE),
}

# Flags whose value is a list of NAME=VALUE; a template overrides single names.
_LIST_FLAGS = frozenset({"feature-gates", "runtime-config"})

_Flags = dict[str, str | None]


def component_arguments(name: ComponentName, *, plane: ControlPlaneSpec, files: PlaneFiles) -> list[str]:
    """Return the command-line arguments of a component, after the program's name."""
    flags = _merge_flags(_FLAG_BUILDERS[name](plane, files), plane.tuning.get(name, Tuning()).flags)
    return _flag_arguments(flags)


def component_environment(name: ComponentName, *, plane: ControlPlaneSpec, files: PlaneFiles) -> dict[str, str]:
    """Return the environment of a component.

    Variables that start with `VKGATEWAY_` are read by no program. They are digests of files that the component reads
    only at start, so that a changed file changes the component's description and restarts it.
    """
    found = {**_SMALL_HEAP, **plane.tuning.get(name, Tuning()).env, "VKGATEWAY_TRUST": files.trust_digest()}
    if name == "apiserver" and has_admission_settings(plane):
        found["VKGATEWAY_ADMISSION"] = files.admission_digest()
    if name == "apiserver" and plane.egress_socket:
        found["VKGATEWAY_EGRESS"] = files.egress_digest()
    return found


def _merge_flags(ours: _Flags, wanted: Mapping[str, str | None]) -> _Flags:
    """Return the default flags, overridden by those of a template.

    The default feature gates differ by release. A template adds its own and need not repeat the default ones.
    """
    merged = {name: _merge_settings(ours.get(name), wanted[name]) for name in _LIST_FLAGS & wanted.keys()}
    return {**ours, **wanted, **merged}


def _merge_settings(ours: str | None, wanted: str | None) -> str | None:
    """Merge lists such as `A=true,B=false` by name; None for `wanted` removes the flag."""
    if wanted is None:
        return None
    entries = [entry.strip() for text in (ours, wanted) for entry in (text or "").split(",")]
    return ",".join({entry.partition("=")[0]: entry for entry in entries if entry}.values())


def _flag_arguments(flags: _Flags) -> list[str]:
    return [f"--{flag}={value}" for flag, value in flags.items() if value is not None]


def _api_server_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        **_shutdown_flags(plane),
        "advertise-address": plane.address,
        "bind-address": plane.bind_address or plane.address,
        "secure-port": str(plane.bind_port or plane.port),
        "service-cluster-ip-range": plane.service_cidr,
        "allow-privileged": "true",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "profiling": "false",
        # Without it, a stopping server waits a minute for its clients' watches to end.
        "shutdown-watch-termination-grace-period": "1s",
        # A template object has the `kubernetes` endpoints, so the server needs no lease and no address detection.
        "endpoint-reconciler-type": "none",
        **_etcd_flags(plane, files),
        **_feature_flags(plane, files),
        **_identity_flags(plane, files),
        **_authentication_flags(plane, files),
        **({"egress-selector-config-file": str(files.egress_path)} if plane.egress_socket else {}),
    }


def _shutdown_flags(plane: ControlPlaneSpec) -> _Flags:
    """Return the flags of an API server among others: it serves until no client connects to it any more."""
    return {"shutdown-delay-duration": "3s", "shutdown-send-retry-after": "true"} if plane.pod.replicas > 1 else {}


def _etcd_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        "etcd-servers": ",".join(plane.etcd_endpoints),
        "etcd-prefix": plane.etcd_prefix,
        "etcd-cafile": str(files.cert_path("etcd-ca")),
        "etcd-certfile": str(files.cert_path("etcd")),
        "etcd-keyfile": str(files.key_path("etcd")),
        # etcd compacts automatically for all clusters. A tenant's user may not read member status or defragment.
        "etcd-compaction-interval": "0",
        "etcd-db-metric-poll-interval": "0",
        "etcd-count-metric-poll-period": "0",
        "watch-cache-sizes": ",".join(f"{resource}#0" for resource in UNCACHED_RESOURCES),
    }


def _feature_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    """Return the flags that depend on the release, above all on how it gates new pods."""
    flags: _Flags = {"feature-gates": ",".join(_feature_gates(plane))}
    if has_admission_settings(plane):
        flags["admission-control-config-file"] = str(files.admission_path)
    if plane.policies_version == _BETA:
        flags["runtime-config"] = f"admissionregistration.k8s.io/{_BETA}=true"
    return flags


def _feature_gates(plane: ControlPlaneSpec) -> list[str]:
    """Return the feature gates to set, each only for releases in which it has an effect."""
    gates = [f"{gate}=false" for gate, releases in _DISABLED_GATES.items() if plane.minor_version in releases]
    if plane.policies_version == _BETA:
        gates.append("MutatingAdmissionPolicy=true")
    return gates


def _identity_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        "tls-cert-file": str(files.cert_path("apiserver")),
        "tls-private-key-file": str(files.key_path("apiserver")),
        "service-account-issuer": plane.token_issuer,
        "service-account-signing-key-file": str(files.key_path("sa")),
        "service-account-key-file": str(files.public_key_path),
        # A token lives as long as its pod spec requests, not a year: kubelets refresh mounted tokens.
        "service-account-extend-token-expiration": "false",
        "kubelet-certificate-authority": str(files.cert_path("kubelet-ca")),
        "kubelet-client-certificate": str(files.cert_path("kubelet-client")),
        "kubelet-client-key": str(files.key_path("kubelet-client")),
        "kubelet-preferred-address-types": "InternalIP",
        "proxy-client-cert-file": str(files.cert_path("front-proxy")),
        "proxy-client-key-file": str(files.key_path("front-proxy")),
        "enable-aggregator-routing": "true",
    }


def _authentication_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    if plane.has_anonymous_health:
        anonymous = {"authentication-config": str(files.authentication_path)}
    else:
        anonymous = {"anonymous-auth": "false"}
    return {
        **anonymous,
        "client-ca-file": str(files.cert_path("ca")),
        "requestheader-client-ca-file": str(files.cert_path("front-proxy-ca")),
        "requestheader-allowed-names": FRONT_PROXY_USER,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    }


def _controller_manager_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        **_client_flags(plane, files, "controller-manager"),
        "cluster-name": plane.cluster,
        "controllers": ",".join(["*", *(f"-{name}" for name in (*DISABLED_CONTROLLERS, *plane.controllers_off))]),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": str(files.key_path("sa")),
        "root-ca-file": str(files.cert_path("ca")),
        "cluster-signing-cert-file": str(files.cert_path("ca")),
        "cluster-signing-key-file": str(files.key_path("ca")),
    }


def _scheduler_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return _client_flags(plane, files, "scheduler")


def _client_flags(plane: ControlPlaneSpec, files: PlaneFiles, name: ComponentName) -> _Flags:
    """Return the flags of both clients. A single instance runs without leader election, which writes to etcd."""
    health: _Flags = {"secure-port": "0"}
    if plane.has_client_health:
        health = {"secure-port": str(CLIENT_PORTS[name]), "bind-address": "0.0.0.0"}  # noqa: S104 - kubelets probe it
    return {
        "kubeconfig": str(files.kubeconfig_path(name)),
        "leader-elect": "true" if plane.pod.replicas > 1 else "false",
        "profiling": "false",
        **health,
        "kube-api-qps": "300",
        "kube-api-burst": "500",
    }


_FLAG_BUILDERS: Mapping[ComponentName, Callable[[ControlPlaneSpec, PlaneFiles], _Flags]] = {
    "apiserver": _api_server_flags,
    "controller-manager": _controller_manager_flags,
    "scheduler": _scheduler_flags,
}

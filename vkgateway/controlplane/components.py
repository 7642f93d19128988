"""The command lines of API server, controller-manager and scheduler; every flag is known to 1.30 and later."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vkgateway.controlplane.plane import ComponentName, ControlPlaneSpec, Tuning
from vkgateway.controlplane.plane_files import FRONT_PROXY_USER, PlaneFiles, has_admission_settings

PROGRAMS: Mapping[ComponentName, str] = {
    "apiserver": "kube-apiserver",
    "controller-manager": "kube-controller-manager",
    "scheduler": "kube-scheduler",
}
# Controllers that have nothing to do without a cloud, without volumes that a machine attaches, or without
# machines whose addresses are handed out. Names that 1.30 does not know cannot stand here: it refuses them.
DISABLED_CONTROLLERS = (
    "cloud-node-lifecycle-controller",
    "node-ipam-controller",
    "node-route-controller",
    "persistentvolume-attach-detach-controller",
    "persistentvolume-expander-controller",
    "service-lb-controller",
)
# What changes seldom and has few watchers. A watch cache wakes up twice a second though nothing happens, for each of
# some sixty resources; without one a watch is etcd's own. Names that a release does not know do no harm.
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
# The collector starts when the heap has grown by half instead of doubled: 50 MB less, 2 ms of CPU a pod more.
_SMALL_HEAP = {"GOGC": "50"}
_NO_LAST_RELEASE = 1000

# Releases that have MutatingAdmissionPolicy in this version have it switched off.
_BETA = "v1beta1"

# Features that do not work for an etcd user who is not root, or that one server alone has no use for, by the releases
# that have them switched on.
_DISABLED_GATES: Mapping[str, range] = {
    # etcd tells version and progress to root only. Streaming lists would fail for good; refused outright, clients list
    # and watch the plain way.
    "WatchList": range(30, _NO_LAST_RELEASE),
    # Watch caches count their keys every second for an estimate of what lists cost, and wait in vain to catch up.
    "SizeBasedListCostEstimate": range(34, _NO_LAST_RELEASE),
    # Old states of lists are kept for as many events as a watch cache holds, or until etcd compacts them. That a server
    # learns from a key which it may not read, though it asks for it once a second.
    "ListFromCacheSnapshot": range(34, _NO_LAST_RELEASE),
    # Everything is read from etcd twice in ten minutes, to switch the snapshots off where the cache is wrong.
    "DetectCacheInconsistency": range(34, _NO_LAST_RELEASE),
    # Leases by which several servers of a cluster know each other, and what each of them serves.
    "APIServerIdentity": range(30, _NO_LAST_RELEASE),
    "UnknownVersionInteroperabilityProxy": range(36, _NO_LAST_RELEASE),
}

# Flags that hold a list of names, each with a value: a template's go over ours name by name.
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
    return found


def _merge_flags(ours: _Flags, wanted: Mapping[str, str | None]) -> _Flags:
    """Our flags with those of a template over them.

    What we switch on and off differs by release, so a template says what it wants besides, and need not repeat ours.
    """
    merged = {name: _merge_settings(ours.get(name), wanted[name]) for name in _LIST_FLAGS & wanted.keys()}
    return {**ours, **wanted, **merged}


def _merge_settings(ours: str | None, wanted: str | None) -> str | None:
    """Settings such as `A=true,B=false` with others over them by name; None takes all of them away."""
    if wanted is None:
        return None
    entries = [entry.strip() for text in (ours, wanted) for entry in (text or "").split(",")]
    return ",".join({entry.partition("=")[0]: entry for entry in entries if entry}.values())


def _flag_arguments(flags: _Flags) -> list[str]:
    return [f"--{flag}={value}" for flag, value in flags.items() if value is not None]


def _api_server_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        "advertise-address": plane.address,
        "bind-address": plane.bind_address or plane.address,
        "secure-port": str(plane.bind_port or plane.port),
        "service-cluster-ip-range": plane.service_cidr,
        "allow-privileged": "true",
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "profiling": "false",
        # Otherwise a server that is told to stop waits a minute for the watches of its clients to end.
        "shutdown-watch-termination-grace-period": "1s",
        # The `kubernetes` endpoints are an object of the template: no lease to renew, no address to guess.
        "endpoint-reconciler-type": "none",
        **_etcd_flags(plane, files),
        **_feature_flags(plane, files),
        **_identity_flags(plane, files),
        **_authentication_flags(files),
    }


def _etcd_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        "etcd-servers": ",".join(plane.etcd_endpoints),
        "etcd-prefix": plane.etcd_prefix,
        "etcd-cafile": str(files.cert_path("etcd-ca")),
        "etcd-certfile": str(files.cert_path("etcd")),
        "etcd-keyfile": str(files.key_path("etcd")),
        # etcd compacts by itself, for all clusters in it; member status and defragmentation are not ours to ask.
        "etcd-compaction-interval": "0",
        "etcd-db-metric-poll-interval": "0",
        "etcd-count-metric-poll-period": "0",
        "watch-cache-sizes": ",".join(f"{resource}#0" for resource in UNCACHED_RESOURCES),
    }


def _feature_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    """What differs between releases: above all, how pods are born gated."""
    flags: _Flags = {"feature-gates": ",".join(_feature_gates(plane))}
    if has_admission_settings(plane):
        flags["admission-control-config-file"] = str(files.admission_path)
    if plane.policies_version == _BETA:
        flags["runtime-config"] = f"admissionregistration.k8s.io/{_BETA}=true"
    return flags


def _feature_gates(plane: ControlPlaneSpec) -> list[str]:
    """What is switched, each gate only in releases that have it so that it matters."""
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
        # Tokens live as long as was asked for, not a year: whoever mounts them has them refreshed in time.
        "service-account-extend-token-expiration": "false",
        "kubelet-certificate-authority": str(files.cert_path("kubelet-ca")),
        "kubelet-client-certificate": str(files.cert_path("kubelet-client")),
        "kubelet-client-key": str(files.key_path("kubelet-client")),
        "kubelet-preferred-address-types": "InternalIP",
        "proxy-client-cert-file": str(files.cert_path("front-proxy")),
        "proxy-client-key-file": str(files.key_path("front-proxy")),
        "enable-aggregator-routing": "true",
    }


def _authentication_flags(files: PlaneFiles) -> _Flags:
    return {
        "client-ca-file": str(files.cert_path("ca")),
        "requestheader-client-ca-file": str(files.cert_path("front-proxy-ca")),
        "requestheader-allowed-names": FRONT_PROXY_USER,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
    }


def _controller_manager_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:
    return {
        **_client_flags(files, "controller-manager"),
        "cluster-name": plane.cluster,
        "controllers": ",".join(["*", *(f"-{name}" for name in (*DISABLED_CONTROLLERS, *plane.controllers_off))]),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": str(files.key_path("sa")),
        "root-ca-file": str(files.cert_path("ca")),
        "cluster-signing-cert-file": str(files.cert_path("ca")),
        "cluster-signing-key-file": str(files.key_path("ca")),
    }


def _scheduler_flags(plane: ControlPlaneSpec, files: PlaneFiles) -> _Flags:  # noqa: ARG001 - one signature for all three
    return _client_flags(files, "scheduler")


def _client_flags(files: PlaneFiles, name: str) -> _Flags:
    """What the two clients have in common: one of each runs, so none is elected; nobody asks them over HTTP."""
    return {
        "kubeconfig": str(files.kubeconfig_path(name)),
        "leader-elect": "false",
        "profiling": "false",
        "secure-port": "0",
        "kube-api-qps": "300",
        "kube-api-burst": "500",
    }


_FLAG_BUILDERS: Mapping[ComponentName, Callable[[ControlPlaneSpec, PlaneFiles], _Flags]] = {
    "apiserver": _api_server_flags,
    "controller-manager": _controller_manager_flags,
    "scheduler": _scheduler_flags,
}

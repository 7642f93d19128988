"""Spec of one control plane, of a tenant or the compute cluster: names, addresses, flags that differ."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from vkgateway.api.names import host_in_url, is_ip_address, tenant_etcd_prefix
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION, PodSecurity
from vkgateway.planes.etcd.tenancy import COMPUTE_PREFIX, COMPUTE_USER, tenant_user
from vkgateway.planes.pod_settings import ContainerResources, PodSettings
from vkgateway.planes.publication import Publication

ComponentName = Literal["apiserver", "controller-manager", "scheduler"]
COMPONENTS: tuple[ComponentName, ...] = get_args(ComponentName)
CLIENT_PORTS: Mapping[ComponentName, int] = {"controller-manager": 10257, "scheduler": 10259}
"""Ports at which the clients of the API server serve HTTPS, if they do."""

CLUSTER_DOMAIN = "cluster.local"
SERVICE_CIDR = "10.96.0.0/16"
# Prefix of the common name that a tenant's API server has at the kubelet endpoint; the tenant's name follows.
TENANT_KUBELET_USER = "vkgateway:tenant:"
# An unreachable compute cluster makes virtual nodes NotReady. Its pods may still run, so no controller may delete the
# tenant pods. A separate controller since 1.29 (KEP-3902); before, part of node-lifecycle-controller.
TENANT_CONTROLLERS_OFF = ("taint-eviction-controller",)
POLICIES_SINCE = 34
"""First minor release whose API server gates pods with a MutatingAdmissionPolicy (KEP-3962: beta in 1.34, enabled by
default from 1.36).
"""
_POLICIES_STABLE_SINCE = 36

Flags = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a template changes in one component.

    `flags` are without dashes; None removes a flag. `timer_slack` is the maximum delay of timers in seconds, None for
    the default; only the process driver uses it. Only drivers with containers use `resources`.
    """

    flags: Flags = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    timer_slack: float | None = None
    resources: ContainerResources = field(default_factory=ContainerResources)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneSpec:
    """One control plane: the source of its command lines, certificates and kubeconfigs.

    `cluster` is the cluster's name in kubeconfigs. Clients reach the API server at `address` and `port`. It listens at
    `bind_address` and `bind_port`, or at the former if these are not set. Controller-manager and scheduler reach it at
    `local_url`, or like all clients if that is empty. `kubelet_user` and `kubelet_groups` identify the API server to
    kubelets. `controllers_off` are disabled in addition to controllers without a purpose. `pod_security` is the Pod
    Security level of namespaces without such labels. With `has_anonymous_health`, which needs Kubernetes 1.32, probes
    of the API server need no credentials. With `has_client_health`, controller-manager and scheduler answer probes at
    `CLIENT_PORTS` of all addresses. Clients at addresses in `client_ranges`, which are no pods, may connect. The API
    server connects to Services, nodes and pods through a proxy at `egress_socket`, and to webhooks by URL through one
    at `webhook_socket`, if these are set; a relative path begins at its working directory.
    """

    cluster: str
    address: str
    port: int
    bind_address: str = ""
    bind_port: int = 0
    local_url: str = ""
    has_anonymous_health: bool = False
    has_client_health: bool = False
    etcd_endpoints: tuple[str, ...]
    etcd_user: str
    etcd_prefix: str
    kubelet_user: str
    kubelet_groups: tuple[str, ...] = ()
    subject_alt_names: tuple[str, ...] = ()
    service_cidr: str = SERVICE_CIDR
    kubernetes_version: str = DEFAULT_KUBERNETES_VERSION
    cluster_domain: str = CLUSTER_DOMAIN
    controllers_off: tuple[str, ...] = ()
    webhooks_at: str = ""
    pod_security: PodSecurity = "privileged"
    tuning: Mapping[ComponentName, Tuning] = field(default_factory=dict)
    pod: PodSettings = field(default_factory=PodSettings)
    publication: Publication = field(default_factory=Publication)
    client_ranges: tuple[str, ...] = ()
    egress_socket: str = ""
    webhook_socket: str = ""

    @property
    def minor_version(self) -> int:
        """Minor release: 36 of 1.36.3."""
        return int(self.kubernetes_version.split(".")[1])

    @property
    def policies_version(self) -> str:
        """Version in which its API server serves MutatingAdmissionPolicy: `v1`, `v1beta1`, or "" before 1.34."""
        if self.minor_version < POLICIES_SINCE:
            return ""
        return "v1" if self.minor_version >= _POLICIES_STABLE_SINCE else "v1beta1"

    @property
    def server_url(self) -> str:
        """URL of the API server, `https://HOST:PORT`."""
        return f"https://{host_in_url(self.address)}:{self.port}"

    @property
    def client_url(self) -> str:
        """URL of the API server in kubeconfigs for users."""
        return self.publication.url or self.server_url

    @property
    def token_issuer(self) -> str:
        """Issuer of the cluster's service account tokens."""
        return f"https://kubernetes.default.svc.{self.cluster_domain}"

    @property
    def server_dns(self) -> tuple[str, ...]:
        """DNS names of the API server."""
        service = "kubernetes.default.svc"
        own = ("kubernetes", "kubernetes.default", service, f"{service}.{self.cluster_domain}", "localhost")
        return own + tuple(name for name in self.added_names if not is_ip_address(name))

    @property
    def server_ips(self) -> tuple[str, ...]:
        """IP addresses of the API server, including the first of the Service range (`kubernetes`)."""
        service = next(ipaddress.ip_network(self.service_cidr).hosts())
        own = (self.address, "127.0.0.1", str(service))
        return tuple(dict.fromkeys(own + tuple(name for name in self.added_names if is_ip_address(name))))

    @property
    def added_names(self) -> tuple[str, ...]:
        """DNS names and IP addresses that certificates contain in addition to those of every cluster."""
        return tuple(dict.fromkeys(_canonical(name) for name in (*self.subject_alt_names, *self.publication.names)))


def _canonical(name: str) -> str:
    """Return an IP address as certificates have it: IPv6 addresses have several forms."""
    return str(ipaddress.ip_address(name)) if is_ip_address(name) else name


def tenant_plane_spec(
    tenant: str,
    *,
    address: str,
    port: int,
    etcd_endpoints: tuple[str, ...],
    subject_alt_names: tuple[str, ...] = (),
    service_cidr: str = SERVICE_CIDR,
    kubernetes_version: str = DEFAULT_KUBERNETES_VERSION,
    webhooks_at: str = "",
    pod_security: PodSecurity = "privileged",
    tuning: Mapping[ComponentName, Tuning] | None = None,
    pod: PodSettings | None = None,
    publication: Publication | None = None,
    client_ranges: tuple[str, ...] = (),
) -> ControlPlaneSpec:
    """Return the spec of a tenant's control plane.

    `webhooks_at` is HOST:PORT of the gateway's webhook; releases that gate pods by policy do not call it.
    """
    plane = ControlPlaneSpec(
        cluster=tenant,
        address=address,
        port=port,
        etcd_endpoints=etcd_endpoints,
        etcd_user=tenant_user(tenant),
        etcd_prefix=tenant_etcd_prefix(tenant),
        kubelet_user=f"{TENANT_KUBELET_USER}{tenant}",
        subject_alt_names=subject_alt_names,
        service_cidr=service_cidr,
        kubernetes_version=kubernetes_version,
        controllers_off=TENANT_CONTROLLERS_OFF,
        pod_security=pod_security,
        tuning=tuning or {},
        pod=pod or PodSettings(),
        publication=publication or Publication(),
        client_ranges=client_ranges,
    )
    return plane if plane.policies_version else replace(plane, webhooks_at=webhooks_at)


def compute_plane_spec(
    *,
    address: str,
    port: int,
    etcd_endpoints: tuple[str, ...],
    service_cidr: str = SERVICE_CIDR,
    kubernetes_version: str = DEFAULT_KUBERNETES_VERSION,
    tuning: Mapping[ComponentName, Tuning] | None = None,
) -> ControlPlaneSpec:
    """Return the spec of the embedded compute cluster's control plane; its own CA signs its kubelets' certificates."""
    return ControlPlaneSpec(
        cluster="compute",
        address=address,
        port=port,
        etcd_endpoints=etcd_endpoints,
        etcd_user=COMPUTE_USER,
        etcd_prefix=COMPUTE_PREFIX,
        kubelet_user="kube-apiserver-kubelet-client",
        kubelet_groups=("system:masters",),
        service_cidr=service_cidr,
        kubernetes_version=kubernetes_version,
        tuning=tuning or {},
    )

"""The description of one control plane, tenant's or compute's: names, addresses, flags that differ."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from vkgateway.controlplane.etcd.tenancy import COMPUTE_PREFIX, COMPUTE_USER, tenant_user
from vkgateway.model.api import DEFAULT_KUBERNETES_VERSION, PodSecurity
from vkgateway.model.names import tenant_etcd_prefix

ComponentName = Literal["apiserver", "controller-manager", "scheduler"]
COMPONENTS: tuple[ComponentName, ...] = get_args(ComponentName)

CLUSTER_DOMAIN = "cluster.local"
SERVICE_CIDR = "10.96.0.0/16"
# The common name of a tenant's API server at the gateway's kubelet endpoint starts so; the tenant's name follows.
TENANT_KUBELET_USER = "vkgateway:tenant:"
# A compute cluster that is away makes virtual nodes NotReady. Its pods may well go on, so nothing may delete them
# above. On its own since 1.29 (KEP-3902); before, it was part of node-lifecycle-controller.
TENANT_CONTROLLERS_OFF = ("taint-eviction-controller",)
POLICIES_SINCE = 34
"""The first minor release whose API server can gate pods itself, by a MutatingAdmissionPolicy (KEP-3962: beta in 1.34,
on by itself from 1.36)."""
_POLICIES_STABLE_SINCE = 36

Flags = Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What a template changes of one component: flags without dashes (None takes one away), environment, and the
    seconds by which its timers may be late (None: what is usual for that component).
    """

    flags: Flags = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    timer_slack: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneSpec:
    """One control plane: what its processes, certificates and kubeconfigs are made from.

    `cluster` is the cluster's name in kubeconfigs. Clients reach the API server at `address` and `port`; it listens at
    `bind_address` and `bind_port` if these are set, else there, too. `kubelet_user` and `kubelet_groups` identify the
    API server to kubelets. `controllers_off` are controllers that must not run, besides those without a purpose.
    `pod_security` is the Pod Security level of namespaces without such labels.
    """

    cluster: str
    address: str
    port: int
    bind_address: str = ""
    bind_port: int = 0
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

    @property
    def minor_version(self) -> int:
        """The release's second number: 36 of 1.36.3."""
        return int(self.kubernetes_version.split(".")[1])

    @property
    def policies_version(self) -> str:
        """The version in which its API server has MutatingAdmissionPolicy, `v1` or `v1beta1`; before 1.34 none, ""."""
        if self.minor_version < POLICIES_SINCE:
            return ""
        return "v1" if self.minor_version >= _POLICIES_STABLE_SINCE else "v1beta1"

    @property
    def server_url(self) -> str:
        """The API server's address, `https://HOST:PORT`."""
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"https://{host}:{self.port}"

    @property
    def token_issuer(self) -> str:
        """Who the cluster's service account tokens say they are from."""
        return f"https://kubernetes.default.svc.{self.cluster_domain}"

    @property
    def server_dns(self) -> tuple[str, ...]:
        """The names by which the API server may be called."""
        service = "kubernetes.default.svc"
        own = ("kubernetes", "kubernetes.default", service, f"{service}.{self.cluster_domain}", "localhost")
        return own + tuple(name for name in self.subject_alt_names if not _is_ip(name))

    @property
    def server_ips(self) -> tuple[str, ...]:
        """The addresses at which it may be called, the first of the service range (`kubernetes`) among them."""
        service = next(ipaddress.ip_network(self.service_cidr).hosts())
        own = (self.address, "127.0.0.1", str(service))
        return tuple(dict.fromkeys(own + tuple(name for name in self.subject_alt_names if _is_ip(name))))


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
) -> ControlPlaneSpec:
    """Describe a tenant's control plane. `webhooks_at` is the gateway's endpoint, which new releases never call so."""
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
    )
    return plane if plane.policies_version else replace(plane, webhooks_at=webhooks_at)


def compute_plane_spec(
    *,
    address: str,
    port: int,
    etcd_endpoints: tuple[str, ...],
    subject_alt_names: tuple[str, ...] = (),
    service_cidr: str = SERVICE_CIDR,
    kubernetes_version: str = DEFAULT_KUBERNETES_VERSION,
    tuning: Mapping[ComponentName, Tuning] | None = None,
) -> ControlPlaneSpec:
    """Describe the embedded compute cluster's control plane; its kubelets trust its own authority."""
    return ControlPlaneSpec(
        cluster="compute",
        address=address,
        port=port,
        etcd_endpoints=etcd_endpoints,
        etcd_user=COMPUTE_USER,
        etcd_prefix=COMPUTE_PREFIX,
        kubelet_user="kube-apiserver-kubelet-client",
        kubelet_groups=("system:masters",),
        subject_alt_names=subject_alt_names,
        service_cidr=service_cidr,
        kubernetes_version=kubernetes_version,
        tuning=tuning or {},
    )


def _is_ip(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

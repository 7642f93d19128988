"""The files that the components of a control plane read: certificates, keys, kubeconfigs, admission settings (pure).

A driver decides where the files are: in a directory of this machine, or in a Secret that pods mount.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vkgateway.api.types import PodSecurity
from vkgateway.kube import kubeconfig
from vkgateway.planes.credentials import ADMIN_USER, Credentials
from vkgateway.planes.pki import (
    Authority,
    KeyPair,
    alternative_names,
    cert_fingerprint,
    common_name,
    needs_renewal,
)
from vkgateway.planes.plane import ControlPlaneSpec

FRONT_PROXY_USER = "front-proxy-client"
COREDNS = "coredns"
_ADMISSION = "admission.yaml"
_AUTHENTICATION = "authentication.yaml"
_EGRESS = "egress.yaml"
_PUBLIC_KEY = "sa.pub"
_KUBELET_CLIENT = "kubelet-client"
_PREVIOUS_KUBELET_CLIENT = "kubelet-client-before"
_WEBHOOKS = "webhooks"
_SECRET_SUFFIXES = (".key", ".kubeconfig")
_USERS = {
    "controller-manager": "system:kube-controller-manager",
    "scheduler": "system:kube-scheduler",
    COREDNS: "system:coredns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """The authorities outside a tenant that sign certificates of its API server: for etcd and for kubelets."""

    etcd: Authority
    kubelet: Authority


@dataclass(frozen=True, slots=True)
class PlaneFiles:
    """Files of one control plane: the directory in which its components see them, and the content of each by name."""

    directory: Path
    contents: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def cert_path(self, name: str) -> Path:
        """Return the certificate of `ca`, `front-proxy-ca`, `etcd-ca`, `kubelet-ca` or a key pair."""
        return self.directory / _cert_name(name)

    def key_path(self, name: str) -> Path:
        """Return the private key of a key pair."""
        return self.directory / _key_name(name)

    def kubeconfig_path(self, name: str) -> Path:
        """Return the kubeconfig of `admin`, `controller-manager`, `scheduler`, `coredns` or `webhooks`."""
        return self.directory / _kubeconfig_name(name)

    @property
    def public_key_path(self) -> Path:
        """Public key that verifies service account tokens."""
        return self.directory / _PUBLIC_KEY

    @property
    def admission_path(self) -> Path:
        """Settings of the API server's admission plugins."""
        return self.directory / _ADMISSION

    @property
    def authentication_path(self) -> Path:
        """Settings of the API server's authentication."""
        return self.directory / _AUTHENTICATION

    @property
    def egress_path(self) -> Path:
        """Settings of the API server's connections to other servers."""
        return self.directory / _EGRESS

    def has_kubeconfig(self, name: str) -> bool:
        """Return whether the kubeconfig of a user was written."""
        return _kubeconfig_name(name) in self.contents

    def trust_digest(self) -> str:
        """Return a digest of the authorities that the components trust. Components read them only at start."""
        names = ("ca.crt", "front-proxy-ca.crt", "etcd-ca.crt", "kubelet-ca.crt", _PUBLIC_KEY)
        return _short_digest(b"".join(self.contents[name] for name in names))

    def admission_digest(self) -> str:
        """Return a digest of the admission settings. The API server reads them only at start."""
        return _short_digest(self.contents[_ADMISSION])

    def egress_digest(self) -> str:
        """Return a digest of the settings of connections. The API server reads them only at start."""
        return _short_digest(self.contents[_EGRESS])

    def kubelet_clients(self) -> frozenset[str]:
        """Return the fingerprints of the client certificates that the API server may present to kubelets.

        They include the previous certificate, since a running server reads a new one only after some minutes. A broken
        certificate counts as missing.
        """
        found = set()
        for name in (_KUBELET_CLIENT, _PREVIOUS_KUBELET_CLIENT):
            with contextlib.suppress(KeyError, ValueError):
                found.add(cert_fingerprint(self.contents[_cert_name(name)]))
        return frozenset(found)


def is_secret(name: str) -> bool:
    """Return whether a file holds a private key."""
    return name.endswith(_SECRET_SUFFIXES)


def render_plane_files(
    plane: ControlPlaneSpec,
    *,
    credentials: Credentials,
    authorities: Authorities,
    current: PlaneFiles,
    now: datetime.datetime,
) -> PlaneFiles:
    """Return all files of a control plane, in the order in which they must be written.

    Certificates in `current` stay while they fit. Missing, broken, expiring and changed ones are issued again; the
    components load those at run time. A new authority changes `PlaneFiles.trust_digest`, which restarts components.
    """
    files: dict[str, bytes] = {
        **_pair_files("ca", credentials.ca.key_pair),
        _key_name("sa"): credentials.signing_key.private_pem,
        _PUBLIC_KEY: credentials.signing_key.public_pem,
        _cert_name("front-proxy-ca"): credentials.front_proxy_ca.cert_pem,
        _cert_name("etcd-ca"): authorities.etcd.cert_pem,
        _cert_name("kubelet-ca"): authorities.kubelet.cert_pem,
    }
    for wanted in _certificate_specs(plane, credentials=credentials, authorities=authorities):
        files |= wanted.ensure_current(current.contents, now=now)
    for name, user in _USERS.items():
        server = plane.server_url if name == COREDNS else plane.local_url or plane.server_url
        files[_kubeconfig_name(name)] = _render_kubeconfig(current, name, plane=plane, user=user, server=server)
    if has_admission_settings(plane):
        files |= _render_admission(current, plane)
    if plane.has_anonymous_health:
        files[_AUTHENTICATION] = _render_authentication()
    if plane.egress_socket:
        files[_EGRESS] = _render_egress({"cluster": plane.egress_socket, "controlplane": plane.webhook_socket})
    files[_kubeconfig_name("admin")] = kubeconfig.dump(admin_kubeconfig(plane, credentials=credentials)).encode()
    return PlaneFiles(current.directory, files)


def admin_kubeconfig(plane: ControlPlaneSpec, *, credentials: Credentials) -> dict[str, Any]:
    """Return the kubeconfig of the cluster's admin, with certificates inline, for use elsewhere."""
    admin = credentials.admin
    return kubeconfig.build_document(
        plane.cluster,
        server=plane.client_url,
        ca=credentials.ca.cert_pem,
        cert=admin.cert_pem,
        key=admin.key_pem,
        user=f"{plane.cluster}-{ADMIN_USER}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CertificateSpec:
    """A certificate that a control plane needs."""

    name: str
    authority: Authority
    cn: str
    organizations: Sequence[str] = ()
    dns: Sequence[str] = ()
    ips: Sequence[str] = ()
    server: bool = False
    previous_name: str = ""
    """Name under which a renewal keeps the previous certificate, without its key; empty if it keeps none."""

    def ensure_current(self, contents: Mapping[str, bytes], *, now: datetime.datetime) -> dict[str, bytes]:
        """Return the files of the certificate: those in `contents` if they fit, else new ones."""
        if self._is_current(contents, now=now):
            names = (_key_name(self.name), _cert_name(self.name))
            return {**self._previous_files(contents, self.previous_name), **{name: contents[name] for name in names}}
        previous = self._previous_files(contents, self.previous_name)
        if self._is_own(contents.get(_cert_name(self.name), b"")):
            previous = self._previous_files(contents, self.name)
        return {**previous, **_pair_files(self.name, self._issue_pair(now=now))}

    def _previous_files(self, contents: Mapping[str, bytes], source: str) -> dict[str, bytes]:
        """Return the file of the previous certificate, taken from the certificate `source`."""
        if not self.previous_name or _cert_name(source) not in contents:
            return {}
        return {_cert_name(self.previous_name): contents[_cert_name(source)]}

    def _is_own(self, cert: bytes) -> bool:
        """Return whether the authority signed a certificate for the same user. Any other was never in use."""
        try:
            return self.authority.has_signed(cert) and common_name(cert) == self.cn
        except ValueError:
            return False

    def _issue_pair(self, *, now: datetime.datetime) -> KeyPair:
        return self.authority.issue(
            self.cn,
            organizations=self.organizations,
            dns=self.dns,
            ips=self.ips,
            server=self.server,
            client=not self.server,
            now=now,
        )

    def _is_current(self, contents: Mapping[str, bytes], *, now: datetime.datetime) -> bool:
        try:
            cert = contents[_cert_name(self.name)]
            key = load_pem_private_key(contents[_key_name(self.name)], password=None)
            return (
                x509.load_pem_x509_certificate(cert).public_key() == key.public_key()
                and self.authority.has_signed(cert)
                and not needs_renewal(cert, now=now)
                and common_name(cert) == self.cn
                and alternative_names(cert) == {*self.dns, *self.ips}
            )
        except (KeyError, ValueError, TypeError):
            return False


def _certificate_specs(
    plane: ControlPlaneSpec, *, credentials: Credentials, authorities: Authorities
) -> list[_CertificateSpec]:
    return [
        _CertificateSpec(
            name="apiserver",
            authority=credentials.ca,
            cn="kube-apiserver",
            dns=plane.server_dns,
            ips=plane.server_ips,
            server=True,
        ),
        _CertificateSpec(name="etcd", authority=authorities.etcd, cn=plane.etcd_user),
        _CertificateSpec(
            name=_KUBELET_CLIENT,
            authority=authorities.kubelet,
            cn=plane.kubelet_user,
            organizations=plane.kubelet_groups,
            previous_name=_PREVIOUS_KUBELET_CLIENT,
        ),
        _CertificateSpec(name="front-proxy", authority=credentials.front_proxy_ca, cn=FRONT_PROXY_USER),
        *(_CertificateSpec(name=name, authority=credentials.ca, cn=user) for name, user in _USERS.items()),
    ]


def _render_kubeconfig(files: PlaneFiles, name: str, *, plane: ControlPlaneSpec, user: str, server: str) -> bytes:
    """Refer to certificate files instead of including them: client-go reads a file again when it changes."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": plane.cluster,
                "cluster": {"server": server, "certificate-authority": str(files.cert_path("ca"))},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {"client-certificate": str(files.cert_path(name)), "client-key": str(files.key_path(name))},
            }
        ],
        "contexts": [{"name": plane.cluster, "context": {"cluster": plane.cluster, "user": user}}],
        "current-context": plane.cluster,
    }
    return yaml.safe_dump(document).encode()


def has_admission_settings(plane: ControlPlaneSpec) -> bool:
    """Return whether the API server needs settings of admission plugins."""
    return bool(plane.webhooks_at) or plane.pod_security != "privileged"


def _render_admission(files: PlaneFiles, plane: ControlPlaneSpec) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    plugins = []
    if plane.pod_security != "privileged":
        plugins.append({"name": "PodSecurity", "configuration": _pod_security_settings(plane.pod_security)})
    if plane.webhooks_at:
        found[_kubeconfig_name(_WEBHOOKS)] = _render_webhook_users(files, plane)
        plugins.append({"name": "MutatingAdmissionWebhook", "configuration": _webhook_settings(files)})
    document = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins}
    return {**found, _ADMISSION: yaml.safe_dump(document).encode()}


def _render_authentication() -> bytes:
    """Return settings that admit anonymous requests, such as a kubelet's probes, to the health endpoints only.

    https://kubernetes.io/docs/reference/access-authn-authz/authentication/#anonymous-authenticator-configuration
    """
    paths = [{"path": path} for path in ("/livez", "/readyz", "/healthz")]
    document = {
        "apiVersion": "apiserver.config.k8s.io/v1beta1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": True, "conditions": paths},
    }
    return yaml.safe_dump(document).encode()


def _render_egress(sockets: Mapping[str, str]) -> bytes:
    """Return settings that lead connections through proxies, by their type; those without a socket are direct.

    `cluster` is to Services, nodes and pods, and `controlplane` to webhooks by URL: those of admins, and those for
    authentication, authorization, audit and traces in flags of a template.
    https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/
    """
    selections = [
        {"name": name, "connection": {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": socket}}}}
        for name, socket in sockets.items()
        if socket
    ]
    document = {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": selections,
    }
    return yaml.safe_dump(document).encode()


def _pod_security_settings(level: PodSecurity) -> dict[str, Any]:
    """Return the default level of namespaces: enforced for pods, a warning for workloads.

    Labels of a namespace override it, so the tenant's admission policy enforces the level everywhere.
    https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-admission-controller/
    """
    modes = ("enforce", "warn")
    defaults = dict.fromkeys(modes, level) | {f"{mode}-version": "latest" for mode in modes}
    return {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": defaults,
    }


def _render_webhook_users(files: PlaneFiles, plane: ControlPlaneSpec) -> bytes:
    """Return the kubeconfig with which the API server authenticates to the gateway's webhook, and to no other host.

    A tenant may register other webhooks at that host. They can request no more than the tenant's kubectl can.
    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#authenticate-apiservers
    """
    user = {
        "client-certificate": str(files.cert_path(_KUBELET_CLIENT)),
        "client-key": str(files.key_path(_KUBELET_CLIENT)),
    }
    users = {"apiVersion": "v1", "kind": "Config", "users": [{"name": plane.webhooks_at, "user": user}]}
    return yaml.safe_dump(users).encode()


def _webhook_settings(files: PlaneFiles) -> dict[str, Any]:
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(files.kubeconfig_path(_WEBHOOKS)),
    }


def _pair_files(name: str, pair: KeyPair) -> dict[str, bytes]:
    """Return the files of a key pair; the key is first, so that no certificate is without one."""
    return {_key_name(name): pair.key_pem, _cert_name(name): pair.cert_pem}


def _cert_name(name: str) -> str:
    return f"{name}.crt"


def _key_name(name: str) -> str:
    return f"{name}.key"


def _kubeconfig_name(name: str) -> str:
    return f"{name}.kubeconfig"


def _short_digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]

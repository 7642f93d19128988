"""The files that a control plane's processes read, written from its credentials; all of them can be rebuilt."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vkgateway.controlplane.atomic_files import SECRET_MODE, write_file
from vkgateway.controlplane.credentials import ADMIN_USER, Credentials
from vkgateway.controlplane.pki import (
    Authority,
    KeyPair,
    alternative_names,
    cert_fingerprint,
    common_name,
    needs_renewal,
)
from vkgateway.controlplane.plane import ControlPlaneSpec
from vkgateway.kube import kubeconfig
from vkgateway.model.api import PodSecurity

FRONT_PROXY_USER = "front-proxy-client"
_KUBELET_CLIENT = "kubelet-client"
_PREVIOUS = "before"
_WEBHOOKS = "webhooks"
COREDNS = "coredns"
_USERS = {
    "controller-manager": "system:kube-controller-manager",
    "scheduler": "system:kube-scheduler",
    COREDNS: "system:coredns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorities:
    """Who signs what the API server shows to others: its etcd certificate, its certificate for kubelets."""

    etcd: Authority
    kubelet: Authority


@dataclass(frozen=True, slots=True)
class PlaneFiles:
    """Where the files lie; `name` is what `KeyPair.write` and the properties below put into `directory`."""

    directory: Path

    def cert_path(self, name: str) -> Path:
        """Return the certificate file: of `ca`, `front-proxy-ca`, `etcd-ca`, `kubelet-ca`, or of a pair."""
        return self.directory / f"{name}.crt"

    def key_path(self, name: str) -> Path:
        """Return the private key file of a pair."""
        return self.directory / f"{name}.key"

    def trust_digest(self) -> str:
        """Return a digest of whom the processes trust: that they read once, when they start."""
        names = ("ca.crt", "front-proxy-ca.crt", "etcd-ca.crt", "kubelet-ca.crt", "sa.pub")
        content = b"".join((self.directory / name).read_bytes() for name in names)
        return hashlib.sha256(content).hexdigest()[:16]

    def kubelet_clients(self) -> frozenset[str]:
        """Return the fingerprints of the certificates by which the API server may call kubelets.

        The one before counts as well: a server that runs reads a new one only after some minutes. A broken file is as
        good as none.
        """
        found = set()
        for file in (self.cert_path(_KUBELET_CLIENT), self.cert_path(f"{_KUBELET_CLIENT}-{_PREVIOUS}")):
            with contextlib.suppress(FileNotFoundError, ValueError):
                found.add(cert_fingerprint(file.read_bytes()))
        return frozenset(found)

    def kubeconfig_path(self, name: str) -> Path:
        """Return the kubeconfig of `admin`, `controller-manager`, `scheduler`, `coredns` or `webhooks`."""
        return self.directory / f"{name}.kubeconfig"

    @property
    def admission_path(self) -> Path:
        """Return the API server's settings of admission plugins."""
        return self.directory / "admission.yaml"

    def admission_digest(self) -> str:
        """Return a digest of these settings, which the API server reads once, when it starts."""
        return hashlib.sha256(self.admission_path.read_bytes()).hexdigest()[:16]


def write_plane_files(
    directory: Path,
    *,
    plane: ControlPlaneSpec,
    credentials: Credentials,
    authorities: Authorities,
    now: datetime.datetime,
) -> PlaneFiles:
    """Bring the folder up to date: certificates that are missing, broken, ending or no longer fit are issued.

    What fits is left as it is. The processes notice new certificates by themselves and go on; new authorities
    start them anew, since `PlaneFiles.trust_digest` is part of their description.
    """
    files = PlaneFiles(directory)
    credentials.ca.write(directory, "ca")
    credentials.signing_key.write(directory, "sa")
    for name, authority in (
        ("front-proxy-ca", credentials.front_proxy_ca),
        ("etcd-ca", authorities.etcd),
        ("kubelet-ca", authorities.kubelet),
    ):
        write_file(files.cert_path(name), authority.cert_pem)
    for wanted in _certificate_specs(plane, credentials=credentials, authorities=authorities):
        wanted.ensure_current(files, now=now)
    for name, user in _USERS.items():
        _write_kubeconfig(files, name, plane=plane, user=user)
    if has_admission_settings(plane):
        _write_admission(files, plane)
    kubeconfig.write_file(files.kubeconfig_path("admin"), admin_kubeconfig(plane, credentials=credentials))
    return files


def admin_kubeconfig(plane: ControlPlaneSpec, *, credentials: Credentials) -> dict[str, Any]:
    """Make the kubeconfig of the cluster's admin, certificates inline: to be handed out."""
    admin = credentials.admin
    return kubeconfig.build_document(
        plane.cluster,
        server=plane.server_url,
        ca=credentials.ca.cert_pem,
        cert=admin.cert_pem,
        key=admin.key_pem,
        user=f"{plane.cluster}-{ADMIN_USER}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _CertificateSpec:
    """A certificate that should be there."""

    name: str
    authority: Authority
    cn: str
    organizations: Sequence[str] = ()
    dns: Sequence[str] = ()
    ips: Sequence[str] = ()
    server: bool = False
    keep_previous: bool = False
    """Whether the certificate that is renewed is kept beside the new one (without its key, which nobody needs)."""

    def ensure_current(self, files: PlaneFiles, *, now: datetime.datetime) -> None:
        if self._is_current(files, now=now):
            return
        if self.keep_previous:
            self._keep_previous(files)
        self._issue_pair().write(files.directory, self.name)

    def _keep_previous(self, files: PlaneFiles) -> None:
        """Keep what is there if it is of the same authority for the same user; anything else was never ours."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            cert = files.cert_path(self.name).read_bytes()
            if self.authority.has_signed(cert) and common_name(cert) == self.cn:
                write_file(files.cert_path(f"{self.name}-{_PREVIOUS}"), cert)

    def _issue_pair(self) -> KeyPair:
        return self.authority.issue(
            self.cn,
            organizations=self.organizations,
            dns=self.dns,
            ips=self.ips,
            server=self.server,
            client=not self.server,
        )

    def _is_current(self, files: PlaneFiles, *, now: datetime.datetime) -> bool:
        try:
            cert = files.cert_path(self.name).read_bytes()
            key = load_pem_private_key(files.key_path(self.name).read_bytes(), password=None)
            return (
                x509.load_pem_x509_certificate(cert).public_key() == key.public_key()
                and self.authority.has_signed(cert)
                and not needs_renewal(cert, now=now)
                and common_name(cert) == self.cn
                and alternative_names(cert) == {*self.dns, *self.ips}
            )
        except (FileNotFoundError, ValueError, TypeError):
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
            keep_previous=True,
        ),
        _CertificateSpec(name="front-proxy", authority=credentials.front_proxy_ca, cn=FRONT_PROXY_USER),
        *(_CertificateSpec(name=name, authority=credentials.ca, cn=user) for name, user in _USERS.items()),
    ]


def _write_kubeconfig(files: PlaneFiles, name: str, *, plane: ControlPlaneSpec, user: str) -> None:
    """Point at certificate files instead of holding them: client-go reads those again when they change."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": plane.cluster,
                "cluster": {"server": plane.server_url, "certificate-authority": str(files.cert_path("ca"))},
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
    write_file(files.kubeconfig_path(name), yaml.safe_dump(document).encode(), mode=SECRET_MODE)


def has_admission_settings(plane: ControlPlaneSpec) -> bool:
    """Tell whether the API server needs settings of admission plugins."""
    return bool(plane.webhooks_at) or plane.pod_security != "privileged"


def _write_admission(files: PlaneFiles, plane: ControlPlaneSpec) -> None:
    plugins = []
    if plane.pod_security != "privileged":
        plugins.append({"name": "PodSecurity", "configuration": _pod_security_settings(plane.pod_security)})
    if plane.webhooks_at:
        plugins.append({"name": "MutatingAdmissionWebhook", "configuration": _webhook_settings(files, plane)})
    document = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": plugins}
    write_file(files.admission_path, yaml.safe_dump(document).encode())


def _pod_security_settings(level: PodSecurity) -> dict[str, Any]:
    """Return the level of namespaces that name none, for pods and, as a warning, for what makes pods.

    Labels of a namespace go over it, so the tenant's admission policy holds pods to the level everywhere.
    https://kubernetes.io/docs/tasks/configure-pod-container/enforce-standards-admission-controller/
    """
    modes = ("enforce", "warn")
    defaults = dict.fromkeys(modes, level) | {f"{mode}-version": "latest" for mode in modes}
    return {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": defaults,
    }


def _webhook_settings(files: PlaneFiles, plane: ControlPlaneSpec) -> dict[str, Any]:
    """Have the API server prove itself to the gateway's webhook, at that host and port and nowhere else.

    A tenant may well register other webhooks there: what it can ask for so is what its kubectl may ask for anyway.
    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#authenticate-apiservers
    """
    user = {
        "client-certificate": str(files.cert_path(_KUBELET_CLIENT)),
        "client-key": str(files.key_path(_KUBELET_CLIENT)),
    }
    users = {"apiVersion": "v1", "kind": "Config", "users": [{"name": plane.webhooks_at, "user": user}]}
    write_file(files.kubeconfig_path(_WEBHOOKS), yaml.safe_dump(users).encode(), mode=SECRET_MODE)
    return {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(files.kubeconfig_path(_WEBHOOKS)),
    }

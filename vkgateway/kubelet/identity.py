"""Which tenant a client certificate stands for: told by its common name and by nothing else."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection, Mapping
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from vkgateway.kube.tls import load_identity
from vkgateway.model.errors import InputError
from vkgateway.model.names import validate_tenant_name

CN_PREFIX: Final = "vkgateway:tenant:"
"""What comes before the tenant's name in the common name of its API server's kubelet client certificate."""


_MAX_CACHED: Final = 4096


class UnknownCaller(Exception):  # noqa: N818 - named by reason
    """The caller is no tenant that is served here; the message may be told."""


def tenant_from_certificate(names: Mapping[str, Any]) -> str:
    """The tenant in a verified certificate, as `ssl.SSLSocket.getpeercert` tells it.

    Raises Stranger unless it has exactly one common name, and that names a tenant.
    """
    common = [value for part in names.get("subject", ()) for (key, value) in part if key == "commonName"]
    if len(common) != 1 or not common[0].startswith(CN_PREFIX):
        raise UnknownCaller("the client certificate names no tenant")
    tenant: str = common[0].removeprefix(CN_PREFIX)
    try:
        validate_tenant_name(tenant)
    except InputError as error:
        raise UnknownCaller("the client certificate names no tenant") from error
    return tenant


def certificate_fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER), 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


class AdmittedTenants:
    """The tenants that are served; everybody else is refused, however good the certificate."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, frozenset[str]] = {}

    def admit_tenant(self, tenant: str, *, fingerprints: Collection[str] = ()) -> None:
        """Serve a tenant; with fingerprints only by these very certificates, so that those issued to an
        earlier tenant of the same name are worth nothing.
        """
        self._fingerprints[tenant] = frozenset(fingerprints)

    def revoke_tenant(self, tenant: str) -> None:
        """Serve a tenant no longer."""
        self._fingerprints.pop(tenant, None)

    def is_admitted(self, tenant: str) -> bool:
        """Whether the tenant is served at all."""
        return tenant in self._fingerprints

    def check_certificate(self, tenant: str, certificate: bytes) -> None:
        """Raise Stranger unless the tenant is served by this certificate (DER)."""
        allowed = self._fingerprints.get(tenant)
        if allowed is None:
            raise UnknownCaller(f"tenant {tenant} is not served here")
        if allowed and certificate_fingerprint(certificate) not in allowed:
            raise UnknownCaller(f"the client certificate of tenant {tenant} was replaced")


class FrontProxies:
    """The authorities that vouch for tenants' API servers where these aggregate other APIs.

    Each tenant's API server has a front-proxy client certificate by an authority of that tenant alone
    (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/). The tenant is told by who signed
    the certificate, not by what the certificate says.
    """

    def __init__(self) -> None:
        self._authorities: dict[str, x509.Certificate] = {}
        self._tenant_cache: dict[bytes, str] = {}
        """Certificates to their tenants, or to "", as long as the authorities stay the same."""

    def add_authority(self, tenant: str, authority: bytes) -> None:
        """Know a tenant's API server by certificates of its front-proxy authority (PEM)."""
        self._authorities[tenant] = x509.load_pem_x509_certificate(authority)
        self._tenant_cache.clear()

    def remove_authority(self, tenant: str) -> None:
        """Know it no longer."""
        self._authorities.pop(tenant, None)
        self._tenant_cache.clear()

    def find_tenant(self, certificate: bytes) -> str:
        """Return the tenant whose authority signed a certificate (DER) that TLS has verified; empty without one."""
        if certificate not in self._tenant_cache:
            if len(self._tenant_cache) >= _MAX_CACHED:
                self._tenant_cache.clear()
            self._tenant_cache[certificate] = self._find_signer(certificate)
        return self._tenant_cache[certificate]

    def _find_signer(self, certificate: bytes) -> str:
        shown = x509.load_der_x509_certificate(certificate)
        for tenant, authority in self._authorities.items():
            if shown.issuer == authority.subject and _is_signed_by(shown, authority):
                return tenant
        return ""


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def server_context(*, ca: bytes | str, cert: bytes | str, key: bytes | str) -> ssl.SSLContext:
    """TLS settings of the kubelet endpoint from PEM texts: a certificate that clients show must be signed by `ca`.

    Raises InputError where a text is no PEM or key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL  # who shows none must have a token: see `callers`
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # every connection proves itself; nothing is resumed
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_verify_locations(cadata=ca.decode() if isinstance(ca, bytes) else ca)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(f"the gateway authority is not a PEM certificate: {error}") from error
    load_identity(context, cert=cert, key=key)
    return context

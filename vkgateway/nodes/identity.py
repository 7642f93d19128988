"""Tenants of client certificates, identified by the common name."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Collection, Mapping
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from vkgateway.api.errors import InputError
from vkgateway.api.names import validate_tenant_name
from vkgateway.kube.tls import load_identity

CN_PREFIX: Final = "vkgateway:tenant:"
"""Prefix of the tenant's name in the common name of its API server's kubelet client certificate."""


_MAX_CACHED: Final = 4096


class UnknownCaller(Exception):  # noqa: N818 - named by reason
    """The client is not an admitted tenant. The client may see the message."""


def tenant_from_certificate(names: Mapping[str, Any]) -> str:
    """Return the tenant of a verified certificate in the form of `ssl.SSLSocket.getpeercert`.

    Raises UnknownCaller unless the certificate has exactly one common name, which names a tenant.
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
    """Return the SHA-256 of a certificate (DER) in hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


class AdmittedTenants:
    """The tenants that the endpoint serves. All other clients are refused, even with a valid certificate."""

    def __init__(self) -> None:
        self._fingerprints: dict[str, frozenset[str]] = {}

    def admit_tenant(self, tenant: str, *, fingerprints: Collection[str] = ()) -> None:
        """Serve a tenant. With fingerprints, only these certificates are accepted.

        So certificates of an earlier tenant of the same name are invalid.
        """
        self._fingerprints[tenant] = frozenset(fingerprints)

    def revoke_tenant(self, tenant: str) -> None:
        """Stop serving a tenant."""
        self._fingerprints.pop(tenant, None)

    def is_admitted(self, tenant: str) -> bool:
        """Return whether the tenant is served."""
        return tenant in self._fingerprints

    def check_certificate(self, tenant: str, certificate: bytes) -> None:
        """Raise UnknownCaller unless the tenant is served with this certificate (DER)."""
        allowed = self._fingerprints.get(tenant)
        if allowed is None:
            raise UnknownCaller(f"tenant {tenant} is not served here")
        if allowed and certificate_fingerprint(certificate) not in allowed:
            raise UnknownCaller(f"the client certificate of tenant {tenant} was replaced")


class FrontProxies:
    """Front-proxy authorities of the tenants' API servers, for requests to aggregated APIs.

    Each tenant has a separate authority, which signs the front-proxy client certificate of its API server
    (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/). The signer identifies the tenant,
    not the subject of the certificate.
    """

    def __init__(self) -> None:
        self._authorities: dict[str, x509.Certificate] = {}
        self._tenant_cache: dict[bytes, str] = {}
        """Tenants by certificate (empty if unknown), valid until the authorities change."""

    def add_authority(self, tenant: str, authority: bytes) -> None:
        """Accept certificates of a tenant's front-proxy authority (PEM)."""
        self._authorities[tenant] = x509.load_pem_x509_certificate(authority)
        self._tenant_cache.clear()

    def remove_authority(self, tenant: str) -> None:
        """Stop accepting certificates of a tenant's front-proxy authority."""
        self._authorities.pop(tenant, None)
        self._tenant_cache.clear()

    def find_tenant(self, certificate: bytes) -> str:
        """Return the tenant whose authority signed a certificate (DER) that TLS has verified, or an empty string."""
        if certificate not in self._tenant_cache:
            if len(self._tenant_cache) >= _MAX_CACHED:
                self._tenant_cache.clear()
            self._tenant_cache[certificate] = self._find_signer(certificate)
        return self._tenant_cache[certificate]

    def _find_signer(self, certificate: bytes) -> str:
        loaded = x509.load_der_x509_certificate(certificate)
        for tenant, authority in self._authorities.items():
            if loaded.issuer == authority.subject and _is_signed_by(loaded, authority):
                return tenant
        return ""


def _is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def server_context(*, ca: bytes | str, cert: bytes | str, key: bytes | str) -> ssl.SSLContext:
    """Return the TLS settings of the kubelet endpoint from PEM texts. `ca` must have signed client certificates.

    Raises InputError if a text is not PEM, or if key and certificate do not match.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL  # a client without a certificate needs a token: see `Authenticator`
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # no resumption: each connection authenticates
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_verify_locations(cadata=ca.decode() if isinstance(ca, bytes) else ca)
    except (ssl.SSLError, ValueError) as error:
        raise InputError(f"the gateway authority is not a PEM certificate: {error}") from error
    load_identity(context, cert=cert, key=key)
    return context

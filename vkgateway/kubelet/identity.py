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


_KNOWN_MAX: Final = 4096


class Stranger(Exception):  # noqa: N818 - named by reason
    """The caller is no tenant that is served here; the message may be told."""


def tenant_of(names: Mapping[str, Any]) -> str:
    """The tenant in a verified certificate, as `ssl.SSLSocket.getpeercert` tells it.

    Raises Stranger unless it has exactly one common name, and that names a tenant.
    """
    common = [value for part in names.get("subject", ()) for (key, value) in part if key == "commonName"]
    if len(common) != 1 or not common[0].startswith(CN_PREFIX):
        raise Stranger("the client certificate names no tenant")
    tenant: str = common[0].removeprefix(CN_PREFIX)
    try:
        validate_tenant_name(tenant)
    except InputError as error:
        raise Stranger("the client certificate names no tenant") from error
    return tenant


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate (DER), 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


class Admission:
    """The tenants that are served; everybody else is refused, however good the certificate."""

    def __init__(self) -> None:
        self._admitted: dict[str, frozenset[str]] = {}

    def admit(self, tenant: str, *, fingerprints: Collection[str] = ()) -> None:
        """Serve a tenant; with fingerprints only by these very certificates, so that those issued to an
        earlier tenant of the same name are worth nothing.
        """
        self._admitted[tenant] = frozenset(fingerprints)

    def revoke(self, tenant: str) -> None:
        """Serve a tenant no longer."""
        self._admitted.pop(tenant, None)

    def admitted(self, tenant: str) -> bool:
        """Whether the tenant is served at all."""
        return tenant in self._admitted

    def check(self, tenant: str, certificate: bytes) -> None:
        """Raise Stranger unless the tenant is served by this certificate (DER)."""
        allowed = self._admitted.get(tenant)
        if allowed is None:
            raise Stranger(f"tenant {tenant} is not served here")
        if allowed and fingerprint(certificate) not in allowed:
            raise Stranger(f"the client certificate of tenant {tenant} was replaced")


class FrontProxies:
    """The authorities that vouch for tenants' API servers where these aggregate other APIs.

    Each tenant's API server has a front-proxy client certificate by an authority of that tenant alone
    (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/). The tenant is told by who signed
    the certificate, not by what the certificate says.
    """

    def __init__(self) -> None:
        self._authorities: dict[str, x509.Certificate] = {}
        self._known: dict[bytes, str] = {}
        """Certificates to their tenants, or to "", as long as the authorities stay the same."""

    def admit(self, tenant: str, authority: bytes) -> None:
        """Know a tenant's API server by certificates of its front-proxy authority (PEM)."""
        self._authorities[tenant] = x509.load_pem_x509_certificate(authority)
        self._known.clear()

    def revoke(self, tenant: str) -> None:
        """Know it no longer."""
        self._authorities.pop(tenant, None)
        self._known.clear()

    def tenant(self, certificate: bytes) -> str:
        """Return the tenant whose authority signed a certificate (DER) that TLS has verified; empty without one."""
        if certificate not in self._known:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[certificate] = self._signer(certificate)
        return self._known[certificate]

    def _signer(self, certificate: bytes) -> str:
        shown = x509.load_der_x509_certificate(certificate)
        for tenant, authority in self._authorities.items():
            if shown.issuer == authority.subject and _signed(shown, authority):
                return tenant
        return ""


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
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

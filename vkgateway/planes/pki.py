"""Certificate authorities, the certificates that they issue, and service account signing keys."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkgateway.planes.atomic_files import PUBLIC_MODE, SECRET_MODE, write_file

AUTHORITY_DAYS = 3650
CERTIFICATE_DAYS = 365
# Clock skew between machines: a certificate is valid from slightly before its creation.
_CLOCK_SKEW = datetime.timedelta(minutes=5)
# A certificate is renewed when less than this share of its lifetime remains.
_RENEWAL_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key, both PEM. `repr` does not show the key."""

    cert_pem: bytes
    key_pem: bytes

    def __repr__(self) -> str:
        return f"KeyPair({common_name(self.cert_pem)!r})"

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write `name.crt` (0644) and `name.key` (0600) into `directory`; return their paths, certificate first."""
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        write_file(key, self.key_pem, mode=SECRET_MODE)
        write_file(certificate, self.cert_pem, mode=PUBLIC_MODE)
        return certificate, key


class Authority:
    """A certificate authority (ECDSA P-256) that signs leaf certificates only."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    def __repr__(self) -> str:
        return f"Authority({common_name(self.cert_pem)!r})"

    @classmethod
    def create(cls, cn: str, *, days: int = AUTHORITY_DAYS, now: datetime.datetime | None = None) -> Authority:
        """Create a self-signed authority named `cn`, valid for `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject_name(cn, organizations=())
        builder = (
            _certificate_builder(subject=name, issuer=name, public_key=key.public_key(), days=days, now=now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def from_pem(cls, cert_pem: bytes, key_pem: bytes) -> Authority:
        """Parse an authority. Raises ValueError if a PEM is broken or the key does not match the certificate."""
        certificate = x509.load_pem_x509_certificate(cert_pem)
        key = serialization.load_pem_private_key(key_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not an elliptic curve key")
        if key.public_key() != certificate.public_key():
            raise ValueError(f"the key is not that of the certificate {common_name(cert_pem)!r}")
        return cls(certificate, key)

    @property
    def cert_pem(self) -> bytes:
        """Certificate of the authority, which others trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """Private key of the authority, a secret."""
        return _private_pem(self._key)

    @property
    def key_pair(self) -> KeyPair:
        """Certificate and private key together."""
        return KeyPair(self.cert_pem, self.key_pem)

    def write(self, directory: Path, name: str = "ca") -> tuple[Path, Path]:
        """Write `name.crt` and `name.key` (0600) into `directory`; return their paths."""
        return self.key_pair.write(directory, name)

    def issue(
        self,
        cn: str,
        *,
        organizations: Sequence[str] = (),
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        client: bool = False,
        server: bool = False,
        days: int = CERTIFICATE_DAYS,
        now: datetime.datetime | None = None,
    ) -> KeyPair:
        """Issue a certificate with a new key: user `cn`, groups `organizations`, alternative names `dns` and `ips`.

        Kubernetes reads a client's user name from the common name and its groups from the organizations
        (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates).
        """
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate_builder(
            subject=_subject_name(cn, organizations=organizations),
            issuer=self._certificate.subject,
            public_key=key.public_key(),
            days=days,
            now=now,
        )
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(authority=False), critical=True)
        builder = builder.add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
        )
        if usages := _extended_usages(client=client, server=server):
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names := _alternative_names(dns=dns, ips=ips):
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))

    def has_signed(self, cert_pem: bytes) -> bool:
        """Return whether this authority signed the certificate."""
        try:
            x509.load_pem_x509_certificate(cert_pem).verify_directly_issued_by(self._certificate)
        except Exception:  # noqa: BLE001 - invalid signature, other issuer, other algorithm: all mean no
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Key pair (PEM) with which an API server signs service account tokens."""

    private_pem: bytes
    public_pem: bytes

    def __repr__(self) -> str:
        return "SigningKey(...)"

    @classmethod
    def create(cls) -> SigningKey:
        """Create an ECDSA P-256 key pair (tokens are signed with ES256)."""
        return cls._from_key(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, private_pem: bytes) -> SigningKey:
        """Parse the pair from its private key. Raises ValueError if it is broken."""
        key = serialization.load_pem_private_key(private_pem, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the signing key is not an elliptic curve key")
        return cls._from_key(key)

    @classmethod
    def _from_key(cls, key: ec.EllipticCurvePrivateKey) -> SigningKey:
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return cls(_private_pem(key), public)


def common_name(cert_pem: bytes) -> str:
    """Return the common name of the subject, "" if it has none."""
    subject = x509.load_pem_x509_certificate(cert_pem).subject
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def cert_fingerprint(cert_pem: bytes) -> str:
    """Return the SHA-256 of the certificate's DER form, 64 hexadecimal digits."""
    return x509.load_pem_x509_certificate(cert_pem).fingerprint(hashes.SHA256()).hex()


def is_matching_pair(cert_pem: bytes, key_pem: bytes) -> bool:
    """Return whether the key matches the certificate; False if either is unreadable."""
    try:
        key = serialization.load_pem_private_key(key_pem, password=None)
        return key.public_key() == x509.load_pem_x509_certificate(cert_pem).public_key()
    except (ValueError, TypeError):
        return False


def alternative_names(cert_pem: bytes) -> frozenset[str]:
    """Return the DNS names and IP addresses of the certificate."""
    certificate = x509.load_pem_x509_certificate(cert_pem)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    dns = names.get_values_for_type(x509.DNSName)
    return frozenset(dns) | {str(ip) for ip in names.get_values_for_type(x509.IPAddress)}


def is_authority(cert_pem: bytes) -> bool:
    """Return whether the certificate is a CA certificate."""
    extensions = x509.load_pem_x509_certificate(cert_pem).extensions
    try:
        return extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def cert_expiry(cert_pem: bytes) -> datetime.datetime:
    """Return the time at which the certificate expires (UTC, aware)."""
    return x509.load_pem_x509_certificate(cert_pem).not_valid_after_utc


def needs_renewal(cert_pem: bytes, *, now: datetime.datetime) -> bool:
    """Return whether less than a third of the certificate's lifetime remains at `now` (aware), or it is not valid yet.

    A certificate that starts more than a third of its lifetime in the future is not renewed. Rather this machine's
    clock is slow, and a new certificate would expire early once the clock is set.
    """
    certificate = x509.load_pem_x509_certificate(cert_pem)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    short = (end - begin) * _RENEWAL_SHARE
    return end - now < short or now < begin <= now + short


def _certificate_builder(
    *,
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    days: int,
    now: datetime.datetime | None,
) -> x509.CertificateBuilder:
    moment = now or datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(moment - _CLOCK_SKEW)
        .not_valid_after(moment + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _subject_name(cn: str, *, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, cn)])


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _extended_usages(*, client: bool, server: bool) -> list[x509.ObjectIdentifier]:
    wanted = ((client, ExtendedKeyUsageOID.CLIENT_AUTH), (server, ExtendedKeyUsageOID.SERVER_AUTH))
    return [usage for wants, usage in wanted if wants]


def _alternative_names(*, dns: Sequence[str], ips: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    return names + [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )

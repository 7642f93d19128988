"""The parts of a control plane that cannot be rebuilt: CAs, service account signing key, admin certificate."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Self

from vkgateway.planes.pki import AUTHORITY_DAYS, Authority, KeyPair, SigningKey, needs_renewal

ADMIN_USER = "admin"
ADMIN_GROUP = "system:masters"
GATEWAY_USER = "vkgateway"

_CA = ("ca.crt", "ca.key")
_FRONT_PROXY_CA = ("front-proxy-ca.crt", "front-proxy-ca.key")
_ADMIN = ("admin.crt", "admin.key")
_SIGNING_KEY = "sa.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Root of trust of a cluster; it issues all other certificates.

    `ca` signs the certificates of the API server and its clients. `front_proxy_ca` signs only the certificate that the
    API server presents to aggregated APIs
    (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
    """

    ca: Authority
    front_proxy_ca: Authority
    signing_key: SigningKey
    admin: KeyPair

    @classmethod
    def create(cls, cluster: str, *, now: datetime.datetime | None = None) -> Self:
        """Create the credentials of a new cluster, valid from `now` (aware), by default the current time."""
        ca = Authority.create(f"{cluster} ca", now=now)
        return cls(
            ca=ca,
            front_proxy_ca=Authority.create(f"{cluster} front proxy ca", now=now),
            signing_key=SigningKey.create(),
            admin=_issue_admin_pair(ca, now=now),
        )

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Self:
        """Parse the result of `to_files`. Raises KeyError with a missing name, and ValueError for a broken file."""
        return cls(
            ca=Authority.from_pem(*(files[name] for name in _CA)),
            front_proxy_ca=Authority.from_pem(*(files[name] for name in _FRONT_PROXY_CA)),
            signing_key=SigningKey.from_pem(files[_SIGNING_KEY]),
            admin=KeyPair(*(files[name] for name in _ADMIN)),
        )

    def to_files(self) -> dict[str, bytes]:
        """Return all credentials as PEM by file name, for a Secret or a private directory."""
        return {
            _CA[0]: self.ca.cert_pem,
            _CA[1]: self.ca.key_pem,
            _FRONT_PROXY_CA[0]: self.front_proxy_ca.cert_pem,
            _FRONT_PROXY_CA[1]: self.front_proxy_ca.key_pem,
            _SIGNING_KEY: self.signing_key.private_pem,
            _ADMIN[0]: self.admin.cert_pem,
            _ADMIN[1]: self.admin.key_pem,
        }

    def renew_admin(self, *, now: datetime.datetime) -> Self:
        """Return the credentials with a valid admin certificate: a new one if the current one expires soon or another
        CA signed it.
        """
        if self.ca.has_signed(self.admin.cert_pem) and not needs_renewal(self.admin.cert_pem, now=now):
            return self
        return replace(self, admin=_issue_admin_pair(self.ca, now=now))

    def issue_gateway_pair(self) -> KeyPair:
        """Issue the gateway's admin certificate, which stays in memory."""
        return self.ca.issue(GATEWAY_USER, organizations=(ADMIN_GROUP,), client=True, days=AUTHORITY_DAYS)


def _issue_admin_pair(ca: Authority, *, now: datetime.datetime | None) -> KeyPair:
    return ca.issue(ADMIN_USER, organizations=(ADMIN_GROUP,), client=True, now=now)

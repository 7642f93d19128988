"""What a control plane cannot do without and cannot rebuild: its authorities, its signing key, its admin."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Self

from vkgateway.controlplane.pki import AUTHORITY_DAYS, Authority, KeyPair, SigningKey, needs_renewal

ADMIN_USER = "admin"
ADMIN_GROUP = "system:masters"
GATEWAY_USER = "vkgateway"

_CA = ("ca.crt", "ca.key")
_FRONT_PROXY_CA = ("front-proxy-ca.crt", "front-proxy-ca.key")
_ADMIN = ("admin.crt", "admin.key")
_SIGNING_KEY = "sa.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A cluster's own root of trust; everything else that proves an identity is issued from it.

    `ca` signs the API server's certificate and its clients', `front_proxy_ca` only the certificate by which
    the API server proves itself to aggregated APIs
    (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
    """

    ca: Authority
    front_proxy_ca: Authority
    signing_key: SigningKey
    admin: KeyPair

    @classmethod
    def create(cls, cluster: str) -> Self:
        """Make new ones for the cluster of that name."""
        ca = Authority.create(f"{cluster} ca")
        return cls(
            ca=ca,
            front_proxy_ca=Authority.create(f"{cluster} front proxy ca"),
            signing_key=SigningKey.create(),
            admin=_issue_admin_pair(ca),
        )

    @classmethod
    def from_files(cls, files: dict[str, bytes]) -> Self:
        """Read back what `to_files` gave; KeyError names what is missing, ValueError says what is broken."""
        return cls(
            ca=Authority.from_pem(*(files[name] for name in _CA)),
            front_proxy_ca=Authority.from_pem(*(files[name] for name in _FRONT_PROXY_CA)),
            signing_key=SigningKey.from_pem(files[_SIGNING_KEY]),
            admin=KeyPair(*(files[name] for name in _ADMIN)),
        )

    def to_files(self) -> dict[str, bytes]:
        """All of it as PEM by file name, as a Secret or a private folder keeps it."""
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
        """Return the same with a new admin certificate where the old one nears its end or is not the
        authority's; itself otherwise.
        """
        if self.ca.has_signed(self.admin.cert_pem) and not needs_renewal(self.admin.cert_pem, now=now):
            return self
        return replace(self, admin=_issue_admin_pair(self.ca))

    def issue_gateway_pair(self) -> KeyPair:
        """Issue the certificate by which the gateway administers the cluster; it is kept in memory only."""
        return self.ca.issue(GATEWAY_USER, organizations=(ADMIN_GROUP,), client=True, days=AUTHORITY_DAYS)


def _issue_admin_pair(ca: Authority) -> KeyPair:
    return ca.issue(ADMIN_USER, organizations=(ADMIN_GROUP,), client=True)

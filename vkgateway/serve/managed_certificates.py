"""Certificates of an etcd that the gateway manages: created and renewed as Secrets of the management cluster."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import decode_secret
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import SECRETS
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.tenancy import ROOT_USER
from vkgateway.planes.pki import Authority, KeyPair, alternative_names, is_matching_pair, needs_renewal
from vkgateway.serve.addresses import is_ip_address
from vkgateway.serve.certificate_authority import ensure_authority
from vkgateway.settings.config import Datastore

log = structlog.get_logger(__name__)

_CA, _CERT, _KEY = "ca.crt", "tls.crt", "tls.key"
RENEW_SECONDS = 24 * 3600.0
_LOCAL_NAMES = ("localhost", "127.0.0.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdIdentity:
    """Authority that etcd trusts, and the gateway's client certificate."""

    authority: Authority
    tls: ClientTls


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """Certificate in a Secret: its subject and purpose."""

    secret: str
    common_name: str
    names: frozenset[str] = frozenset()

    def is_current(self, cert_pem: bytes, *, clock: Clock) -> bool:
        """Return whether the certificate has all names and needs no renewal."""
        return self.names <= alternative_names(cert_pem) and not needs_renewal(cert_pem, now=clock.now())

    def issue(self, authority: Authority, *, clock: Clock) -> KeyPair:
        """Issue the certificate. That of a server is also a client's, because members of etcd call each other."""
        ips = sorted(name for name in self.names if is_ip_address(name))
        return authority.issue(
            self.common_name,
            dns=sorted(self.names.difference(ips)),
            ips=ips,
            client=True,
            server=bool(self.names),
            now=clock.now(),
        )


class ManagedCertificates:
    """The Secrets PREFIX-authority, PREFIX-server and PREFIX-client. Replicas of the gateway may call concurrently.

    An existing Secret is never replaced unless its certificate needs renewal or lacks a name.
    """

    def __init__(
        self,
        client: Client,
        *,
        prefix: str,
        namespace: str,
        server_names: Sequence[str],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._namespace = namespace
        self._server = _Leaf(
            secret=f"{prefix}-server",
            common_name=f"{prefix}-server",
            names=frozenset(_canonical_name(name) for name in (*_LOCAL_NAMES, *server_names)),
        )
        self._root = _Leaf(secret=f"{prefix}-client", common_name=ROOT_USER)
        self._clock = clock
        self._identity: EtcdIdentity | None = None

    @property
    def identity(self) -> EtcdIdentity:
        """The identity after the last `ensure`."""
        assert self._identity is not None, "ensure() was not called"
        return self._identity

    @classmethod
    def from_settings(cls, settings: Datastore, client: Client) -> ManagedCertificates:
        """Return the certificates for the settings; the server's has the hosts of all endpoints."""
        managed = settings.managed
        hosts = [urlsplit(endpoint).hostname or "" for endpoint in settings.endpoints]
        return cls(
            client,
            prefix=managed.secret_prefix,
            namespace=managed.namespace or SYSTEM_NAMESPACE,
            server_names=[*filter(None, hosts), *managed.server_names],
        )

    async def ensure(self) -> EtcdIdentity:
        """Create missing Secrets, renew certificates that need it, and return the gateway's identity.

        Raises:
            UnavailableError: a Secret holds no matching certificate and key, or those of another authority.
            ApiError: the management cluster is not available, or refuses.
        """
        authority = await ensure_authority(
            self._client,
            name=f"{self._prefix}-authority",
            namespace=self._namespace,
            common_name=f"{self._prefix} authority",
        )
        await self._ensure_leaf(self._server, authority)
        root = await self._ensure_leaf(self._root, authority)
        tls = ClientTls(ca=authority.cert_pem, cert=root.cert_pem, key=root.key_pem)
        self._identity = EtcdIdentity(authority=authority, tls=tls)
        return self._identity

    async def renew_daily(self) -> None:
        """Call `ensure` every day until cancelled; failures are logged and retried the next day."""
        while True:
            await self._clock.sleep(RENEW_SECONDS)
            try:
                await self.ensure()
            except errors.NotLeader:
                continue  # the leader renews them; this gateway reads them the next day, months before they expire
            except VkgatewayError as error:
                log.error("certificates of etcd not renewed", error=str(error))

    async def _ensure_leaf(self, leaf: _Leaf, authority: Authority) -> KeyPair:
        try:
            answer = await self._client.get(SECRETS, leaf.secret, namespace=self._namespace)
        except errors.NotFound:
            pair = leaf.issue(authority, clock=self._clock)
            try:
                await self._client.create(SECRETS, self._manifest(leaf, pair, authority), namespace=self._namespace)
            except errors.AlreadyExists:
                answer = await self._client.get(SECRETS, leaf.secret, namespace=self._namespace)
            else:
                log.info("certificate of etcd created", secret=f"{self._namespace}/{leaf.secret}")
                return pair
        pair = self._decode_pair(answer, leaf, authority)
        if leaf.is_current(pair.cert_pem, clock=self._clock):
            return pair
        return await self._renew(leaf, authority, version=decode_secret(answer).metadata.resource_version)

    async def _renew(self, leaf: _Leaf, authority: Authority, *, version: str) -> KeyPair:
        """Replace the certificate, unless another replica has done so since the read of `version`."""
        pair = leaf.issue(authority, clock=self._clock)
        manifest = self._manifest(leaf, pair, authority)
        manifest["metadata"] = {"resourceVersion": version}
        try:
            await self._client.patch(SECRETS, leaf.secret, manifest, namespace=self._namespace)
        except errors.Conflict:
            answer = await self._client.get(SECRETS, leaf.secret, namespace=self._namespace)
            return self._decode_pair(answer, leaf, authority)
        log.info("certificate of etcd renewed", secret=f"{self._namespace}/{leaf.secret}")
        return pair

    def _manifest(self, leaf: _Leaf, pair: KeyPair, authority: Authority) -> dict[str, object]:
        data = {_CA: authority.cert_pem, _CERT: pair.cert_pem, _KEY: pair.key_pem}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": leaf.secret, "namespace": self._namespace},
            "type": "kubernetes.io/tls",
            "data": {name: base64.b64encode(pem).decode() for name, pem in data.items()},
        }

    def _decode_pair(self, answer: bytes, leaf: _Leaf, authority: Authority) -> KeyPair:
        data = decode_secret(answer).data
        where = f"Secret {self._namespace}/{leaf.secret}"
        hint = "Restore the Secret, or delete it to issue a new certificate."
        try:
            pair = KeyPair(base64.b64decode(data[_CERT]), base64.b64decode(data[_KEY]))
        except (KeyError, ValueError) as error:
            raise UnavailableError(f"{where} holds no {_CERT} and {_KEY}", hint=hint) from error
        if not is_matching_pair(pair.cert_pem, pair.key_pem):
            raise UnavailableError(f"{where}: {_KEY} is not the key of {_CERT}", hint=hint)
        if not authority.has_signed(pair.cert_pem):
            raise UnavailableError(
                f"{where}: the authority in Secret {self._prefix}-authority did not sign {_CERT}", hint=hint
            )
        return pair


def _canonical_name(name: str) -> str:
    """Return a name as it is in certificates: an IP address in its shortest form, a DNS name without final dot."""
    return str(ipaddress.ip_address(name)) if is_ip_address(name) else name.rstrip(".")

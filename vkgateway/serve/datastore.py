"""The tenants' shared datastore as configured: the tenants' key spaces and the space usage."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import structlog

from vkgateway.api.errors import InputError, UnavailableError, VkgatewayError
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.objects import decode_secret
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import SECRETS
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.etcd.endpoints import ClientTls, grpc_targets
from vkgateway.planes.etcd.errors import EtcdAuthDisabled
from vkgateway.planes.etcd.quota import QuotaController, StoreUsage
from vkgateway.planes.etcd.tenancy import ROOT_CERTIFICATE_HINT, ROOT_USER, Tenancy
from vkgateway.planes.pki import Authority, KeyPair, alternative_names, common_name, is_matching_pair, needs_renewal
from vkgateway.runtime.background import background_task
from vkgateway.serve.addresses import is_ip_address
from vkgateway.serve.certificate_authority import ensure_authority
from vkgateway.settings.config import Datastore
from vkgateway.tenants.metrics import record_certificate

if TYPE_CHECKING:
    from vkgateway.planes.etcd.client import EtcdClient


log = structlog.get_logger(__name__)


class LazyDatastore:
    """Datastore in etcd; implements `provisioner.Datastore` and `datastore_quota.Datastore`.

    Connects at the first use: loading gRPC takes 0.1 s, and a restarted gateway with existing tenants does not need it
    at once. `read_tls` is called before each use to pick up renewed certificates.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: ClientTls,
        read_tls: Callable[[], ClientTls] | None = None,
        gate: WriteGate | None = None,
    ) -> None:
        grpc_targets(endpoints)  # raises InputError at startup if one is invalid
        self._endpoints = endpoints
        self._tls = tls
        self._read_tls = read_tls
        self._gate = gate
        self._open_lock = asyncio.Lock()
        self._client: EtcdClient | None = None
        self._services: tuple[Tenancy, QuotaController] | None = None

    @classmethod
    def from_settings(cls, settings: Datastore, *, authority: Authority, gate: WriteGate | None = None) -> Self:
        """Return the datastore as configured; `gate` permits changes.

        Raises InputError if a setting is missing or its file is not usable.
        """

        def read_tls() -> ClientTls:
            cert, key = read_file(settings.cert, "datastore.cert"), read_file(settings.key, "datastore.key")
            return ClientTls(ca=authority.cert_pem, cert=cert, key=key)

        tls = read_tls()
        if not is_matching_pair(tls.cert, tls.key):
            raise InputError("datastore.key is not the key of datastore.cert", hint="Set both to files of one pair.")
        return cls(settings.endpoints, tls=tls, read_tls=read_tls, gate=gate)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.connection.close()

    async def require_auth(self, *, enable: bool) -> None:
        """Check that etcd answers and enforces users and roles; `enable` sets whether to enable them.

        Raises:
            EtcdAuthDisabled: etcd enforces no users and roles.
            EtcdError: etcd does not answer, or refuses.
        """
        tenancy, _ = await self._ensure_open()
        user = common_name(self._tls.cert)
        if enable and user == ROOT_USER:
            await tenancy.ensure_root()
            return
        try:
            await tenancy.require_auth()
        except EtcdAuthDisabled as error:
            if not enable:
                raise
            # The gateway would lock itself out.
            problem = f"datastore.enableAuth: the common name of the gateway's client certificate is {user!r}"
            raise EtcdAuthDisabled(problem, hint=ROOT_CERTIFICATE_HINT) from error

    async def ensure_tenant(self, tenant: str) -> bool:
        """See `provisioner.Datastore`."""
        tenancy, _ = await self._ensure_open()
        return await tenancy.ensure_tenant(tenant)

    async def remove_tenant(self, tenant: str) -> int:
        """See `provisioner.Datastore`."""
        tenancy, quota = await self._ensure_open()
        quota.blocked.pop(tenant, None)
        return await tenancy.remove_tenant(tenant)

    @property
    def blocked(self) -> Mapping[str, int]:
        """See `datastore_quota.Datastore`."""
        return self._services[1].blocked if self._services is not None else {}

    async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:
        """See `datastore_quota.Datastore`."""
        _, quota = await self._ensure_open()
        return await quota.check_usage(exempt=exempt)

    async def _ensure_open(self) -> tuple[Tenancy, QuotaController]:
        async with self._open_lock:
            renewed = self._reload_tls()
            if self._services is None or renewed:
                record_certificate("etcd-client", self._tls.cert)
            if self._services is None:
                module = await asyncio.to_thread(importlib.import_module, "vkgateway.planes.etcd.client")
                client: EtcdClient = module.EtcdClient(self._endpoints, tls=self._tls, gate=self._gate)
                tenancy = Tenancy(client)
                self._client, self._services = client, (tenancy, QuotaController(client.maintenance, tenancy))
            elif renewed and self._client is not None:
                self._client.connection.renew(self._tls)
                log.info("client certificate for the datastore renewed")
        return self._services

    def _reload_tls(self) -> bool:
        """Load the certificate and key again and return whether they changed: renewed files are written in place.

        While the files do not hold a matching pair, the current pair stays in use.
        """
        if self._read_tls is None:
            return False
        try:
            new_tls = self._read_tls()
        except InputError as error:
            log.warning(
                "cannot read the client certificate for the datastore; the current one stays in use", error=str(error)
            )
            return False
        if new_tls == self._tls or not is_matching_pair(new_tls.cert, new_tls.key):
            return False
        self._tls = new_tls
        return True


@contextlib.asynccontextmanager
async def open_datastore(
    settings: Datastore,
    *,
    management: Client,
    retry: Callable[[Callable[[], Awaitable[object]]], Awaitable[object]],
    gate: WriteGate | None = None,
) -> AsyncIterator[tuple[Authority, LazyDatastore]]:
    """Yield etcd's authority and the datastore; certificates are read from files, or managed and renewed as Secrets.

    `retry` repeats requests to the management cluster while it is unavailable. `gate` permits changes. Raises
    InputError if a setting is missing or its file is not usable.
    """
    if not settings.managed.secret_prefix:
        authority = etcd_authority(settings)
        async with LazyDatastore.from_settings(settings, authority=authority, gate=gate) as datastore:
            yield authority, datastore
        return
    certificates = ManagedCertificates.from_settings(settings, management)
    grpc_targets(settings.endpoints)
    await retry(certificates.ensure)
    found = certificates.identity
    async with (
        background_task(certificates.renew_daily(), name="renew-etcd-certificates"),
        LazyDatastore(
            settings.endpoints, tls=found.tls, read_tls=lambda: certificates.identity.tls, gate=gate
        ) as datastore,
    ):
        yield found.authority, datastore


def etcd_authority(datastore: Datastore) -> Authority:
    """Load the certificate authority that etcd trusts. Raises InputError."""
    cert, key = read_file(datastore.ca, "datastore.ca"), read_file(datastore.ca_key, "datastore.caKey")
    try:
        return Authority.from_pem(cert, key)
    except ValueError as error:
        raise InputError(f"datastore.ca and datastore.caKey are not a certificate authority: {error}") from error


def read_file(file: str, key: str) -> bytes:
    """Return the content of the file named by the setting `key`. Raises InputError."""
    if not file:
        raise InputError(f"{key} is not set", hint="`vkgateway serve --print-config` describes all settings.")
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"{key}: cannot read file {file}: {error.strerror}") from error


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
    """Return a name in the form of certificates: an IP address in its shortest form, a DNS name without final dot."""
    return str(ipaddress.ip_address(name)) if is_ip_address(name) else name.rstrip(".")

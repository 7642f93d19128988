"""The tenants' shared datastore as configured: the tenants' key spaces and the space usage."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import structlog

from vkgateway.api.errors import InputError
from vkgateway.kube.client import Client
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.etcd.endpoints import ClientTls, grpc_targets
from vkgateway.planes.etcd.errors import EtcdAuthDisabled
from vkgateway.planes.etcd.quota import QuotaController, StoreUsage
from vkgateway.planes.etcd.tenancy import ROOT_CERTIFICATE_HINT, ROOT_USER, Tenancy
from vkgateway.planes.pki import Authority, common_name, is_matching_pair
from vkgateway.runtime.background import background_task
from vkgateway.serve.managed_certificates import ManagedCertificates
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
                client: EtcdClient = module.EtcdClient(self._endpoints, tls=self._tls)
                client.connection.gate = self._gate
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

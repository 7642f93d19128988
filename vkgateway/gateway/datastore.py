"""The tenants' shared datastore as the settings say: each tenant's part of it, and the room in it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import structlog

from vkgateway.controlplane.etcd.endpoints import ClientTls, grpc_targets
from vkgateway.controlplane.etcd.quota import QuotaController, StoreUsage
from vkgateway.controlplane.etcd.tenancy import Tenancy
from vkgateway.controlplane.pki import Authority, is_matching_pair
from vkgateway.gateway.config import Datastore
from vkgateway.model.errors import InputError

if TYPE_CHECKING:
    from vkgateway.controlplane.etcd.client import EtcdClient

log = structlog.get_logger(__name__)


class LazyDatastore:
    """Tenants' parts of etcd and the room in it; see `provision.Datastore` and `roomkeeping.Datastore`.

    Connected to when it is first needed: gRPC takes a tenth of a second to load, and a gateway that comes back to
    tenants that are there needs none of it at once. `read_tls` is asked before each use by what to prove itself now.
    """

    def __init__(
        self, endpoints: Sequence[str], *, tls: ClientTls, read_tls: Callable[[], ClientTls] | None = None
    ) -> None:
        grpc_targets(endpoints)  # what is wrong with them is told at the start
        self._endpoints = endpoints
        self._tls = tls
        self._read_tls = read_tls
        self._open_lock = asyncio.Lock()
        self._client: EtcdClient | None = None
        self._services: tuple[Tenancy, QuotaController] | None = None

    @classmethod
    def from_settings(cls, settings: Datastore, *, authority: Authority) -> Self:
        """Take it as the settings say. Raises InputError where one is missing or its file cannot be used."""

        def read_tls() -> ClientTls:
            cert, key = read_file(settings.cert, "datastore.cert"), read_file(settings.key, "datastore.key")
            return ClientTls(ca=authority.cert_pem, cert=cert, key=key)

        return cls(settings.endpoints, tls=read_tls(), read_tls=read_tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    async def ensure_tenant(self, tenant: str) -> bool:
        """See `provision.Datastore`."""
        tenancy, _ = await self._ensure_open()
        return await tenancy.ensure_tenant(tenant)

    async def remove_tenant(self, tenant: str) -> int:
        """See `provision.Datastore`."""
        tenancy, keeper = await self._ensure_open()
        keeper.blocked.pop(tenant, None)
        return await tenancy.remove_tenant(tenant)

    @property
    def blocked(self) -> Mapping[str, int]:
        """See `roomkeeping.Datastore`."""
        return self._services[1].blocked if self._services is not None else {}

    async def check_usage(self, *, exempt: Collection[str]) -> StoreUsage:
        """See `roomkeeping.Datastore`."""
        _, keeper = await self._ensure_open()
        return await keeper.check_usage(exempt=exempt)

    async def _ensure_open(self) -> tuple[Tenancy, QuotaController]:
        async with self._open_lock:
            renewed = self._reload_tls()
            if self._services is None:
                module = await asyncio.to_thread(importlib.import_module, "vkgateway.controlplane.etcd.client")
                client: EtcdClient = module.EtcdClient(self._endpoints, tls=self._tls)
                tenancy = Tenancy(client)
                self._client, self._services = client, (tenancy, QuotaController(client, tenancy))
            elif renewed and self._client is not None:
                self._client.renew_connection(self._tls)
                log.info("the datastore is shown a renewed certificate")
        return self._services

    def _reload_tls(self) -> bool:
        """Whether the files hold another pair by now: certificates end, and who renews them writes them in place.

        Half of a pair, or none, is no reason to let go of the one in use: the next look finds all of it.
        """
        if self._read_tls is None:
            return False
        try:
            found = self._read_tls()
        except InputError as error:
            log.warning("the certificate for the datastore cannot be read; the one before is used on", error=str(error))
            return False
        if found == self._tls or not is_matching_pair(found.cert, found.key):
            return False
        self._tls = found
        return True


def etcd_authority(datastore: Datastore) -> Authority:
    """Load the authority that etcd trusts. Raises InputError."""
    cert, key = read_file(datastore.ca, "datastore.ca"), read_file(datastore.ca_key, "datastore.caKey")
    try:
        return Authority.from_pem(cert, key)
    except ValueError as error:
        raise InputError(f"datastore.ca and datastore.caKey are no authority: {error}") from error


def read_file(file: str, key: str) -> bytes:
    """Read a file that the setting `key` names. Raises InputError."""
    if not file:
        raise InputError(f"{key} is not set", hint="`vkgateway serve --print-config` describes every key.")
    try:
        return Path(file).expanduser().read_bytes()
    except OSError as error:
        raise InputError(f"{key}: file {file} cannot be read: {error.strerror}") from error

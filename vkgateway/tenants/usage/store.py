"""Usage in the management cluster: one ConfigMap for each Tenant (by UID) and UTC month, written by the leader only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.names import RESERVED_PREFIX, SYSTEM_NAMESPACE
from vkgateway.api.objects import Meta
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CONFIG_MAPS
from vkgateway.tenants.usage.ledger import MonthUsage, StoredMonth

log = structlog.get_logger(__name__)

USAGE_LABEL: Final = f"{RESERVED_PREFIX}usage-of"
"""Label of the ConfigMaps: the tenant. Another label than that of copies, which a compute cluster may watch here."""
MONTH_LABEL: Final = f"{RESERVED_PREFIX}usage-month"
_DATA_KEY: Final = "usage.json"
_UNREADABLE_KEY: Final = "unreadable.json"
"""Sums that could not be read, for an administrator. New sums begin at zero beside them."""
_decode_month = msgspec.json.Decoder(MonthUsage).decode


class _StoredUsage(msgspec.Struct):
    """A ConfigMap, as far as it is read."""

    metadata: Meta
    data: dict[str, str] = {}


class UsageStore:
    """Reader and writer of the ConfigMaps. `client` refuses writes while this process does not lead."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._unreadable: dict[str, str] = {}
        """Sums that could not be read and are not kept yet, by ConfigMap."""

    async def load(self) -> list[MonthUsage]:
        """Return all stored months. Unreadable ones are left out, and kept beside the new sums. Raises ApiError."""
        page = await self._client.list_all(CONFIG_MAPS, namespace=SYSTEM_NAMESPACE, label_selector=USAGE_LABEL)
        found = []
        for item in page.items:
            stored = msgspec.json.decode(item, type=_StoredUsage)
            text = stored.data.get(_DATA_KEY, "")
            try:
                found.append(_decode_month(text))
            except msgspec.DecodeError as error:
                name = stored.metadata.name
                self._unreadable[name] = text
                log.warning("stored usage is unreadable", config_map=name, kept_as=_UNREADABLE_KEY, error=str(error))
        return found

    async def save(self, month: MonthUsage) -> None:
        """Write a month of a tenant. Raises ApiError."""
        body = config_map(month)
        name = body["metadata"]["name"]
        if text := self._unreadable.get(name):
            body["data"][_UNREADABLE_KEY] = text
        try:
            await self._client.patch(CONFIG_MAPS, name, body, namespace=SYSTEM_NAMESPACE, metadata_only=True)
        except errors.NotFound:
            await self._client.create(CONFIG_MAPS, body, namespace=SYSTEM_NAMESPACE, metadata_only=True)
        self._unreadable.pop(name, None)

    async def delete(self, months: Iterable[StoredMonth]) -> None:
        """Delete stored months. Raises ApiError."""
        for month in months:
            try:
                await self._client.delete(CONFIG_MAPS, object_name(*month), namespace=SYSTEM_NAMESPACE)
            except errors.NotFound:
                continue


def object_name(tenant: str, uid: str, month: str) -> str:
    """Return the name of the ConfigMap of a tenant's month, such as `usage-alpha-2026-11-0f3c...`, with the UID.

    A tenant of the same name as a deleted one has another ConfigMap.
    """
    return f"usage-{tenant}-{month}" + (f"-{uid}" if uid else "")


def config_map(month: MonthUsage) -> dict[str, Any]:
    """Return the ConfigMap of a tenant's month."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": object_name(month.tenant, month.uid, month.month),
            "namespace": SYSTEM_NAMESPACE,
            "labels": {USAGE_LABEL: month.tenant, MONTH_LABEL: month.month},
        },
        "data": {_DATA_KEY: msgspec.json.encode(month).decode()},
    }

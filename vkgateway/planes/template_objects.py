"""The objects of a template in a tenant's cluster: applied once for each version, and restored."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.planes.kept_objects import (
    create_missing,
    delete_obsolete,
    is_initial,
    kept_objects,
    restore_objects,
    skip_type_checks,
)
from vkgateway.planes.record_store import ControlPlaneRecord, RecordStore

_log = structlog.get_logger(__name__)

_RETRY_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.05


class TemplateObjects:
    """Writes the objects of templates; `store` records which version a tenant has."""

    def __init__(self, store: RecordStore, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock

    async def ensure(
        self, client: Client, record: ControlPlaneRecord, objects: list[dict[str, Any]], *, tenant: str
    ) -> None:
        """Apply the template's objects once per version of the template; restore kept objects each time.

        Later changes may fail because of the tenant's own webhooks or policies. Such a failure is logged and delays
        nothing.
        """
        digest = hashlib.sha256(msgspec.json.encode(objects, order="deterministic")).hexdigest()[:16]
        if digest == record.objects:
            try:
                await self.restore(client, objects, tenant=tenant)
            except errors.ApiError as error:
                _log.warning("failed to restore kept objects", tenant=tenant, error=str(error))
            return
        try:
            stored = await self._apply_with_retry(client, [one for one in objects if not is_initial(one)])
            await skip_type_checks(client, stored)
            await create_missing(client, objects)
        except errors.ApiError as error:
            if not record.objects:
                raise
            _log.warning("the tenant's API server refuses its template's objects", tenant=tenant, error=str(error))
            return
        await self._store.save(tenant, replace(record, objects=digest))

    async def restore(self, client: Client, objects: list[dict[str, Any]], *, tenant: str) -> None:
        """Create missing objects, and revert changes to kept ones. Raises ApiError."""
        await create_missing(client, objects)
        if changed := await restore_objects(client, kept_objects(objects)):
            _log.warning("kept objects restored", tenant=tenant, objects=changed)

    async def delete_obsolete(self, client: Client, objects: list[dict[str, Any]], *, tenant: str) -> None:
        """Delete objects that gate or reject pods and that the template no longer has; a failure is only logged."""
        try:
            removed = await delete_obsolete(client, kept_objects(objects))
        except errors.ApiError as error:
            _log.warning("failed to delete obsolete admission objects", tenant=tenant, error=str(error))
            return
        if removed:
            _log.info("obsolete admission objects deleted", tenant=tenant, objects=removed)

    async def _apply_with_retry(self, client: Client, objects: list[dict[str, Any]]) -> list[bytes]:
        """Apply objects and return the stored ones; retry until a new API server has created its first namespaces."""
        started = self._clock.monotonic()
        while True:
            try:
                return await apply_objects(client, objects)
            except errors.ApiError as error:
                missing = isinstance(error, errors.NotFound)
                if not (missing or error.is_transient) or self._clock.monotonic() - started >= _RETRY_SECONDS:
                    raise
            await self._clock.sleep(_POLL_SECONDS)

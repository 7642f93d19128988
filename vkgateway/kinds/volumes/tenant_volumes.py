"""Claims and volumes in a tenant cluster, watched only when the tenant may have some."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import (
    COMPUTE_CLAIMS,
    COMPUTE_STORAGE_CHANGED,
    RESYNC,
    TENANT_ACTIVE,
    TENANT_CLAIMS,
    TENANT_STORAGE_LISTED,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kinds.volumes.translation.storage_classes import allows_volumes
from vkgateway.kinds.volumes.translation.views import ClaimView, VolumeView, decode_claim, decode_volume
from vkgateway.kube import resources
from vkgateway.kube.backoff import retry_requests
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.requests import BATCH_SECONDS, RequestKind
from vkgateway.runtime.views.ownership import Key

log = structlog.get_logger(__name__)

VOLUME: Final = RequestKind[str]("volume", BATCH_SECONDS)
"""The volume of the claim with this UID."""


class TenantVolumes:
    """One tenant's claims, watched after `start_watching`, and its volumes, watched once either kind exists.

    The handle of a volume is the UID of the claim that it was provisioned for.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._client = scope.client
        on_complete = partial(scope.watches.notify, TENANT_STORAGE_LISTED)
        self._needed = asyncio.Event()
        self._volumes_needed = asyncio.Event()
        self._keys: dict[str, Key] = {}
        """Keys of claims by UID."""
        self._names: dict[str, str] = {}
        """Names of volumes by handle."""
        self.claims: Reflector[ClaimView] = Reflector(
            scope.client,
            resources.PERSISTENT_VOLUME_CLAIMS,
            decode=decode_claim,
            on_change=self._claim_changed,
            on_complete=on_complete,
        )
        self.volumes: Reflector[VolumeView] = Reflector(
            scope.client,
            resources.PERSISTENT_VOLUMES,
            decode=decode_volume,
            on_change=self._volume_changed,
            on_complete=on_complete,
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.runs("storage", self.run)
            .watches(TENANT_ACTIVE, self.start_watching)
            .watches(COMPUTE_CLAIMS, lambda _uid: self.start_watching_volumes())
            .watches_each((TENANT_STORAGE_LISTED, COMPUTE_STORAGE_CHANGED, RESYNC), self._watch_if_needed)
        )

    def _watch_if_needed(self) -> None:
        if allows_volumes(self._scope.tenant):
            self.start_watching()
        if any(link.claims.claim_uids(self._tenant) for link in self._scope.links.values()):
            self.start_watching_volumes()

    @property
    def is_watching(self) -> bool:
        """Whether claims are watched."""
        return self._needed.is_set()

    @property
    def is_complete(self) -> bool:
        """Whether all claims and volumes are known, so that a missing one does not exist."""
        return self.claims.is_complete and self.volumes.is_complete

    def start_watching(self) -> None:
        """Start watching claims."""
        self._needed.set()

    def start_watching_volumes(self) -> None:
        """Start watching claims and volumes, because there are claims in the tenant or compute cluster."""
        self._needed.set()
        self._volumes_needed.set()

    async def run(self) -> None:
        """Run the watches once they are needed, until cancelled."""
        if allows_volumes(self._scope.tenant):
            self.start_watching()
        await self._needed.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.claims.run(), name=f"tenant/{self._tenant}/watch-claims")
            group.create_task(self._find_volumes(), name=f"tenant/{self._tenant}/find-volumes")
            await self._volumes_needed.wait()
            group.create_task(self.volumes.run(), name=f"tenant/{self._tenant}/watch-volumes")

    def find_claim(self, uid: str) -> ClaimView | None:
        """Return the claim with a UID."""
        key = self._keys.get(uid)
        return self.claims.store.get(key) if key is not None else None

    def find_volume(self, handle: str) -> VolumeView | None:
        """Return the volume with a handle."""
        name = self._names.get(handle)
        return self.volumes.store.get(("", name)) if name is not None else None

    def find_bound_claim(self, handle: str) -> ClaimView | None:
        """Return the claim of a volume: the one it was provisioned for, or else the one it is bound to."""
        own = self.find_claim(handle)
        if own is not None:
            return own
        volume = self.find_volume(handle)
        reference = volume.spec.claim_ref if volume is not None else None
        return self.find_claim(reference.uid) if reference is not None else None

    def volume_uids(self) -> set[str]:
        """Return the UIDs of all claims and the handles of all volumes."""
        return {*self._keys, *self._names}

    async def _find_volumes(self) -> None:
        """Start watching volumes if any exist without a claim: the gateway may have stopped during a deletion."""

        async def find_first() -> None:
            if self._volumes_needed.is_set():
                return
            async for page in self._client.list_pages(resources.PERSISTENT_VOLUMES, limit=1):
                if page.items:
                    self._volumes_needed.set()
                break

        await retry_requests(
            find_first,
            report=lambda error: log.warning("volumes not listed", tenant=self._tenant, error=error.message),
        )

    def _claim_changed(self, old: ClaimView | None, new: ClaimView | None) -> None:
        view = new or old
        assert view is not None
        uid = view.metadata.uid
        if new is None:
            self._keys.pop(uid, None)
        else:
            self._keys[uid] = view.metadata.key
            self._volumes_needed.set()
        self._scope.work_queue.enqueue(VOLUME, uid)
        volume = self.volumes.store.get(("", view.spec.volume_name))
        if volume is not None and volume.volume_handle not in ("", uid):
            self._scope.work_queue.enqueue(VOLUME, volume.volume_handle)
        self._scope.watches.notify(TENANT_CLAIMS, view.metadata.key)

    def _volume_changed(self, old: VolumeView | None, new: VolumeView | None) -> None:
        view = new or old
        assert view is not None
        handle, name = view.volume_handle, view.metadata.name
        if not handle:
            return
        if new is not None:
            self._names[handle] = name
        elif self._names.get(handle) == name:
            del self._names[handle]
        self._scope.work_queue.enqueue(VOLUME, handle)
        reference = view.spec.claim_ref
        if reference is not None:
            self._scope.watches.notify(TENANT_CLAIMS, (reference.namespace, reference.name))

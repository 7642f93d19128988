"""The volume provisioner: it watches claims and volumes, and creates and deletes their directories."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from vkgateway.api.objects import Object, decode_object
from vkgateway.kinds.volumes.translation.views import STORAGE, ClaimView, decode_claim
from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway_platform.embedded.provisioner.folders import (
    FolderView,
    decode_folder,
    folder_of,
    plan_work,
    volume_for,
    volume_name,
)

log = structlog.get_logger(__name__)

_BATCH_SECONDS: Final = 0.02
"""Seconds in which changes are collected."""
_RETRY_SECONDS: Final = 5.0
"""Seconds after which a failure is retried."""
_FOLDER_MODE: Final = 0o777
"""Containers with any user may write into their volumes."""


class VolumeProvisioner:
    """Directories of one cluster's volumes below `directory`. Each pass compares claims with volumes."""

    def __init__(self, client: Client, directory: Path) -> None:
        self._client = client
        self._directory = directory
        self._changed = asyncio.Event()
        self._claims: Reflector[ClaimView] = Reflector(
            client,
            resources.PERSISTENT_VOLUME_CLAIMS,
            decode=decode_claim,
            on_change=lambda _old, _new: self._changed.set(),
            on_complete=self._changed.set,
        )
        self._volumes: Reflector[FolderView] = Reflector(
            client,
            resources.PERSISTENT_VOLUMES,
            decode=decode_folder,
            on_change=lambda _old, _new: self._changed.set(),
            on_complete=self._changed.set,
        )

    async def run(self) -> None:
        """Reconcile until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._claims.run(), name="watch-claims")
            group.create_task(self._volumes.run(), name="watch-volumes")
            while True:
                await self._changed.wait()
                await asyncio.sleep(_BATCH_SECONDS)
                self._changed.clear()
                if not await self._reconcile_all():
                    asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._changed.set)

    async def _reconcile_all(self) -> bool:
        """Reconcile all claims and volumes; return whether all succeeded."""
        if not (self._claims.is_complete and self._volumes.is_complete):
            return True
        found = plan_work(self._claims.store.values(), {name: view for (_, name), view in self._volumes.store.items()})
        acts = [
            *(partial(self._create_volume, claim) for claim in found.make),
            *(partial(self._expand_volume, claim, volume) for claim, volume in found.grow),
            *(partial(self._delete_volume, volume) for volume in found.remove),
        ]
        well = True
        for act in acts:
            try:
                await act()
            except (errors.ApiError, OSError) as error:
                log.warning("not done, tried again", error=str(error))
                well = False
        return well

    async def _create_volume(self, claim: ClaimView) -> None:
        answer = await self._client.get(resources.NODES, claim.selected_node)
        document = volume_for(claim, directory=self._directory, labels=decode_object(answer).metadata.labels)
        folder = self._directory / volume_name(claim)
        folder.mkdir(exist_ok=True, parents=True)
        folder.chmod(_FOLDER_MODE)
        try:
            await self._client.create(resources.PERSISTENT_VOLUMES, document)
        except errors.AlreadyExists:
            return
        log.info("volume made", claim="/".join(claim.metadata.key), folder=str(folder))

    async def _expand_volume(self, claim: ClaimView, volume: FolderView) -> None:
        capacity = {"capacity": {STORAGE: claim.requested_storage}}
        change: Object = {"metadata": {"uid": volume.metadata.uid}, "spec": capacity}
        await self._client.patch(resources.PERSISTENT_VOLUMES, volume.metadata.name, change)
        patch: Object = {"metadata": {"uid": claim.metadata.uid}, "status": capacity}
        await self._client.patch(
            resources.PERSISTENT_VOLUME_CLAIMS,
            claim.metadata.name,
            patch,
            namespace=claim.metadata.namespace,
            subresource="status",
        )

    async def _delete_volume(self, volume: FolderView) -> None:
        """Delete the directory before the volume, so that no data outlives a volume."""
        folder = folder_of(volume, self._directory)
        if folder is None:
            return
        if folder.exists():
            await asyncio.to_thread(shutil.rmtree, folder)
        try:
            await self._client.delete(resources.PERSISTENT_VOLUMES, volume.metadata.name, uid=volume.metadata.uid)
        except (errors.NotFound, errors.Conflict):
            return
        log.info("volume removed", folder=str(folder))

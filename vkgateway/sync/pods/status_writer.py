"""Patches of tenant pods' status."""

from __future__ import annotations

from datetime import datetime

from vkgateway.kube import resources
from vkgateway.model.objects import Meta, Object, decode_object
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.translate.to_tenant import strategic_patch


class PodStatusWriter:
    """Writer of one tenant's pod statuses; every write names the pod's UID, so that it cannot change another pod."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._written_versions: dict[str, tuple[str, str]] = {}
        """Base and result version of the last status write, by pod UID."""

    def is_own_write(self, old: Meta, new: Meta) -> bool:
        """Return whether the only change between two versions of a pod is the last status write of the gateway.

        A write that started from an earlier version than `old` may hide changes by others.
        """
        return self._written_versions.get(new.uid) == (old.resource_version, new.resource_version)

    def is_watch_behind(self, metadata: Meta) -> bool:
        """Return whether the watch has not shown the last status write yet; versions of one object are numbers."""
        _, written = self._written_versions.get(metadata.uid, ("", ""))
        shown = metadata.resource_version
        return written.isdecimal() and shown.isdecimal() and int(shown) < int(written)

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted pod."""
        self._written_versions.pop(uid, None)

    async def write_mirrored(self, metadata: Meta, patch: Object, current_status: Object) -> None:
        """Patch a status that mirrors the compute pod, and record the versions before and after."""
        version = await self.patch_status(metadata, patch, current_status)
        self._written_versions[metadata.uid] = metadata.resource_version, version
        self._scope.meter.count_mirrored()

    async def patch_status(self, metadata: Meta, status: Object, current_status: Object) -> str:
        """Patch the pod's status if its UID still matches; return the resulting version.

        `current_status` is the status that the watch has shown. Conditions that others have set since are retained.
        """
        answer = await self._scope.client.patch(
            resources.PODS,
            metadata.name,
            {"metadata": {"uid": metadata.uid}, "status": strategic_patch(status, current_status)},
            namespace=metadata.namespace,
            subresource="status",
            kind="strategic",
            metadata_only=True,
        )
        return decode_object(answer).metadata.resource_version

    def utc_now(self) -> datetime:
        """Return the time of the tenant's clock."""
        return self._scope.clock.now()

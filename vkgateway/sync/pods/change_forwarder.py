"""What changes of a pod that already runs below: labels, annotations, spec, and its subresources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from vkgateway.kube import errors, resources
from vkgateway.kube.client import encode
from vkgateway.model.objects import Object
from vkgateway.model.requests import pod_requests
from vkgateway.sync.copies import CopyReconciler
from vkgateway.sync.pods.feature_guard import fields_lost_on_patch
from vkgateway.sync.pods.mirror import PodMirror, clean_message
from vkgateway.sync.pods.pod_context import PodContext, compute_pod_of, decode, plan_of, tenant_pod_of
from vkgateway.sync.refusals import is_starting, lacks_rights
from vkgateway.sync.views.annotations import AMOUNTS, FORWARDED, REQUESTS
from vkgateway.sync.views.ownership import Key
from vkgateway.translate.context import TenantContext
from vkgateway.translate.feature_gates import lost_fields_message
from vkgateway.translate.pod_diff import PodDiff, diff_pods, without_resize
from vkgateway.translate.subresources import Subresource, drop_lost_containers, resources_checksum, split_patch

_RETRY: Final = 30.0
"""Seconds until a change that there was no room for, or no right, is tried again."""
_NO_RIGHTS: Final = "the compute cluster does not let the gateway make this change now"


class _LostError(Exception):
    """The compute cluster would drop fields of all that a patch is about."""


class ChangeForwarder:
    """Writes changes of one tenant's pods down; `later(key, seconds)` asks for another look at a pod."""

    def __init__(self, *, upward: PodMirror, copies: CopyReconciler, later: Callable[[Key, float], None]) -> None:
        self._mirror = upward
        self._copies = copies
        self._requeue_after = later

    async def forward_changes(self, case: PodContext, tenant: TenantContext) -> None:
        """Bring labels, annotations and whatever may change of a running pod's spec down, and mark that as done."""
        above, below = tenant_pod_of(case), compute_pod_of(case)
        if case.binding is None:
            return  # its virtual node is gone, and the tenant's own collector removes it
        whole = decode(await self._mirror.read_pod(above))
        namespace, name = below.metadata.namespace, below.metadata.name
        current = decode(await case.link.client.get(resources.PODS, name, namespace=namespace))
        changes = diff_pods(whole, current, tenant=tenant, pool=case.binding.pool)
        for refusal in changes.unsupported:
            await self._mirror.emit_event(case, "ChangeNotForwarded", refusal.message)
        patch: Object = changes.patch or {}
        annotations = patch.setdefault("metadata", {}).setdefault("annotations", {})
        amounts, sent = resources_checksum(whole["spec"]), (current["metadata"].get("annotations") or {}).get(AMOUNTS)
        if amounts == sent and _is_within(current, case):
            changes = without_resize(changes)
        waiting = dict(changes.waiting_containers)
        if await self._write_subresources(case, changes, whole, waiting):
            annotations[FORWARDED] = above.fingerprint
            if amounts != sent and not case.resize_refused:
                annotations[AMOUNTS] = amounts
        if waiting:
            await self._mirror.show_waiting(case, whole["spec"]["ephemeralContainers"], waiting)
        if (
            not _is_resize_pending(case)
            and not case.resize_refused
            and below.admitted_requests != plan_of(case).requests
        ):
            annotations[REQUESTS] = encode(plan_of(case).requests).decode()
        if changes.patch or annotations:
            await self._write_patch(case, patch)

    async def _write_patch(self, case: PodContext, patch: Object) -> None:
        """Patch the compute pod; where its spec is refused, that is told and what else there is goes down."""
        below = compute_pod_of(case).metadata
        patch["metadata"]["uid"] = below.uid
        refused = await self._patch_pod(case, patch)
        if refused is not None:
            await self._mirror.emit_event(case, "ChangeNotForwarded", refused)
            if "spec" in patch:
                await self._patch_pod(case, {"metadata": patch["metadata"]})

    async def _write_subresources(
        self, case: PodContext, changes: PodDiff, whole: Object, waiting: dict[str, str]
    ) -> bool:
        """Bring ephemeral containers and other amounts of resources down; whether nothing of it is left for later.

        `whole` is the tenant's pod that the changes are made from; `waiting` gets the ephemeral containers that the
        compute cluster refuses.
        """
        uid, complete = compute_pod_of(case).metadata.uid, True
        for subresource, patch in changes.subresources.items():
            if subresource == "resize" and not await self._is_counted(case, whole):
                complete = False
                continue
            if subresource == "ephemeralcontainers":
                for reference in plan_of(case).references:
                    await self._copies.ensure_copy(case.link, reference)
            found = await self._write_subresource(case, {**patch, "metadata": {"uid": uid}}, subresource)
            for refused in dict.fromkeys(why for why, _ in found):
                await self._mirror.emit_event(case, "ChangeNotForwarded", refused)
                if refused == _NO_RIGHTS:
                    complete = False
                case.resize_refused = case.resize_refused or subresource == "resize"
            for why, one in found:
                waiting |= {container["name"]: why for container in one["spec"].get("ephemeralContainers") or ()}
        if not complete:
            self._requeue_after(case.key, _RETRY)
        return complete

    async def _write_subresource(
        self, case: PodContext, patch: Object, subresource: Subresource
    ) -> list[tuple[str, Object]]:
        """Patch a subresource; returns what is refused: why, in words for the tenant, and that part of the patch.

        Of several ephemeral containers that are refused together each is tried alone: one that was refused before is
        still there above, for nobody can take it away, and must hold up none that comes later.
        """
        refused = await self._patch_pod(case, patch, subresource)
        if refused is None or refused == _NO_RIGHTS or len(alone := split_patch(patch)) < 2:
            return [] if refused is None else [(refused, patch)]
        found = [(await self._patch_pod(case, one, subresource), one) for one in alone]
        return [(why, one) for why, one in found if why is not None]

    async def _is_counted(self, case: PodContext, whole: Object) -> bool:
        """Whether a pod may have what it asks for: it counts with that now. Where it waits for room, that is told.

        It may have been changed since it was looked at, and whoever is in the place of the tenant's API server may have
        told of no change: see `PodForwarder._read_admitted`.
        """
        if case.resize_admission is not None and _is_resize_pending(case):
            await self._mirror.emit_event(
                case, "ResizeDeferred", f"the pod is not resized yet: {case.resize_admission.message}"
            )
            return False
        return pod_requests(whole) == plan_of(case).requests

    async def _patch_pod(self, case: PodContext, patch: Object, subresource: Subresource | None = None) -> str | None:
        """Patch the compute pod; returns why it does not take the patch, in words for the tenant, or None."""
        below = compute_pod_of(case).metadata
        try:
            kept = patch if subresource is None else await self._without_lost_fields(case, patch, subresource)
            await case.link.client.patch(
                resources.PODS,
                below.name,
                kept,
                namespace=below.namespace,
                subresource=subresource,
                kind="strategic",
                metadata_only=True,
            )
        except _LostError as error:
            return str(error)
        except (errors.Invalid, errors.BadRequest, errors.Forbidden) as error:
            closed = lacks_rights(error)
            if is_starting(error) or (subresource is None and closed):
                raise
            return _NO_RIGHTS if closed else clean_message(case, error.server_message, namespace=below.namespace)
        except errors.NotFound as error:
            if subresource is None or f'pods "{below.name}" not found' in error.server_message:
                raise  # the pod itself is gone, as its watch is about to tell
            return f"the compute cluster knows no {subresource} of pods"
        return None

    async def _without_lost_fields(self, case: PodContext, patch: Object, subresource: Subresource) -> Object:
        """The patch without what would come down incomplete, which is told. Raises _LostError if nothing is left."""
        lost = await fields_lost_on_patch(case.link, compute_pod_of(case).metadata, patch, subresource)
        if not lost:
            return patch
        left = drop_lost_containers(patch, lost)
        if left is None:
            raise _LostError(lost_fields_message(lost))
        await self._mirror.emit_event(case, "ChangeNotForwarded", lost_fields_message(lost))
        return left


def _is_within(current: Object, case: PodContext) -> bool:
    """Whether a compute pod asks for no more than it was admitted with, and its tenant for just that."""
    counted = plan_of(case).requests
    if compute_pod_of(case).admitted_requests != counted:
        return False
    return all(amount <= counted.get(name, 0) for name, amount in pod_requests(current).items())


def _is_resize_pending(case: PodContext) -> bool:
    return case.resize_admission is not None and case.resize_admission.verdict == "held"

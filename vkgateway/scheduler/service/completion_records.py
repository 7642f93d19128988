"""Succeeded members of gangs, recorded in annotations of compute namespaces so that a restart preserves them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from vkgateway.api.names import GANGS_DONE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.api.objects import NamespaceView
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.runtime.views.ownership import namespace_owner
from vkgateway.scheduler.service.completions import Completion

if TYPE_CHECKING:
    from vkgateway.scheduler.service.tenant_admission import TenantAdmission

log = structlog.get_logger(__name__)

_GATHER: Final = 1.0
"""Seconds for which changes are gathered: a gang that is deleted pod by pod is mostly gone by then."""
_RETRY: Final = 5.0
"""Seconds after which a write is retried that failed, or that waits until all pods are known."""
_MOST: Final = 64 * 1024
"""Maximum bytes of one namespace's record; gangs beyond it are unknown after a restart."""

_Entry = dict[str, dict[str, dict[str, int]]]
"""One gang: by the UID of the controller and by role, pod names with the time of their end (seconds since the epoch).
"""


_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=64)
def _decode_records(text: str) -> dict[str, _Entry]:
    """Return the record of a namespace; an invalid one is empty."""
    try:
        return msgspec.json.decode(text, type=dict[str, _Entry])
    except msgspec.DecodeError:
        return {}


class CompletionRecords:
    """The records of one tenant."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._stale: set[str] = set()
        """Tenant namespaces whose completions changed."""
        self._wakeup = asyncio.Event()

    def mark_changed(self, namespace: str) -> None:
        """Request a write of a tenant namespace's completions."""
        self._stale.add(namespace)
        self._wakeup.set()

    def load_completions(self, group: str) -> Mapping[str, Completion]:
        """Return the recorded completions of a gang by pod name."""
        namespace, _, name = group.partition("/")
        found: dict[str, Completion] = {}
        for _, view in self._compute_namespaces(namespace):
            entry = _decode_records(view.metadata.annotations.get(GANGS_DONE_ANNOTATION, "{}")).get(name, {})
            for controller, roles in entry.items():
                for role, pods in roles.items():
                    found |= {pod: Completion(role, controller, ended) for pod, ended in pods.items()}
        return found

    async def run(self, admission: TenantAdmission) -> None:
        """Write the records of changed gangs, until cancelled."""
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(_GATHER)
            self._wakeup.clear()
            left = set()
            while self._stale:
                namespace = self._stale.pop()
                if not await self._try_write(admission, namespace):
                    left.add(namespace)
            if left:
                self._stale |= left
                await asyncio.sleep(_RETRY)
                self._wakeup.set()

    async def _try_write(self, admission: TenantAdmission, namespace: str) -> bool:
        if not admission.is_known:
            return False  # what is not read yet would be written off
        try:
            await self._write_namespace(admission, namespace)
        except errors.ApiError as error:
            log.info("completions not recorded", tenant=self._tenant, error=str(error))
            return False
        return True

    async def _write_namespace(self, admission: TenantAdmission, namespace: str) -> None:
        text = self._encode_records(admission, namespace)
        for link, view in list(self._compute_namespaces(namespace)):
            if view.metadata.annotations.get(GANGS_DONE_ANNOTATION) == text:
                continue
            change = {"metadata": {"uid": view.metadata.uid, "annotations": {GANGS_DONE_ANNOTATION: text}}}
            try:
                await link.client.patch(resources.NAMESPACES, view.metadata.name, change)
            except (errors.NotFound, errors.Conflict):
                continue

    def _encode_records(self, admission: TenantAdmission, namespace: str) -> str | None:
        """Return the record of a namespace; None if there is nothing to record."""
        entries: dict[str, _Entry] = {}
        size = 2
        for group, pods in sorted(admission.gangs.completions_in(namespace).items()):
            entry: _Entry = {}
            for name, done in sorted(pods.items()):
                entry.setdefault(done.controller, {}).setdefault(done.role, {})[name] = int(done.ended)
            key = group.partition("/")[2]
            size += len(_encode({key: entry}))
            if size <= _MOST:
                entries[key] = entry
        return _encode(entries).decode() if entries else None

    def _compute_namespaces(self, namespace: str) -> Iterator[tuple[ComputeLink, NamespaceView]]:
        """Yield the compute namespaces of a tenant namespace; not those of an earlier one of the same name."""
        name, current = compute_namespace(self._tenant, namespace), self._scope.cache.find_namespace(namespace)
        for link in self._scope.links.values():
            view = link.namespaces.store.get(("", name))
            if view is None or namespace_owner(view) != self._tenant:
                continue
            recorded = view.metadata.annotations.get(UID_ANNOTATION)
            if current is None or recorded in (None, current.metadata.uid):
                yield link, view

"""Members of gangs that ended well, written on compute namespaces for a gateway that is started anew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.names import GANGS_DONE_ANNOTATION, compute_namespace
from vkgateway.model.objects import NamespaceView
from vkgateway.sync.admission.completions import Completion
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.tenant_scope import TenantScope
from vkgateway.sync.views.ownership import namespace_owner

log = structlog.get_logger(__name__)

_GATHER: Final = 1.0
"""Seconds for which changes are gathered: a gang that is removed pod by pod has mostly gone by then."""
_RETRY: Final = 5.0
"""Seconds after which it is tried again where that failed, or not all pods are known yet."""
_MOST: Final = 64 * 1024
"""Bytes that are written on one namespace; gangs that find no room there are not known after a restart."""

_Entry = dict[str, dict[str, dict[str, int]]]
"""One gang's: by the UID of the controller and by role, pods' names and when they ended (seconds since the epoch)."""


_encode = msgspec.json.Encoder().encode


@lru_cache(maxsize=64)
def _decode_records(text: str) -> dict[str, _Entry]:
    """What a namespace says; what cannot be read says nothing."""
    try:
        return msgspec.json.decode(text, type=dict[str, _Entry])
    except msgspec.DecodeError:
        return {}


class CompletionSource(Protocol):
    """A tenant's gangs."""

    def completions_in(self, namespace: str) -> Mapping[str, Mapping[str, Completion]]:
        """By gang who is to be written down."""


class GangOwner(Protocol):
    """A tenant's part in the arbitration."""

    @property
    def gangs(self) -> CompletionSource:
        """Its gangs, as far as they are known."""

    @property
    def is_known(self) -> bool:
        """Whether that is all of them."""


class CompletionRecords:
    """The records of one tenant."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._stale: set[str] = set()
        """Tenant namespaces of which something has changed."""
        self._wakeup = asyncio.Event()

    def mark_changed(self, namespace: str) -> None:
        """Something has changed about those who are done in a tenant namespace."""
        self._stale.add(namespace)
        self._wakeup.set()

    def load_completions(self, group: str) -> Mapping[str, Completion]:
        """Return by name the pods of a gang that were recorded as done."""
        namespace, _, name = group.partition("/")
        found: dict[str, Completion] = {}
        for _, view in self._compute_namespaces(namespace):
            entry = _decode_records(view.metadata.annotations.get(GANGS_DONE_ANNOTATION, "{}")).get(name, {})
            for controller, roles in entry.items():
                for role, pods in roles.items():
                    found |= {pod: Completion(role, controller, ended) for pod, ended in pods.items()}
        return found

    async def run(self, owner: GangOwner) -> None:
        """Write the records of changed gangs, until cancelled."""
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(_GATHER)
            self._wakeup.clear()
            left = set()
            while self._stale:
                namespace = self._stale.pop()
                if not await self._try_write(owner, namespace):
                    left.add(namespace)
            if left:
                self._stale |= left
                await asyncio.sleep(_RETRY)
                self._wakeup.set()

    async def _try_write(self, owner: GangOwner, namespace: str) -> bool:
        if not owner.is_known:
            return False  # what is not read yet would be written off
        try:
            await self._write_namespace(owner, namespace)
        except errors.ApiError as error:
            log.info("who is done was not written down", tenant=self._tenant, error=str(error))
            return False
        return True

    async def _write_namespace(self, owner: GangOwner, namespace: str) -> None:
        text = self._encode_records(owner, namespace)
        for link, view in list(self._compute_namespaces(namespace)):
            if view.metadata.annotations.get(GANGS_DONE_ANNOTATION) == text:
                continue
            change = {"metadata": {"uid": view.metadata.uid, "annotations": {GANGS_DONE_ANNOTATION: text}}}
            try:
                await link.client.patch(resources.NAMESPACES, view.metadata.name, change)
            except (errors.NotFound, errors.Conflict):
                continue

    def _encode_records(self, owner: GangOwner, namespace: str) -> str | None:
        """What is to be written; None: nothing."""
        entries: dict[str, _Entry] = {}
        size = 2
        for group, pods in sorted(owner.gangs.completions_in(namespace).items()):
            entry: _Entry = {}
            for name, done in sorted(pods.items()):
                entry.setdefault(done.controller, {}).setdefault(done.role, {})[name] = int(done.ended)
            key = group.partition("/")[2]
            size += len(_encode({key: entry}))
            if size <= _MOST:
                entries[key] = entry
        return _encode(entries).decode() if entries else None

    def _compute_namespaces(self, namespace: str) -> Iterator[tuple[ComputeLink, NamespaceView]]:
        """The compute namespaces of a tenant namespace."""
        name = compute_namespace(self._tenant, namespace)
        for link in self._scope.links.values():
            view = link.namespaces.store.get(("", name))
            if view is not None and namespace_owner(view) == self._tenant:
                yield link, view

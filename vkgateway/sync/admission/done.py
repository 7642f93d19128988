"""Members of gangs that ended well, written on compute namespaces for a gateway that is started anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Final, Protocol

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.names import GANGS_DONE_ANNOTATION, compute_namespace
from vkgateway.model.objects import NamespaceView
from vkgateway.sync.admission.ended import Done
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import namespace_owner

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
def _read(text: str) -> dict[str, _Entry]:
    """What a namespace says; what cannot be read says nothing."""
    try:
        return msgspec.json.decode(text, type=dict[str, _Entry])
    except msgspec.DecodeError:
        return {}


class Gangs(Protocol):
    """A tenant's gangs."""

    def done_in(self, namespace: str) -> Mapping[str, Mapping[str, Done]]:
        """By gang who is to be written down."""


class Admission(Protocol):
    """A tenant's part in the arbitration."""

    @property
    def gangs(self) -> Gangs:
        """Its gangs, as far as they are known."""

    @property
    def known(self) -> bool:
        """Whether that is all of them."""


class DoneRecords:
    """One tenant's records; `who` tells whose they are."""

    def __init__(
        self,
        tenant: str,
        links: Mapping[str, ComputeLink],
        *,
        who: Callable[[], Admission],
    ) -> None:
        self._tenant = tenant
        self._links = links
        self._who = who
        self._stale: set[str] = set()
        """Tenant namespaces of which something has changed."""
        self._news = asyncio.Event()

    def changed(self, namespace: str) -> None:
        """Something has changed about those who are done in a tenant namespace."""
        self._stale.add(namespace)
        self._news.set()

    def recall(self, group: str) -> Mapping[str, Done]:
        """Return by name the pods of a gang that were recorded as done."""
        namespace, _, name = group.partition("/")
        found: dict[str, Done] = {}
        for _, view in self._namespaces(namespace):
            entry = _read(view.metadata.annotations.get(GANGS_DONE_ANNOTATION, "{}")).get(name, {})
            for controller, roles in entry.items():
                for role, pods in roles.items():
                    found |= {pod: Done(role, controller, ended) for pod, ended in pods.items()}
        return found

    async def run(self) -> None:
        """Write what has changed, until cancelled."""
        while True:
            await self._news.wait()
            await asyncio.sleep(_GATHER)
            self._news.clear()
            left = set()
            while self._stale:
                namespace = self._stale.pop()
                if not await self._try(namespace):
                    left.add(namespace)
            if left:
                self._stale |= left
                await asyncio.sleep(_RETRY)
                self._news.set()

    async def _try(self, namespace: str) -> bool:
        if not self._who().known:
            return False  # what is not read yet would be written off
        try:
            await self._write(namespace)
        except errors.ApiError as error:
            log.info("who is done was not written down", tenant=self._tenant, error=str(error))
            return False
        return True

    async def _write(self, namespace: str) -> None:
        text = self._text(namespace)
        for link, view in list(self._namespaces(namespace)):
            if view.metadata.annotations.get(GANGS_DONE_ANNOTATION) == text:
                continue
            change = {"metadata": {"uid": view.metadata.uid, "annotations": {GANGS_DONE_ANNOTATION: text}}}
            try:
                await link.client.patch(resources.NAMESPACES, view.metadata.name, change)
            except (errors.NotFound, errors.Conflict):
                continue

    def _text(self, namespace: str) -> str | None:
        """What is to be written; None: nothing."""
        entries: dict[str, _Entry] = {}
        size = 2
        for group, pods in sorted(self._who().gangs.done_in(namespace).items()):
            entry: _Entry = {}
            for name, done in sorted(pods.items()):
                entry.setdefault(done.controller, {}).setdefault(done.role, {})[name] = int(done.ended)
            key = group.partition("/")[2]
            size += len(_encode({key: entry}))
            if size <= _MOST:
                entries[key] = entry
        return _encode(entries).decode() if entries else None

    def _namespaces(self, namespace: str) -> Iterator[tuple[ComputeLink, NamespaceView]]:
        """The compute namespaces of a tenant namespace."""
        name = compute_namespace(self._tenant, namespace)
        for link in self._links.values():
            view = link.namespaces.items.get(("", name))
            if view is not None and namespace_owner(view) == self._tenant:
                yield link, view

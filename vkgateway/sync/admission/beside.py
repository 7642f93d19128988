"""Objects in a tenant's cluster that say more about its gangs (PodGroups, jobs), watched once a pod refers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog
from msgspec import structs

from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import Resource
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.admission.kinds import kind_of
from vkgateway.sync.compute.ownership import Key
from vkgateway.translate.gangs import Reference

log = structlog.get_logger(__name__)

_RETRY: Final = 15.0
"""Seconds until it is asked again for a kind that the tenant's API server does not know, or tells no more of."""

_Kind = tuple[str, str]
"""API group and plural."""


class WholeView(msgspec.Struct):
    """An object with everything that is in it."""

    metadata: Meta
    whole: Object


def decode_whole(data: bytes) -> WholeView:
    """Decode an object from its JSON; a server of the tenant's own need not send one. Raises msgspec.DecodeError."""
    whole = msgspec.json.decode(data, type=dict[str, Any])
    return WholeView(msgspec.convert(whole.get("metadata") or {}, Meta), whole)


@dataclass(frozen=True, slots=True)
class _Watch:
    """A kind that is followed, in one version."""

    resource: Resource
    reflector: Reflector[WholeView]
    task: asyncio.Task[None]


class Beside:
    """Finds objects beside pods; `changed(reference)` hears of each that came, changed or went."""

    def __init__(self, tenant: str, client: Client, *, changed: Callable[[Reference], None]) -> None:
        self._tenant = tenant
        self._client = client
        self._changed = changed
        self._watches: dict[_Kind, _Watch] = {}
        self._lost: set[_Kind] = set()
        """Kinds that cannot be followed now: perhaps they are served in another version only."""
        self._wanted: dict[_Kind, Reference] = {}
        self._absent: set[_Kind] = set()
        """Kinds that were asked for, and that the server did not tell of."""
        self._news = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Whether each wanted kind was listed or is not to be had: absence is a fact, as far as it can be."""
        return all(
            kind in self._absent or (kind in self._watches and self._watches[kind].reflector.complete)
            for kind in self._wanted
        )

    def want(self, reference: Reference) -> None:
        """Have objects of this kind watched from now on."""
        kind = reference.group, reference.plural
        if kind not in self._wanted:
            self._wanted[kind] = reference
            self._news.set()

    def look(self, reference: Reference) -> Object | None:
        """The object, or None where it is not there or not known yet."""
        watch = self._watches.get((reference.group, reference.plural))
        view = watch.reflector.items.get((reference.namespace, reference.name)) if watch is not None else None
        return view.whole if view is not None else None

    async def run(self) -> None:
        """Watch what is wanted, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                for kind, reference in list(self._wanted.items()):
                    if kind not in self._watches or kind in self._lost:
                        await self._follow(kind, reference, group)
                missing = len(self._watches) < len(self._wanted) or bool(self._lost)
                try:
                    async with asyncio.timeout(_RETRY if missing else None):
                        await self._news.wait()
                except TimeoutError:
                    continue

    async def _follow(self, kind: _Kind, reference: Reference, group: asyncio.TaskGroup) -> None:
        """Watch a kind in the version in which it is served, if that is another than before."""
        resource, old = await self._resource(reference), self._watches.get(kind)
        if resource is None:
            if old is None:
                self._absent.add(kind)
            return
        self._absent.discard(kind)
        if old is not None and old.resource == resource:
            return
        if old is not None:
            old.task.cancel()
        self._lost.discard(kind)
        reflector = self._reflector(
            reference, resource, old.reflector.items if old is not None else MappingProxyType({})
        )
        task = group.create_task(reflector.run(), name=f"tenant/{self._tenant}/watch-{reference.plural}")
        self._watches[kind] = _Watch(resource, reflector, task)

    def _reflector(self, like: Reference, resource: Resource, before: Mapping[Key, WholeView]) -> Reflector[WholeView]:
        """`before` is what was known in another version, and holds until all is listed in this one."""
        kind = like.group, like.plural

        def on_change(old: WholeView | None, new: WholeView | None) -> None:
            view = new or old
            assert view is not None
            namespace, name = view.metadata.key
            self._changed(Reference(like.group, like.kind, like.plural, namespace, name))

        def on_reachable(reachable: bool, _why: str) -> None:
            if reachable:
                self._lost.discard(kind)
            else:
                self._lost.add(kind)
                self._news.set()

        made = Reflector(self._client, resource, decode=decode_whole, on_change=on_change, on_reachable=on_reachable)
        for key, view in before.items():  # without their versions: each is told anew, also where it has not changed
            made.items[key] = WholeView(structs.replace(view.metadata, resource_version=""), view.whole)
        return made

    async def _resource(self, reference: Reference) -> Resource | None:
        """None where the server does not know the kind now."""
        why = f"no version of {reference.group} has it"
        try:
            if (found := await kind_of(reference, self._client, Discovery(self._client))) is not None:
                return found
        except (errors.ApiError, msgspec.DecodeError) as error:
            why = str(error)
        if (reference.group, reference.plural) not in self._watches:
            log.info("kind not known", tenant=self._tenant, kind=reference.kind, error=why)
        return None

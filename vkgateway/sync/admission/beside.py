"""Objects in a tenant's cluster that say more about its gangs (PodGroups, jobs), watched once a pod refers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import Resource
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.admission.kinds import kind_of
from vkgateway.translate.gangs import Reference

log = structlog.get_logger(__name__)

_RETRY: Final = 15.0
"""Seconds until it is asked again for a kind that the tenant's API server does not know."""

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


class Beside:
    """Finds objects beside pods; `changed(reference)` hears of each that came, changed or went."""

    def __init__(self, tenant: str, client: Client, *, changed: Callable[[Reference], None]) -> None:
        self._tenant = tenant
        self._client = client
        self._discovery = Discovery(client)
        self._changed = changed
        self._watches: dict[_Kind, Reflector[WholeView]] = {}
        self._wanted: dict[_Kind, Reference] = {}
        self._absent: set[_Kind] = set()
        """Kinds that were asked for, and that the server did not tell of."""
        self._news = asyncio.Event()

    @property
    def complete(self) -> bool:
        """Whether each wanted kind was listed or is not to be had: absence is a fact, as far as it can be."""
        return all(
            kind in self._absent or (kind in self._watches and self._watches[kind].complete) for kind in self._wanted
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
        view = watch.items.get((reference.namespace, reference.name)) if watch is not None else None
        return view.whole if view is not None else None

    async def run(self) -> None:
        """Watch what is wanted, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._news.clear()
                for kind, reference in list(self._wanted.items()):
                    if kind in self._watches:
                        continue
                    resource = await self._resource(reference)
                    if resource is None:
                        self._absent.add(kind)
                        continue
                    self._absent.discard(kind)
                    watch = self._watches[kind] = self._watch(reference, resource)
                    group.create_task(watch.run(), name=f"tenant/{self._tenant}/watch-{reference.plural}")
                missing = len(self._watches) < len(self._wanted)
                try:
                    async with asyncio.timeout(_RETRY if missing else None):
                        await self._news.wait()
                except TimeoutError:
                    continue

    def _watch(self, like: Reference, resource: Resource) -> Reflector[WholeView]:
        def on_change(old: WholeView | None, new: WholeView | None) -> None:
            view = new or old
            assert view is not None
            namespace, name = view.metadata.key
            self._changed(Reference(like.group, like.kind, like.plural, namespace, name))

        return Reflector(self._client, resource, decode=decode_whole, on_change=on_change)

    async def _resource(self, reference: Reference) -> Resource | None:
        """None where the server does not know the kind now."""
        why = f"no version of {reference.group} has it"
        try:
            if (found := await kind_of(reference, self._client, self._discovery)) is not None:
                return found
        except (errors.ApiError, msgspec.DecodeError) as error:
            why = str(error)
        log.info("kind not known", tenant=self._tenant, kind=reference.kind, error=why)
        return None

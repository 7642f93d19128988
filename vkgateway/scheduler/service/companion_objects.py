"""Companion objects of gangs in a tenant cluster (PodGroups, jobs), watched once a pod refers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import msgspec
import structlog
from msgspec import structs

from vkgateway.api.objects import Meta, Object
from vkgateway.kinds.sources import Source
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.kube.resources import CRDS, Resource
from vkgateway.runtime.views.ownership import Key
from vkgateway.scheduler.gangs import Kind, Reference

log = structlog.get_logger(__name__)

_RETRY: Final = 15.0
"""Seconds until the API server is asked again for a kind that it does not serve."""


COMPANIONS: Final = Source[Reference]("companion objects")
"""A companion object was created, changed or deleted."""
COMPANION_KINDS: Final = Source[Kind]("kinds of companion objects")
"""The server does not serve a kind any more, or serves it now."""


class CompanionView(msgspec.Struct):
    """An object with its whole document."""

    metadata: Meta
    document: Object


def decode_companion(data: bytes) -> CompanionView:
    """Decode an object from JSON. A tenant's server may send anything. Raises msgspec.DecodeError."""
    whole = msgspec.json.decode(data, type=dict[str, Any])
    return CompanionView(msgspec.convert(whole.get("metadata") or {}, Meta), whole)


@dataclass(frozen=True, slots=True)
class _Watch:
    """Watch of a kind in one version."""

    resource: Resource
    reflector: Reflector[CompanionView]
    task: asyncio.Task[None]


class CompanionObjects:
    """Cache of one tenant's companion objects. Notifies `COMPANIONS` and `COMPANION_KINDS` of changes."""

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._tenant = scope.name
        self._client = scope.client
        self._watches: dict[Kind, _Watch] = {}
        self._unreachable: set[Kind] = set()
        """Kinds whose watch fails: the server may serve them in another version only."""
        self._wanted: dict[Kind, None] = {}
        self._absent: set[Kind] = set()
        """Kinds that the server does not serve, or about which its answer failed."""
        self._unserved: set[Kind] = set()
        """Kinds that the server did not serve by its last answer. A pod may be newer than that: see `find_unserved`."""
        self._wakeup = asyncio.Event()

    @property
    def is_complete(self) -> bool:
        """Whether each wanted kind was listed or is unavailable, so that missing objects do not exist."""
        return all(
            kind in self._absent or (kind in self._watches and self._watches[kind].reflector.is_complete)
            for kind in self._wanted
        )

    def watch_kind_of(self, reference: Reference) -> None:
        """Watch the kind of an object from now on."""
        if reference.object_kind not in self._wanted:
            self._wanted[reference.object_kind] = None
            self._wakeup.set()

    def is_watched(self, kind: Kind) -> bool:
        """Return whether a kind is watched now, and so is served."""
        return kind in self._watches and kind not in self._unreachable

    async def find_unserved(self, kinds: Iterable[Kind]) -> frozenset[Kind]:
        """Ask the server which of these kinds it does not serve now.

        The last answer does not suffice: a kind may have been installed just before a pod that refers to it. A kind
        about which the server gives no answer is not included, since an error must not turn gangs into single pods. If
        the pod wants that kind, `COMPANION_KINDS` is notified once the server answers.
        """
        found, unknown = set(), set()
        for kind in kinds:
            if self.is_watched(kind):
                continue
            try:
                if await served_kind(kind, self._client) is None:
                    found.add(kind)
                    self._note_served(kind, served=False)
                elif kind in self._unserved:
                    self._wakeup.set()
            except (errors.ApiError, msgspec.DecodeError) as error:
                log.info("unknown whether a kind is served", tenant=self._tenant, kind=str(kind), error=str(error))
                unknown.add(kind)
        self._unserved -= unknown
        return frozenset(found)

    def get_object(self, reference: Reference) -> Object | None:
        """Return the object; None if it does not exist or is not known yet."""
        watch = self._watches.get(reference.object_kind)
        view = watch.reflector.store.get((reference.namespace, reference.name)) if watch is not None else None
        return view.document if view is not None else None

    async def run(self) -> None:
        """Watch the wanted kinds until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._wakeup.clear()
                for kind in list(self._wanted):
                    if not self.is_watched(kind):
                        await self._watch_kind(kind, group)
                missing = len(self._watches) < len(self._wanted) or bool(self._unreachable)
                try:
                    async with asyncio.timeout(_RETRY if missing else None):
                        await self._wakeup.wait()
                except TimeoutError:
                    continue

    async def _watch_kind(self, kind: Kind, group: asyncio.TaskGroup) -> None:
        """Watch a kind in the served version, unless that version is watched already."""
        resource, old = await self._find_resource(kind), self._watches.get(kind)
        if resource is None:
            if old is None:
                self._absent.add(kind)
            return
        self._absent.discard(kind)
        if old is not None and old.resource == resource:
            return
        if old is not None:
            old.task.cancel()
        self._unreachable.discard(kind)
        before = old.reflector.store if old is not None else MappingProxyType({})
        reflector = self._new_reflector(kind, resource, before)
        task = group.create_task(reflector.run(), name=f"tenant/{self._tenant}/watch-{kind.plural}")
        self._watches[kind] = _Watch(resource, reflector, task)

    def _note_served(self, kind: Kind, *, served: bool) -> None:
        """Record whether the server serves a kind, and notify watchers of a change."""
        if served == (kind not in self._unserved):
            return
        if served:
            self._unserved.discard(kind)
        else:
            self._unserved.add(kind)
        self._scope.watches.notify(COMPANION_KINDS, kind)

    def _new_reflector(
        self, kind: Kind, resource: Resource, before: Mapping[Key, CompanionView]
    ) -> Reflector[CompanionView]:
        """Return a reflector for a kind. `before` has the objects of another version until this one is listed."""

        def on_change(old: CompanionView | None, new: CompanionView | None) -> None:
            view = new or old
            assert view is not None
            self._scope.watches.notify(COMPANIONS, Reference(*kind, *view.metadata.key))

        def on_reachable(reachable: bool, _why: str) -> None:
            if reachable:
                self._unreachable.discard(kind)
                self._note_served(kind, served=True)
            else:
                self._unreachable.add(kind)
                self._wakeup.set()

        made = Reflector(
            self._client, resource, decode=decode_companion, on_change=on_change, on_reachable=on_reachable
        )
        for key, view in before.items():  # without their versions, so that each object counts as changed
            made.store[key] = CompanionView(structs.replace(view.metadata, resource_version=""), view.document)
        return made

    async def _find_resource(self, kind: Kind) -> Resource | None:
        """Return the resource of a kind; None if the server does not serve it, or does not answer."""
        why = "it is not served"
        try:
            if (found := await served_kind(kind, self._client)) is not None:
                return found
            self._note_served(kind, served=False)
        except (errors.ApiError, msgspec.DecodeError) as error:
            why = str(error)
        if kind not in self._watches:
            log.info("kind not known", tenant=self._tenant, kind=str(kind), error=why)
        return None


class _Version(msgspec.Struct, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    preferred_version: _Version = msgspec.field(default_factory=_Version)
    versions: list[_Version] = []

    def preferred_versions(self) -> list[str]:
        """Return the group's versions, the preferred one first."""
        return list(
            filter(None, dict.fromkeys(each.group_version for each in (self.preferred_version, *self.versions)))
        )


async def find_kind(kind: Kind, client: Client, discovery: Discovery) -> Resource | None:
    """Return the kind in the first version of the server's preference that has it; None if discovery does not have the
    kind.

    Not all versions of a group have all of its kinds: `scheduling.k8s.io` prefers v1, and has PodGroups in v1alpha2.

    Raises:
        ApiError: the server does not answer, or not for a version that it lists.
        DecodeError: the answer is no API group.
    """
    try:
        answer = await client.request("GET", f"/apis/{kind.group}")
    except errors.NotFound:
        return None
    lost: errors.NotFound | None = None
    for version in msgspec.json.decode(answer, type=_Group).preferred_versions():
        try:
            found = await discovery.find_resource(version, kind.kind)
        except errors.NotFound as error:
            lost = error
            continue
        if found is not None:
            return found
    if lost is not None:
        raise lost
    return None


async def served_kind(kind: Kind, client: Client) -> Resource | None:
    """Return the same, where None means that the server certainly does not serve the kind.

    Discovery alone is not certain: it lacks a kind for a moment after its CustomResourceDefinition was created, and a
    proxy may answer 404, too. So the server must also confirm that no definition exists.

    Raises:
        ApiError: the server does not answer, or will serve the kind in a moment.
        DecodeError: the answer is no API group.
    """
    found = await find_kind(kind, client, Discovery(client))
    if found is not None:
        return found
    name = f"{kind.plural}.{kind.group}"
    try:
        await client.get(CRDS, name)
    except errors.NotFound as error:
        if error.reason != "NotFound":
            raise
        return None
    raise errors.ServerError(f"CustomResourceDefinition {name} at {client.name} is not served yet")

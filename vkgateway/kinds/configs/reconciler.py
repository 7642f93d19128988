"""Copies of ConfigMaps and Secrets in compute clusters, kept while a forwarded pod refers to them.

The caches have name, UID and version only: tenants can have many large objects, and Secrets must not stay in memory.
The content is fetched when a copy is written.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from vkgateway.api.errors import ConflictError
from vkgateway.api.names import UID_ANNOTATION, compute_namespace
from vkgateway.api.objects import Meta, ObjectView, decode_object
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.configs.translation import compute_name, forward_config_map, forward_secret
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_COPIES, COMPUTE_REACHABLE, RESYNC, TENANT_CONFIG
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors
from vkgateway.runtime.requests import RequestKind
from vkgateway.runtime.views.annotations import SOURCE_VERSION
from vkgateway.runtime.views.ownership import COPY_RESOURCES, CopyKind, Key, Reference, is_copy

_FORWARD: dict[CopyKind, Callable[..., dict[str, Any]]] = {
    "configmaps": forward_config_map,
    "secrets": forward_secret,
}


COPY: Final = RequestKind[Reference]("copy")
_WATCH_SECONDS: Final = 5.0
"""How long the watch may take to show a created copy. One that was deleted in between is created again afterwards."""
_UNUSED_SECONDS: Final = 30.0
"""Seconds for which a copy is kept after its last pod: the pods of Jobs refer to the same objects one after another."""


class CopyReferences:
    """Which pods of one tenant refer to which ConfigMaps and Secrets, and in which compute cluster."""

    def __init__(self) -> None:
        self._pods_by_reference: defaultdict[Reference, set[Key]] = defaultdict(set)
        self._references: dict[Key, frozenset[Reference]] = {}
        self._clusters: dict[Key, str] = {}
        """The compute cluster of each compute pod that exists, or is being created."""
        self._use_counts: Counter[tuple[str, Reference]] = Counter()
        """The number of pods in a compute cluster that refer to an object."""

    def set_references(self, pod: Key, references: Iterable[Reference]) -> None:
        """Record the objects that a pod refers to, in place of those recorded before."""
        new = frozenset(references)
        old = self._references.get(pod, frozenset())
        if new == old:
            return
        for reference in old - new:
            self._pods_by_reference[reference].discard(pod)
            if not self._pods_by_reference[reference]:
                del self._pods_by_reference[reference]
        for reference in new - old:
            self._pods_by_reference[reference].add(pod)
        self._count_uses(pod, old - new, -1)
        self._count_uses(pod, new - old, 1)
        self._references[pod] = new

    def set_cluster(self, pod: Key, link: ComputeLink) -> None:
        """Record the compute cluster of a pod: objects that it refers to may change before the watch shows the pod."""
        if self._clusters.get(pod) == link.name:
            return
        references = self._references.get(pod, frozenset())
        self._count_uses(pod, references, -1)
        self._clusters[pod] = link.name
        self._count_uses(pod, references, 1)

    def forget_pod(self, pod: Key) -> list[Reference]:
        """Forget a pod; return the objects that no pod refers to any more."""
        unused = []
        references = self._references.pop(pod, frozenset())
        self._count_uses(pod, references, -1)
        self._clusters.pop(pod, None)
        for reference in references:
            users = self._pods_by_reference[reference]
            users.discard(pod)
            if not users:
                del self._pods_by_reference[reference]
                unused.append(reference)
        return unused

    def is_used(self, reference: Reference) -> bool:
        """Return whether a pod refers to an object."""
        return reference in self._pods_by_reference

    def is_used_in(self, link: ComputeLink, reference: Reference) -> bool:
        """Return whether a pod in a compute cluster refers to an object."""
        return (link.name, reference) in self._use_counts

    def referenced_objects(self) -> list[Reference]:
        """Return every object that a pod refers to."""
        return list(self._pods_by_reference)

    def _count_uses(self, pod: Key, references: Iterable[Reference], by: int) -> None:
        cluster = self._clusters.get(pod)
        if cluster is None:
            return
        for reference in references:
            key = cluster, reference
            self._use_counts[key] += by
            if not self._use_counts[key]:
                del self._use_counts[key]


class CopyReconciler:
    """Reconciler of copies of one tenant's ConfigMaps and Secrets in all its compute clusters.

    The content of an object is read when it is copied, and not retained.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._sources = scope.cache.sources
        self.references = CopyReferences()
        self._writes: dict[tuple[str, Reference, str], asyncio.Future[bool]] = {}
        """Running writes by compute cluster, object and its version; the result is whether the copy was written."""
        self._unseen: dict[tuple[str, Reference], tuple[str, float]] = {}
        """Created copies that the watch of the compute cluster doesn't show yet: version, and when to stop waiting."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(COPY, self.reconcile)
            .watches(TENANT_CONFIG, self._source_changed)
            .watches(COMPUTE_COPIES, lambda kind, key: self._copy_changed((kind, *key)))
            .watches(COMPUTE_REACHABLE, self._unseen.clear)
            .watches(RESYNC, self._enqueue_all)
        )

    def enqueue_unused(self, reference: Reference) -> None:
        """Request that an unused copy is deleted after a while."""
        self._scope.work_queue.enqueue(COPY, reference, _UNUSED_SECONDS)

    def source_exists(self, reference: Reference) -> bool:
        """Return whether the tenant has the object."""
        kind, namespace, name = reference
        return (namespace, name) in self._sources[kind].store

    async def ensure_copy(self, link: ComputeLink, reference: Reference) -> None:
        """Make the copy equal to the tenant's object; delete it where that does not exist, or no pod refers to it.

        Raises:
            ConflictError: an object in the compute cluster that is not this tenant's has the name.
        """
        kind, namespace, name = reference
        source = self._sources[kind].store.get((namespace, name))
        copy = self._find_copy(link, reference)
        if source is None or not self.references.is_used(reference):
            if copy is not None:
                await self._delete_copy(link, kind, copy.metadata)
            return
        if copy is not None and _is_current(source.metadata, copy.metadata):
            return
        if copy is None and self._was_just_created(link, reference, source.metadata.resource_version):
            return
        await self._write_once(link, reference, version=source.metadata.resource_version, copy=copy)

    async def reconcile(self, reference: Reference) -> None:
        """Make the copies in all trusted compute clusters that have one, or have pods that refer to the object.

        The compute namespace must exist. The watch may not show it yet where it was created for a pod a moment ago.
        """

        async def freshen(link: ComputeLink) -> None:
            below = link.namespaces.find_namespace(self._scope.name, reference[1])
            if not link.is_trusted or (below is not None and below.metadata.deletion_timestamp is not None):
                return
            if below is not None and self._find_copy(link, reference) is not None:
                await self.ensure_copy(link, reference)
            elif self.references.is_used_in(link, reference):
                with contextlib.suppress(errors.NotFound):  # the namespace was deleted
                    await self.ensure_copy(link, reference)

        await apply_to_each(list(self._scope.links.values()), freshen)

    def find_unused(self, link: ComputeLink) -> list[Reference]:
        """Return the copies in a compute cluster that no pod of the tenant refers to."""
        found: list[Reference] = []
        for kind in COPY_RESOURCES:
            for key in link.copies[kind].of_tenant(self._scope.name):
                reference: Reference = (kind, *key)
                if not self.references.is_used(reference):
                    found.append(reference)
        return found

    def _source_changed(self, reference: Reference) -> None:
        if self.references.is_used(reference):
            self._scope.work_queue.enqueue(COPY, reference)

    def _was_just_created(self, link: ComputeLink, reference: Reference, version: str) -> bool:
        created, until = self._unseen.get((link.name, reference), ("", 0.0))
        return created == version and self._scope.clock.monotonic() < until

    def _copy_changed(self, reference: Reference) -> None:
        for link in self._scope.links.values():
            self._unseen.pop((link.name, reference), None)
        self._scope.work_queue.enqueue(COPY, reference)

    def _enqueue_all(self) -> None:
        # Changes that a list found before everything was known were not acted upon.
        for reference in self.references.referenced_objects():
            self._scope.work_queue.enqueue(COPY, reference)

    def _find_copy(self, link: ComputeLink, reference: Reference) -> ObjectView | None:
        kind, namespace, name = reference
        below = compute_namespace(self._scope.name, namespace), compute_name(kind, name)
        copy = link.copies[kind].store.get(below)
        return copy if copy is not None and is_copy(self._scope.name, copy.metadata) else None

    async def _delete_copy(self, link: ComputeLink, kind: CopyKind, metadata: Meta) -> None:
        try:
            await link.client.delete(
                COPY_RESOURCES[kind], metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _write_once(
        self, link: ComputeLink, reference: Reference, *, version: str, copy: ObjectView | None
    ) -> None:
        """Write a copy, or wait until it is written for another pod: the first pods of a namespace start together."""
        key = link.name, reference, version
        while (running := self._writes.get(key)) is not None:
            if await asyncio.shield(running):
                return
        is_written = False
        done = self._writes[key] = asyncio.get_running_loop().create_future()
        try:
            await self._write_copy(link, reference, copy)
            is_written = True
            if self._find_copy(link, reference) is None:
                self._unseen[link.name, reference] = version, self._scope.clock.monotonic() + _WATCH_SECONDS
        finally:
            del self._writes[key]
            done.set_result(is_written)

    async def _write_copy(self, link: ComputeLink, reference: Reference, copy: ObjectView | None) -> None:
        kind, namespace, name = reference
        resource = COPY_RESOURCES[kind]
        whole = msgspec.json.decode(await self._scope.client.get(resource, name, namespace=namespace))
        wanted = _FORWARD[kind](whole, tenant=self._scope.tenant, namespace=namespace)
        wanted["metadata"]["annotations"][SOURCE_VERSION] = whole["metadata"]["resourceVersion"]
        below, called = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if copy is None:
            try:
                await link.client.create(resource, wanted, namespace=below)
            except errors.AlreadyExists:
                copy = decode_object(await link.client.get(resource, called, namespace=below))
                if not is_copy(self._scope.name, copy.metadata):
                    raise ConflictError(f"{kind}/{name}: the name is taken in the compute cluster") from None
            else:
                return
        await self._replace_copy(link, kind, wanted, copy.metadata)

    async def _replace_copy(self, link: ComputeLink, kind: CopyKind, wanted: dict[str, Any], copy: Meta) -> None:
        """Update a copy. An immutable copy, whose source was deleted and created again, is re-created."""
        resource = COPY_RESOURCES[kind]
        try:
            await link.client.replace(resource, copy.name, wanted, namespace=copy.namespace)
        except errors.Invalid:
            await self._delete_copy(link, kind, copy)
            await link.client.create(resource, wanted, namespace=copy.namespace)


def _is_current(source: Meta, copy: Meta) -> bool:
    return (
        copy.annotations.get(UID_ANNOTATION) == source.uid
        and copy.annotations.get(SOURCE_VERSION) == source.resource_version
    )

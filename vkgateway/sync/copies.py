"""ConfigMaps and Secrets below: copied while a forwarded pod refers to them, kept fresh, and removed after."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import structlog

from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import ConflictError
from vkgateway.model.names import UID_ANNOTATION, compute_namespace
from vkgateway.model.objects import Meta, ObjectView, decode_object
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.views.annotations import SOURCE_VERSION
from vkgateway.sync.views.ownership import COPY_RESOURCES, CopyKind, Key, Reference, is_copy
from vkgateway.translate.config_copies import compute_name, forward_config_map, forward_secret
from vkgateway.translate.context import TenantContext

log = structlog.get_logger(__name__)

_FORWARD: dict[CopyKind, Callable[..., dict[str, Any]]] = {
    "configmaps": forward_config_map,
    "secrets": forward_secret,
}


class CopyReconciler:
    """One tenant's copies in all its compute clusters.

    `sources` are the tenant's own objects, narrow: only names, UIDs and versions; an object's content passes through
    and is not kept.
    """

    def __init__(self, tenant: TenantContext, client: Client, sources: dict[CopyKind, Reflector[ObjectView]]) -> None:
        self.tenant = tenant
        self._client = client
        self._sources = sources
        self._pods_by_reference: defaultdict[Reference, set[Key]] = defaultdict(set)
        self._references: dict[Key, frozenset[Reference]] = {}
        self._clusters: dict[Key, str] = {}
        """The compute cluster in which a pod stands, or is being made."""
        self._use_counts: Counter[tuple[str, Reference]] = Counter()
        """How many pods of a compute cluster refer to an object."""

    def set_references(self, pod: Key, references: Iterable[Reference]) -> None:
        """Note what a pod refers to, in the place of what it referred to before."""
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
        """Note where a pod stands, or is being made: what it refers to may change before the watch there shows it."""
        if self._clusters.get(pod) == link.name:
            return
        references = self._references.get(pod, frozenset())
        self._count_uses(pod, references, -1)
        self._clusters[pod] = link.name
        self._count_uses(pod, references, 1)

    def forget_pod(self, pod: Key) -> list[Reference]:
        """Forget a pod; returns what nobody refers to any more."""
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

    def pods_using(self, reference: Reference) -> set[Key]:
        """The pods that refer to an object."""
        return self._pods_by_reference.get(reference, set())

    def referenced_objects(self) -> list[Reference]:
        """Everything that some pod refers to."""
        return list(self._pods_by_reference)

    def source_exists(self, reference: Reference) -> bool:
        """Whether the tenant has the object."""
        kind, namespace, name = reference
        return (namespace, name) in self._sources[kind].store

    async def ensure_copy(self, link: ComputeLink, reference: Reference) -> None:
        """Make the copy equal to the tenant's object, or remove it where that is gone or not referred to.

        Raises:
            ConflictError: the name below is taken by an object that is not this tenant's.
        """
        kind, namespace, name = reference
        source = self._sources[kind].store.get((namespace, name))
        copy = self._find_copy(link, reference)
        if source is None or not self._pods_by_reference.get(reference):
            if copy is not None:
                await self._delete_copy(link, kind, copy.metadata)
            return
        if copy is not None and _is_current(source.metadata, copy.metadata):
            return
        await self._write_copy(link, reference, copy)

    async def reconcile(self, reference: Reference, links: Iterable[ComputeLink]) -> None:
        """Do so in all compute clusters that have a copy, or pods that need one; new pods bring theirs.

        They must be trusted and have the object's namespace, as long as that stays. One that was made for a pod just
        now may not have shown yet.
        """

        async def freshen(link: ComputeLink) -> None:
            below = link.namespaces.find_namespace(self.tenant.name, reference[1])
            if not link.is_trusted or (below is not None and below.metadata.deletion_timestamp is not None):
                return
            if below is not None and self._find_copy(link, reference) is not None:
                await self.ensure_copy(link, reference)
            elif (link.name, reference) in self._use_counts:
                with contextlib.suppress(errors.NotFound):  # what is gone by now is none of ours
                    await self.ensure_copy(link, reference)

        await apply_to_each(links, freshen)

    def find_unused(self, link: ComputeLink) -> list[Reference]:
        """Copies in a compute cluster that no pod of the tenant refers to."""
        found: list[Reference] = []
        for kind in COPY_RESOURCES:
            for key in link.copies[kind].of_tenant(self.tenant.name):
                reference: Reference = (kind, *key)
                if reference not in self._pods_by_reference:
                    found.append(reference)
        return found

    def _count_uses(self, pod: Key, references: Iterable[Reference], by: int) -> None:
        place = self._clusters.get(pod)
        if place is None:
            return
        for reference in references:
            key = place, reference
            self._use_counts[key] += by
            if not self._use_counts[key]:
                del self._use_counts[key]

    def _find_copy(self, link: ComputeLink, reference: Reference) -> ObjectView | None:
        kind, namespace, name = reference
        below = compute_namespace(self.tenant.name, namespace), compute_name(kind, name)
        copy = link.copies[kind].store.get(below)
        return copy if copy is not None and is_copy(self.tenant.name, copy.metadata) else None

    async def _delete_copy(self, link: ComputeLink, kind: CopyKind, metadata: Meta) -> None:
        try:
            await link.client.delete(
                COPY_RESOURCES[kind], metadata.name, namespace=metadata.namespace, uid=metadata.uid
            )
        except (errors.NotFound, errors.Conflict):
            return

    async def _write_copy(self, link: ComputeLink, reference: Reference, copy: ObjectView | None) -> None:
        kind, namespace, name = reference
        resource = COPY_RESOURCES[kind]
        whole = msgspec.json.decode(await self._client.get(resource, name, namespace=namespace))
        wanted = _FORWARD[kind](whole, tenant=self.tenant, namespace=namespace)
        wanted["metadata"]["annotations"][SOURCE_VERSION] = whole["metadata"]["resourceVersion"]
        below, called = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if copy is None:
            try:
                await link.client.create(resource, wanted, namespace=below)
            except errors.AlreadyExists:
                copy = decode_object(await link.client.get(resource, called, namespace=below))
                if not is_copy(self.tenant.name, copy.metadata):
                    raise ConflictError(f"{kind}/{name}: the name is taken in the compute cluster") from None
            else:
                return
        await self._replace_copy(link, kind, wanted, copy.metadata)

    async def _replace_copy(self, link: ComputeLink, kind: CopyKind, wanted: dict[str, Any], copy: Meta) -> None:
        """Bring a copy up to date; what is immutable below (a new object of the old name above) is made anew."""
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

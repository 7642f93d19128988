"""Compute namespaces: made on first need with what fences them in, and removed with the tenant's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from weakref import WeakValueDictionary

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.resources import KNOWN_RESOURCES
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import FENCE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.model.objects import NamespaceView, Object, decode_namespace
from vkgateway.sync.compute.fan_out import apply_to_each
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.views.ownership import namespace_owner
from vkgateway.translate.context import TenantContext
from vkgateway.translate.namespaces import namespace_objects
from vkgateway.translate.network_policies import is_tenant_policy

log = structlog.get_logger(__name__)


FencePolicies = Callable[[ComputeLink, str, str], Awaitable[list[Object]]]
"""Compute cluster, tenant namespace and its UID to the network policies that belong in the compute namespace."""


class NamespaceReconciler:
    """Keeps one tenant's compute namespaces in all its compute clusters.

    A namespace says by an annotation what it was fenced in with, last of all; so that a gateway that comes back need
    not write all of that again before the first pod. `above(name)` is the tenant's own.
    """

    def __init__(
        self, tenant: TenantContext, *, above: Callable[[str], NamespaceView | None], policies: FencePolicies
    ) -> None:
        self.tenant = tenant
        self._find_tenant_namespace = above
        self._policies_for = policies
        self._complete_levels: dict[tuple[str, str], str] = {}
        """Compute cluster and UID of the tenant namespaces whose compute namespaces are complete, with the pod security
        level that they were made for."""
        self._incomplete: set[tuple[str, str]] = set()
        """The same, of those that lack something, whatever they say."""
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """Kept by who holds them, or waits."""

    async def ensure_namespace(self, link: ComputeLink, namespace: str, uid: str) -> str:
        """Make the compute namespace of a tenant namespace, complete; returns its name.

        Raises:
            ConflictError: the name is taken by a namespace that is not this tenant's.
            UnavailableError: it is being removed still, or belongs to an earlier namespace of the same name.
        """
        name = compute_namespace(self.tenant.name, namespace)
        if self._is_complete(link, uid) and link.namespaces.store.get(("", name)) is not None:
            return name
        async with self._lock_for(link, name):
            existing = link.namespaces.store.get(("", name))
            if existing is not None:
                self._check_namespace(existing, uid)
            if not self._is_complete(link, uid) or existing is None:
                level = self.tenant.pod_security
                objects = await self._namespace_objects(link, namespace, uid)
                doubted = (link.name, uid) in self._incomplete
                if (
                    doubted
                    or existing is None
                    or existing.metadata.annotations.get(FENCE_ANNOTATION) != _fence_digest(objects)
                ):
                    await self._write_namespace(link, name, uid, objects)
                self._complete_levels[link.name, uid] = level
                self._incomplete.discard((link.name, uid))
        return name

    def mark_incomplete(self, link: ComputeLink, uid: str) -> None:
        """Something that belongs into a compute namespace is missing there: `ensure_namespace` makes it
        complete again.
        """
        self._complete_levels.pop((link.name, uid), None)
        self._incomplete.add((link.name, uid))

    async def repair_namespace(self, link: ComputeLink, namespace: str, uid: str) -> None:
        """Make again what somebody may have deleted or changed in a compute namespace that is there."""
        name = compute_namespace(self.tenant.name, namespace)
        async with self._lock_for(link, name):
            await self._write_namespace(link, name, uid, await self._namespace_objects(link, namespace, uid))

    async def reconcile(self, namespace: str, links: Iterable[ComputeLink], *, repair: bool = False) -> None:
        """Remove the compute namespaces of a tenant's namespace that is gone, or is another by now.

        What is to stay is left as it is, or made complete again with `repair_namespace`.
        """

        async def reconcile(link: ComputeLink) -> None:
            below = link.namespaces.find_namespace(self.tenant.name, namespace)
            if not link.is_trusted or below is None:
                return
            above = self._find_tenant_namespace(namespace)
            if above is None or above.metadata.uid != _tenant_uid(below):
                await self.remove_namespace(link, below)
            elif repair and below.metadata.deletion_timestamp is None:
                await self.repair_namespace(link, namespace, above.metadata.uid)

        await apply_to_each(links, reconcile)

    async def remove_namespace(self, link: ComputeLink, existing: NamespaceView) -> None:
        """Delete a compute namespace; what is in it ends by the usual way of its kind."""
        self._complete_levels.pop((link.name, _tenant_uid(existing)), None)
        self._incomplete.discard((link.name, _tenant_uid(existing)))
        if existing.metadata.deletion_timestamp is None:
            log.info("removing compute namespace", compute=link.name, namespace=existing.metadata.name)
            try:
                await link.client.delete(resources.NAMESPACES, existing.metadata.name, uid=existing.metadata.uid)
            except (errors.NotFound, errors.Conflict):
                return

    def _lock_for(self, link: ComputeLink, name: str) -> asyncio.Lock:
        return self._locks.setdefault((link.name, name), asyncio.Lock())

    async def _namespace_objects(self, link: ComputeLink, namespace: str, uid: str) -> list[Object]:
        policies = await self._policies_for(link, namespace, uid)
        return namespace_objects(self.tenant, namespace, uid, policies=policies)

    def _is_complete(self, link: ComputeLink, uid: str) -> bool:
        return self._complete_levels.get((link.name, uid)) == self.tenant.pod_security

    def _check_namespace(self, existing: NamespaceView, uid: str) -> None:
        if existing.metadata.deletion_timestamp is not None:
            raise UnavailableError(
                "the namespace is still being removed below", hint="nothing to do; it is tried again"
            )
        if _tenant_uid(existing) != uid:
            raise UnavailableError(
                "the namespace below belongs to an earlier namespace of the same name",
                hint="nothing to do; it is being removed",
            )

    async def _write_namespace(self, link: ComputeLink, name: str, uid: str, objects: Iterable[Object]) -> None:
        first, *rest = objects
        try:
            await link.client.create(resources.NAMESPACES, first)
        except errors.AlreadyExists:
            await self._adopt_namespace(link, name, uid)
            # Its labels say the pod security level, which the tenant's policy may have changed.
            change = {"metadata": {"labels": first["metadata"]["labels"]}}
            await link.client.patch(resources.NAMESPACES, name, change)
        for document in rest:
            try:
                await _write_object(link, document, name)
            except errors.ApiError as error:
                if error.is_transient or not is_tenant_policy(document):
                    raise
                # What it selects is closed without it. Its tenant hears of that from whoever looks after policies.
                log.info("a policy is refused", compute=link.name, namespace=name, error=error.message)
        fenced = {"metadata": {"annotations": {FENCE_ANNOTATION: _fence_digest([first, *rest])}}}
        await link.client.patch(resources.NAMESPACES, name, fenced)

    async def _adopt_namespace(self, link: ComputeLink, name: str, uid: str) -> None:
        """A namespace of that name is there, though the watch has not shown it: ours, or somebody else's?"""
        known = link.namespaces.store.get(("", name))
        found = known or decode_namespace(await link.client.get(resources.NAMESPACES, name))
        if namespace_owner(found) != self.tenant.name:
            raise ConflictError("the namespace's name is taken in the compute cluster by something else")
        self._check_namespace(found, uid)


async def _write_object(link: ComputeLink, document: Object, namespace: str) -> None:
    resource = KNOWN_RESOURCES[document["apiVersion"], document["kind"]]
    try:
        await link.client.create(resource, document, namespace=namespace)
    except errors.AlreadyExists:
        await link.client.patch(resource, document["metadata"]["name"], document, namespace=namespace, kind="apply")


def _tenant_uid(namespace: NamespaceView) -> str:
    return namespace.metadata.annotations.get(UID_ANNOTATION, "")


def _fence_digest(objects: Iterable[Object]) -> str:
    """A short word for what fences a namespace in: another where anything of that is other.

    Network policies follow what the tenant says, and are looked at by themselves.
    """
    lasting = [document for document in objects if document["kind"] != "NetworkPolicy"]
    return blake2b(msgspec.json.encode(lasting), digest_size=12).hexdigest()

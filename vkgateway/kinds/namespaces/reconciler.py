"""Compute namespaces: created for the first pod with the objects that isolate them, deleted with the tenant's own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final
from weakref import WeakValueDictionary

import msgspec
import structlog

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.names import FENCE_ANNOTATION, UID_ANNOTATION, compute_namespace
from vkgateway.api.objects import NamespaceView, Object, decode_namespace
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.namespaces.translation import namespace_objects
from vkgateway.kinds.policies.reconciler import NetworkPolicyReconciler
from vkgateway.kinds.policies.translation import is_tenant_policy
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sources import COMPUTE_NAMESPACES, TENANT_ACTIVE, TENANT_NAMESPACES
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.kube.resources import KNOWN_RESOURCES
from vkgateway.runtime.requests import RequestKind
from vkgateway.runtime.views.ownership import namespace_owner

log = structlog.get_logger(__name__)


NAMESPACE: Final = RequestKind[str]("namespace")
NEW_NAMESPACE: Final = RequestKind[tuple[str, str]]("new-namespace")
"""A compute cluster, and the tenant namespace whose compute namespace is needed there before the first pod."""


class NamespaceReconciler:
    """Reconciler of one tenant's compute namespaces in all its compute clusters.

    The last write sets an annotation with a digest of the objects that isolate the namespace, so that a gateway which
    restarts need not write all of them again before the first pod.
    """

    def __init__(self, scope: TenantScope, policies: NetworkPolicyReconciler) -> None:
        self._scope = scope
        self._policies = policies
        self._complete_levels: dict[tuple[str, str], str] = {}
        """By compute cluster and UID of the tenant namespace: the pod security level for which the compute namespace is
        complete."""
        self._incomplete: set[tuple[str, str]] = set()
        """Compute namespaces that lack an object, whatever their annotation says."""
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """A lock exists as long as a task holds it, or waits for it."""

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(NAMESPACE, self.reconcile)
            .for_(NEW_NAMESPACE, self.reconcile_new)
            .watches(TENANT_NAMESPACES, self._tenant_namespace_changed)
            .watches(COMPUTE_NAMESPACES, self._compute_namespace_changed)
        )

    async def ensure_namespace(self, link: ComputeLink, namespace: str, uid: str) -> str:
        """Create the compute namespace of a tenant namespace with all its objects; return its name.

        Raises:
            ConflictError: a namespace that is not this tenant's has the name.
            UnavailableError: it is being deleted, or belongs to an earlier namespace of the same name.
        """
        name = compute_namespace(self._scope.name, namespace)
        if self._is_complete(link, uid) and link.namespaces.store.get(("", name)) is not None:
            return name
        async with self._lock_for(link, name):
            existing = link.namespaces.store.get(("", name))
            if existing is not None:
                _check_namespace(existing, uid)
            if not self._is_complete(link, uid) or existing is None:
                level = self._scope.tenant.pod_security
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
        """Record that a compute namespace lacks an object, so that `ensure_namespace` writes all of them again."""
        self._complete_levels.pop((link.name, uid), None)
        self._incomplete.add((link.name, uid))

    async def repair_namespace(self, link: ComputeLink, namespace: str, uid: str) -> None:
        """Write the objects of an existing compute namespace again, to undo deletions and changes by others."""
        name = compute_namespace(self._scope.name, namespace)
        async with self._lock_for(link, name):
            await self._write_namespace(link, name, uid, await self._namespace_objects(link, namespace, uid))

    async def reconcile(self, namespace: str) -> None:
        """Delete the compute namespaces of a tenant namespace that was deleted, or was deleted and created again."""
        await apply_to_each(list(self._scope.links.values()), lambda link: self.reconcile_in(link, namespace))

    async def reconcile_new(self, key: tuple[str, str]) -> None:
        """Create the compute namespace of a tenant namespace, unless that or the cluster was removed."""
        cluster, namespace = key
        link, above = self._scope.links.get(cluster), self._scope.cache.find_namespace(namespace)
        if link is not None and above is not None and link.is_trusted and link.is_usable_by(self._scope.name):
            await self.ensure_namespace(link, namespace, above.metadata.uid)

    async def reconcile_in(self, link: ComputeLink, namespace: str, *, repair: bool = False) -> None:
        """Do the same in one compute cluster; with `repair`, write the objects of a namespace that stays again."""
        below = link.namespaces.find_namespace(self._scope.name, namespace)
        if not link.is_trusted or below is None:
            return
        above = self._scope.cache.find_namespace(namespace)
        if above is None or above.metadata.uid != _tenant_uid(below):
            await self._remove_namespace(link, below)
        elif repair and below.metadata.deletion_timestamp is None:
            await self.repair_namespace(link, namespace, above.metadata.uid)

    async def _remove_namespace(self, link: ComputeLink, existing: NamespaceView) -> None:
        self._complete_levels.pop((link.name, _tenant_uid(existing)), None)
        self._incomplete.discard((link.name, _tenant_uid(existing)))
        if existing.metadata.deletion_timestamp is None:
            log.info("removing compute namespace", compute=link.name, namespace=existing.metadata.name)
            try:
                await link.client.delete(resources.NAMESPACES, existing.metadata.name, uid=existing.metadata.uid)
            except (errors.NotFound, errors.Conflict):
                return

    def _tenant_namespace_changed(self, old: NamespaceView | None, new: NamespaceView | None) -> None:
        if new is None and old is not None:
            self._scope.work_queue.enqueue(NAMESPACE, old.metadata.name)

    def _compute_namespace_changed(self, namespace: str) -> None:
        self._scope.work_queue.enqueue(NAMESPACE, namespace)
        self._scope.watches.notify(TENANT_ACTIVE)

    def _lock_for(self, link: ComputeLink, name: str) -> asyncio.Lock:
        return self._locks.setdefault((link.name, name), asyncio.Lock())

    async def _namespace_objects(self, link: ComputeLink, namespace: str, uid: str) -> list[Object]:
        policies = await self._policies.wait_for_policies(link, namespace, uid)
        return namespace_objects(self._scope.tenant, namespace, uid, policies=policies)

    def _is_complete(self, link: ComputeLink, uid: str) -> bool:
        return self._complete_levels.get((link.name, uid)) == self._scope.tenant.pod_security

    async def _write_namespace(self, link: ComputeLink, name: str, uid: str, objects: Iterable[Object]) -> None:
        first, *rest = objects
        try:
            await link.client.create(resources.NAMESPACES, first)
        except errors.AlreadyExists:
            await self._adopt_namespace(link, name, uid)
            # The labels set the pod security level, which the tenant's policy may have changed.
            change = {"metadata": {"labels": first["metadata"]["labels"]}}
            await link.client.patch(resources.NAMESPACES, name, change)
        for document in rest:
            try:
                await _write_object(link, document, name)
            except errors.ApiError as error:
                if error.is_transient or not is_tenant_policy(document):
                    raise
                # The pods that it selects stay isolated. `NetworkPolicyReconciler` reports the refusal to the tenant.
                log.info("a policy is refused", compute=link.name, namespace=name, error=error.message)
        fenced = {"metadata": {"annotations": {FENCE_ANNOTATION: _fence_digest([first, *rest])}}}
        await link.client.patch(resources.NAMESPACES, name, fenced)

    async def _adopt_namespace(self, link: ComputeLink, name: str, uid: str) -> None:
        """Check that a namespace of that name, which the watch may not show yet, is the tenant's."""
        known = link.namespaces.store.get(("", name))
        found = known or decode_namespace(await link.client.get(resources.NAMESPACES, name))
        if namespace_owner(found) != self._scope.name:
            raise ConflictError("the namespace's name is taken in the compute cluster by something else")
        _check_namespace(found, uid)


def _check_namespace(existing: NamespaceView, uid: str) -> None:
    if existing.metadata.deletion_timestamp is not None:
        raise UnavailableError("the namespace is still being removed below", hint="nothing to do; it is tried again")
    if _tenant_uid(existing) != uid:
        raise UnavailableError(
            "the namespace below belongs to an earlier namespace of the same name",
            hint="nothing to do; it is being removed",
        )


async def _write_object(link: ComputeLink, document: Object, namespace: str) -> None:
    resource = KNOWN_RESOURCES[document["apiVersion"], document["kind"]]
    try:
        await link.client.create(resource, document, namespace=namespace)
    except errors.AlreadyExists:
        await link.client.patch(resource, document["metadata"]["name"], document, namespace=namespace, kind="apply")


def _tenant_uid(namespace: NamespaceView) -> str:
    return namespace.metadata.annotations.get(UID_ANNOTATION, "")


def _fence_digest(objects: Iterable[Object]) -> str:
    """Return a digest of the objects that isolate a namespace.

    Network policies are left out: they depend on the tenant's own, and are reconciled separately.
    """
    lasting = [document for document in objects if document["kind"] != "NetworkPolicy"]
    return blake2b(msgspec.json.encode(lasting), digest_size=12).hexdigest()

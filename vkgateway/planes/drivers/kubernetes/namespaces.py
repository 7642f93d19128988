"""Namespaces of control planes in the management cluster."""

from __future__ import annotations

import contextlib
from typing import Final

import structlog

from vkgateway.api.errors import ConflictError, UnavailableError
from vkgateway.api.names import CONTROL_PLANE_LABEL
from vkgateway.api.objects import decode_object
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.resources import DEPLOYMENTS, NAMESPACES, PODS
from vkgateway.planes.drivers.kubernetes import objects
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects, ManagedObject
from vkgateway.planes.drivers.kubernetes.cluster import read_namespace

_log = structlog.get_logger(__name__)

_REMOVAL_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.2


class ControlPlaneNamespaces:
    """Namespaces of control planes: `prefix`, then the tenant's name. One with another owner is never touched."""

    def __init__(self, client: Client, applied: AppliedObjects, *, prefix: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._objects = applied
        self._prefix = prefix
        self._clock = clock

    def name_for(self, tenant: str) -> str:
        """Return the name of a tenant's namespace."""
        return f"{self._prefix}{tenant}"

    async def ensure(self, tenant: str) -> str:
        """Create a tenant's namespace, or check that the existing one is the tenant's, and return its name.

        Raises:
            ConflictError: the namespace has another owner.
            UnavailableError: it is being deleted.
        """
        name = self.name_for(tenant)
        found = await read_namespace(self._client, name)
        if found is not None and found.metadata.deletion_timestamp:
            raise UnavailableError(f"namespace {name} is being deleted")
        if found is not None and not _is_own(found, tenant):
            raise ConflictError(
                f"namespace {name} exists and is not the one of tenant {tenant!r}",
                hint="Delete the namespace, or change controlPlanes.parameters.namespacePrefix.",
            )
        await self._objects.apply([objects.namespace(tenant, name=name)])
        return name

    async def stop(self, tenant: str) -> None:
        """Delete the Deployments in a tenant's namespace, and wait until their pods have ended.

        The Services stay: cluster IPs, node ports and load balancers of a deleted Service may go to another one.

        Raises:
            UnavailableError: pods still run after a minute.
        """
        name = self.name_for(tenant)
        found = await read_namespace(self._client, name)
        if found is None or not _is_own(found, tenant):
            return
        await self._stop_pods(name, within=_REMOVAL_SECONDS)
        if await self._has_pods(name):
            raise UnavailableError(f"pods in namespace {name} are still terminating after {_REMOVAL_SECONDS:.0f} s")

    async def remove(self, tenant: str) -> None:
        """Delete a tenant's namespace, and wait until it does not exist: then none of its pods writes to etcd.

        Raises:
            UnavailableError: the namespace still exists after a minute.
        """
        name = self.name_for(tenant)
        started = self._clock.monotonic()
        while (found := await read_namespace(self._client, name)) is not None:
            if not _is_own(found, tenant):
                _log.warning("namespace belongs to no control plane and is not deleted", namespace=name)
                return
            self._objects.forget(namespace=name)
            if not found.metadata.deletion_timestamp:
                await self._stop_pods(name, within=_STOP_SECONDS)
                await self._delete(name, uid=found.metadata.uid)
            if self._clock.monotonic() - started >= _REMOVAL_SECONDS:
                raise UnavailableError(f"namespace {name} is still being deleted after {_REMOVAL_SECONDS:.0f} s")
            await self._clock.sleep(_POLL_SECONDS)

    async def _stop_pods(self, name: str, *, within: float) -> None:
        """Delete the Deployments, and wait up to `within` seconds until their pods have ended.

        The namespace controller looks at pods that are ending only after half of their grace period, and again after
        that, although API servers end within a second.
        """
        async for page in self._client.list_pages(DEPLOYMENTS, namespace=name):
            for deployment in (decode_object(item).metadata for item in page.items):
                self._objects.forget_object(DEPLOYMENTS.kind, deployment.name, namespace=name)
                with contextlib.suppress(errors.NotFound):
                    await self._client.delete(
                        DEPLOYMENTS, deployment.name, namespace=name, propagation_policy="Background"
                    )
        deadline = self._clock.monotonic() + within
        while self._clock.monotonic() < deadline and await self._has_pods(name):
            await self._clock.sleep(_POLL_SECONDS)

    async def _has_pods(self, name: str) -> bool:
        async for page in self._client.list_pages(PODS, namespace=name):
            if page.items:
                return True
        return False

    async def _delete(self, name: str, *, uid: str) -> None:
        try:
            await self._client.delete(NAMESPACES, name, uid=uid)
        except (errors.NotFound, errors.Conflict):
            return  # it was deleted, perhaps created again: the next read shows it


def _is_own(namespace: ManagedObject, tenant: str) -> bool:
    """Return whether a namespace is a tenant's, even if another client removed its label."""
    return namespace.is_managed or namespace.metadata.labels.get(CONTROL_PLANE_LABEL) == tenant

"""NetworkPolicies below: the fence of each compute namespace, kept, with what the tenant's own policies say inside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from vkgateway.kube import errors, resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.model.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, compute_namespace
from vkgateway.model.objects import Object
from vkgateway.sync.compute.everywhere import everywhere
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key, owned_by
from vkgateway.sync.events import EventRecorder
from vkgateway.sync.refusals import is_starting, is_verdict, lacks_rights
from vkgateway.translate.cleaning import Cleaner
from vkgateway.translate.context import TenantContext
from vkgateway.translate.egress import ServersRange
from vkgateway.translate.netpolicies import (
    Fence,
    PolicyView,
    Surroundings,
    chooses_namespaces,
    decode_policy,
    fence,
    is_tenants,
)
from vkgateway.translate.peers import NamespaceLabels

log = structlog.get_logger(__name__)

_KNOWN_WITHIN: Final = 10.0
"""Seconds for which a compute namespace waits at most until the tenant's policies are known."""


class NetworkPolicies:
    """One tenant's in all its compute clusters.

    They are watched from the first compute namespace on. `resolvers(link)` tells who answers for names there,
    `name_servers()` where those of all tenants listen;
    `wake(namespace)` asks for a look at a namespace's.
    """

    def __init__(
        self,
        tenant: TenantContext,
        client: Client,
        *,
        events: EventRecorder,
        namespaces: NamespaceLabels,
        resolvers: Callable[[ComputeLink], list[tuple[str, int]]],
        name_servers: Callable[[], ServersRange | None],
        wake: Callable[[str], None],
    ) -> None:
        self.tenant = tenant
        self._events = events
        self._namespaces = namespaces
        self._resolvers = resolvers
        self._name_servers = name_servers
        self._wake = wake
        self._needed = asyncio.Event()
        self._known = asyncio.Event()
        self.above: Reflector[PolicyView] = Reflector(
            client,
            resources.NETWORK_POLICIES,
            decode=decode_policy,
            on_change=self._changed,
            on_complete=self._completed,
        )

    async def run(self) -> None:
        """Watch, once that is needed, until cancelled."""
        await self._needed.wait()
        await self.above.run()

    def need(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self._needed.set()

    async def fence(self, link: ComputeLink, namespace: str, uid: str) -> list[Object]:
        """What a new compute namespace is fenced in with, before anything runs in it.

        Raises:
            UnavailableError: the tenant's policies are not known yet.
        """
        self.need()
        try:
            async with asyncio.timeout(_KNOWN_WITHIN):
                await self._known.wait()
        except TimeoutError as error:
            raise UnavailableError(
                "the tenant's NetworkPolicies are not known yet", hint="nothing to do; it is tried again"
            ) from error
        return self._fence(link, namespace, uid).documents

    def wake_all(self, links: Iterable[ComputeLink]) -> None:
        """Have the policies of every compute namespace looked at."""
        if not self.above.complete:
            return
        names = {view.metadata.namespace for view in self.above.items.values()}
        for link in links:
            names |= set(link.policies.namespaces(self.tenant.name))
        for name in names:
            self._wake(name)

    def namespaces_changed(self) -> None:
        """Namespaces came or went, or their labels changed: policies that choose by those may mean others below."""
        for namespace in {view.metadata.namespace for view in self.above.items.values() if chooses_namespaces(view)}:
            self._wake(namespace)

    def resolvers_changed(self, links: Iterable[ComputeLink]) -> None:
        """Have every fence written again: another server may answer for names, and each is open to that one."""
        self.wake_all(links)

    async def reconcile(self, namespace: str, uid: str, links: Mapping[str, ComputeLink]) -> None:
        """Have the policies of a namespace stand below, in every compute cluster that can be trusted.

        One that is refused there is told of, and holds up no other: the pods that it selects are closed without it.
        That goes for a change, too, since what stood there before may open what is closed now.

        Raises:
            ConflictError: a policy's name is taken below by something that is not this tenant's.
            ApiError: a compute cluster cannot be asked now, or refuses one.
        """
        if not self.above.complete:
            return
        told: dict[Key, tuple[PolicyView, str]] = {}

        async def reconcile(link: ComputeLink) -> None:
            below = link.namespaces.find(self.tenant.name, namespace)
            if not (link.services_trusted and link.policies.complete) or below is None:
                return
            if below.metadata.deletion_timestamp is None:
                made = self._fence(link, namespace, uid)
                await self._write(link, namespace, made.documents)
                told.update({policy.metadata.key: (policy, why) for policy, why in made.left_out})

        await everywhere(links.values(), reconcile)
        for policy, why in told.values():
            await self._events.emit(policy.metadata, reason="PartLeftOut", message=why, about="NetworkPolicy")

    def _fence(self, link: ComputeLink, namespace: str, uid: str) -> Fence:
        around = Surroundings(
            namespaces=self._namespaces(),
            pod_ranges=sorted({cidr for node in link.nodes.items.values() for cidr in node.spec.pod_cidrs}),
            resolvers=self._resolvers(link),
            name_servers=self._name_servers(),
        )
        policies = [
            view
            for view in self.above.items.values()
            if view.metadata.namespace == namespace and view.metadata.deletion_timestamp is None
        ]
        return fence(self.tenant, namespace, uid, policies, around=around)

    async def _write(self, link: ComputeLink, namespace: str, wanted: list[Object]) -> None:
        inside = compute_namespace(self.tenant.name, namespace)
        below = {view.metadata.name: view for view in link.policies.of(inside)}
        refused: errors.ApiError | ConflictError | None = None
        for document in wanted:
            name = document["metadata"]["name"]
            known = below.pop(name, None)
            try:
                await self._write_one(link, document, known)
            except (errors.ApiError, ConflictError) as error:
                if not is_tenants(document) or _may_pass(error):
                    raise
                if known is not None and is_verdict(error):
                    below[name] = known
                await self._tell_refused(document, error, changed=known is not None)
                refused = refused or error
        for view in below.values():
            if owned_by(self.tenant.name, view.metadata):
                await _delete(link, view)
        if refused is not None:
            raise refused

    async def _tell_refused(self, document: Object, error: errors.ApiError | ConflictError, *, changed: bool) -> None:
        annotations, below = document["metadata"]["annotations"], document["metadata"]["namespace"]
        namespace = annotations[NAMESPACE_ANNOTATION]
        policy = self.above.items.get((namespace, annotations[NAME_ANNOTATION]))
        if policy is None:
            return
        if isinstance(error, ConflictError):
            reason = "NameTaken"
            message = "the policy's name is taken in the compute cluster by something that is not this tenant's"
        elif lacks_rights(error):
            reason = "ForwardingRefused"
            what = "change it now: it stays in force there as it was" if changed else "make it now"
            message = f"the compute cluster does not let the gateway {what}"
        else:
            reason = "ForwardingRefused"
            message = f"the compute cluster refused it: {Cleaner(((below, namespace),)).clean(error.words)}"
            if changed and is_verdict(error):
                message += "; it is taken away there as it was before, so the pods that it selects are closed"
        await self._events.emit(policy.metadata, reason=reason, message=message, about="NetworkPolicy")

    async def _write_one(self, link: ComputeLink, wanted: Object, known: PolicyView | None) -> None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if known is None:
            try:
                await link.client.create(resources.NETWORK_POLICIES, wanted, namespace=namespace)
                return
            except errors.AlreadyExists:
                known = decode_policy(await link.client.get(resources.NETWORK_POLICIES, name, namespace=namespace))
        if not owned_by(self.tenant.name, known.metadata):
            raise ConflictError(f"networkpolicies/{name}: the name is taken in the compute cluster")
        if _said(known.spec) == _said(wanted["spec"]):
            return
        metadata = wanted["metadata"] | {"uid": known.metadata.uid, "resourceVersion": known.metadata.resource_version}
        document = wanted | {"metadata": metadata}
        await link.client.replace(resources.NETWORK_POLICIES, name, document, namespace=namespace)

    def _completed(self) -> None:
        self._known.set()
        for namespace in self._namespaces():
            self._wake(namespace)

    def _changed(self, old: PolicyView | None, new: PolicyView | None) -> None:
        view = new or old
        assert view is not None
        if old is None or new is None or old.spec != new.spec:
            self._wake(view.metadata.namespace)


def _may_pass(error: errors.ApiError | ConflictError) -> bool:
    """Whether the same may be taken in a moment, without anybody changing it."""
    return isinstance(error, errors.ApiError) and (error.transient or is_starting(error))


def _said(spec: Object) -> Object:
    """What a policy says; servers leave out lists that are empty."""
    return {key: value for key, value in spec.items() if value != []}


async def _delete(link: ComputeLink, view: PolicyView) -> None:
    metadata = view.metadata
    try:
        await link.client.delete(
            resources.NETWORK_POLICIES, metadata.name, namespace=metadata.namespace, uid=metadata.uid
        )
    except (errors.NotFound, errors.Conflict):
        return

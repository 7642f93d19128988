"""PodDisruptionBudgets below: evictions in a compute cluster, such as those of a drain, obey the tenant's budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vkgateway.kube import errors, resources
from vkgateway.kube.reflector import Reflector
from vkgateway.model.errors import ConflictError
from vkgateway.model.names import compute_namespace
from vkgateway.model.objects import Object
from vkgateway.sync.compute.everywhere import everywhere
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.compute.ownership import Key, owned_by
from vkgateway.sync.refusals import for_tenant, is_verdict, lacks_rights
from vkgateway.sync.shared import Shared
from vkgateway.translate.cleaning import Cleaner
from vkgateway.translate.context import TenantContext
from vkgateway.translate.disruption import BudgetView, decode_budget, forward_budget, is_up_to_date


class DisruptionBudgets:
    """One tenant's budgets in all its compute clusters.

    They are watched from the tenant's first compute namespace on (`need`). `wake(key)` asks for a look at one of them.
    The gateway itself evicts by deletion, which no budget stops.
    """

    def __init__(self, tenant: TenantContext, shared: Shared, *, wake: Callable[[Key], None]) -> None:
        self.tenant = tenant
        self._links = shared.links
        self._events = shared.events
        self._wake = wake
        self._needed = asyncio.Event()
        self.above: Reflector[BudgetView] = Reflector(
            shared.client,
            resources.DISRUPTION_BUDGETS,
            decode=decode_budget,
            on_change=self._changed,
            on_complete=self.wake_all,
        )

    async def run(self) -> None:
        """Watch, once that is needed, until cancelled."""
        await self._needed.wait()
        await self.above.run()

    def need(self) -> None:
        """Something of the tenant runs below, or may soon."""
        self._needed.set()

    def wake_all(self) -> None:
        """Have every budget looked at, above and below."""
        if not self.above.complete:
            return
        below = (key for link in self._links.values() for key in link.budgets.of(self.tenant.name))
        for key in {*self.above.items, *below}:
            self._wake(key)

    def wake_namespace(self, namespace: str) -> None:
        """Have the budgets of a namespace looked at."""
        for key in self.above.items:
            if key[0] == namespace:
                self._wake(key)

    async def reconcile(self, key: Key) -> None:
        """Make one budget below equal to the tenant's, in every compute cluster that can be trusted.

        Raises:
            ConflictError: the name below is taken by something that is not this tenant's.
            ApiError: a compute cluster cannot be asked now, or refuses it.
        """
        if not self.above.complete:
            return
        above = self.above.items.get(key)
        trusted = [link for link in self._links.values() if link.trusted and link.budgets.complete]
        known = {link.name: self._below(link, key) for link in trusted}
        healthy = {name: view.status.current_healthy for name, view in known.items() if view is not None}

        async def settle(link: ComputeLink) -> None:
            elsewhere = sum(healthy.values()) - healthy.get(link.name, 0)
            await self._settle(link, above, known[link.name], healthy_elsewhere=elsewhere)

        await everywhere(trusted, settle)

    def _below(self, link: ComputeLink, key: Key) -> BudgetView | None:
        return link.budgets.items.get((compute_namespace(self.tenant.name, key[0]), key[1]))

    async def _settle(
        self, link: ComputeLink, above: BudgetView | None, below: BudgetView | None, *, healthy_elsewhere: int
    ) -> None:
        own = below is not None and owned_by(self.tenant.name, below.metadata)
        if above is None:
            if below is not None and own:
                await _delete(link, below)
            return
        namespace = link.namespaces.find(self.tenant.name, above.metadata.namespace)
        if namespace is None or namespace.metadata.deletion_timestamp is not None:
            return
        if own and not above.counted:
            return  # the tenant's controller counts within a moment; until then the last count holds
        wanted = forward_budget(above, tenant=self.tenant, healthy_elsewhere=healthy_elsewhere)
        try:
            await self._write(link, wanted, below)
        except (errors.ApiError, ConflictError) as error:
            await self._tell(above, error)
            raise

    async def _write(self, link: ComputeLink, wanted: Object, below: BudgetView | None) -> None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if below is None:
            try:
                await link.client.create(resources.DISRUPTION_BUDGETS, wanted, namespace=namespace)
                return
            except errors.AlreadyExists:
                below = decode_budget(await link.client.get(resources.DISRUPTION_BUDGETS, name, namespace=namespace))
        if not owned_by(self.tenant.name, below.metadata):
            raise ConflictError(f"poddisruptionbudgets/{name}: the name is taken in the compute cluster")
        if is_up_to_date(below, wanted):
            return
        metadata = wanted["metadata"] | {"uid": below.metadata.uid, "resourceVersion": below.metadata.resource_version}
        document = wanted | {"metadata": metadata}
        await link.client.replace(resources.DISRUPTION_BUDGETS, name, document, namespace=namespace)

    async def _tell(self, above: BudgetView, error: errors.ApiError | ConflictError) -> None:
        """Report to the tenant what only the tenant or the platform can mend."""
        metadata = above.metadata
        if isinstance(error, ConflictError):
            reason, message = "NameTaken", "its name is taken in the compute cluster by something that is not yours"
        elif is_verdict(error) or lacks_rights(error):
            below = compute_namespace(self.tenant.name, metadata.namespace)
            reason, message = "ForwardingRefused", for_tenant(error, Cleaner(((below, metadata.namespace),)))
        else:
            return
        message = f"drains of machines do not heed it: {message}"
        await self._events.emit(metadata, reason=reason, message=message, about="PodDisruptionBudget")

    def _changed(self, old: BudgetView | None, new: BudgetView | None) -> None:
        view = new or old
        assert view is not None
        if (
            old is None
            or new is None
            or (old.metadata.uid, old.spec, old.counted, old.required)
            != (new.metadata.uid, new.spec, new.counted, new.required)
        ):
            self._wake(view.metadata.key)


async def _delete(link: ComputeLink, view: BudgetView) -> None:
    metadata = view.metadata
    try:
        await link.client.delete(
            resources.DISRUPTION_BUDGETS, metadata.name, namespace=metadata.namespace, uid=metadata.uid
        )
    except (errors.NotFound, errors.Conflict):
        return

"""PodDisruptionBudgets in compute clusters: evictions there, such as those of a drain, obey the tenant's budgets."""

from __future__ import annotations

import asyncio
from typing import Final

from vkgateway.api.errors import ConflictError
from vkgateway.api.names import compute_namespace
from vkgateway.api.objects import Object
from vkgateway.clusters.link import ComputeLink, apply_to_each
from vkgateway.kinds.budgets.translation import (
    DisruptionBudgetView,
    decode_budget,
    forward_budget,
    is_up_to_date,
)
from vkgateway.kinds.budgets.watch import COMPUTE_BUDGETS, ComputeBudgets
from vkgateway.kinds.refusals import is_object_refused, lacks_rights, refusal_message
from vkgateway.kinds.registry import Registry
from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kinds.sources import (
    COMPUTE_NAMESPACES,
    COMPUTE_NETWORK_LISTED,
    RESYNC,
    TENANT_ACTIVE,
)
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.requests import BATCH_SECONDS, RequestKind
from vkgateway.runtime.views.ownership import Key, owned_by

BUDGET: Final = RequestKind[Key]("budget", BATCH_SECONDS)


class DisruptionBudgetReconciler:
    """Reconciler of one tenant's PodDisruptionBudgets in all its compute clusters.

    They are watched from the tenant's first compute namespace on. The gateway itself evicts by deletion, which no
    budget stops.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._needed = asyncio.Event()
        self.tenant_budgets: Reflector[DisruptionBudgetView] = Reflector(
            scope.client,
            resources.DISRUPTION_BUDGETS,
            decode=decode_budget,
            on_change=self._tenant_budget_changed,
            on_complete=self.enqueue_all,
        )

    def set_up(self, registry: Registry) -> None:
        """See `Reconciler`."""
        (
            registry.for_(BUDGET, self.reconcile)
            .runs("budgets", self.run)
            .watches(TENANT_ACTIVE, self._needed.set)
            .watches(COMPUTE_BUDGETS, self._enqueue)
            .watches(COMPUTE_NAMESPACES, self._enqueue_namespace)
            .watches(COMPUTE_NETWORK_LISTED, self.enqueue_all)
            .watches(RESYNC, self.enqueue_all)
        )

    async def run(self) -> None:
        """Watch the tenant's budgets, once the tenant is active, until cancelled."""
        await self._needed.wait()
        await self.tenant_budgets.run()

    def enqueue_all(self) -> None:
        """Request a reconcile of every budget in the tenant cluster and in the compute clusters."""
        if not self.tenant_budgets.is_complete:
            return
        below = (key for link in self._scope.links.values() for key in _watch(link).of_tenant(self._scope.name))
        for key in {*self.tenant_budgets.store, *below}:
            self._enqueue(key)

    def _enqueue_namespace(self, namespace: str) -> None:
        for key in self.tenant_budgets.store:
            if key[0] == namespace:
                self._enqueue(key)

    def _enqueue(self, key: Key) -> None:
        self._scope.work_queue.enqueue(BUDGET, key)

    async def reconcile(self, key: Key) -> None:
        """Make one budget in every trusted compute cluster equal to the tenant's.

        Raises:
            ConflictError: an object in the compute cluster that is not this tenant's has the name.
            ApiError: a compute cluster does not answer, or refuses the budget.
        """
        if not self.tenant_budgets.is_complete:
            return
        above = self.tenant_budgets.store.get(key)
        trusted = [link for link in self._scope.links.values() if link.is_trusted and _watch(link).is_complete]
        known = {link.name: self._find_compute_budget(link, key) for link in trusted}
        healthy = {name: view.status.current_healthy for name, view in known.items() if view is not None}

        async def settle(link: ComputeLink) -> None:
            elsewhere = sum(healthy.values()) - healthy.get(link.name, 0)
            await self._reconcile_in(link, above, known[link.name], healthy_elsewhere=elsewhere)

        await apply_to_each(trusted, settle)

    def _find_compute_budget(self, link: ComputeLink, key: Key) -> DisruptionBudgetView | None:
        return _watch(link).store.get((compute_namespace(self._scope.name, key[0]), key[1]))

    async def _reconcile_in(
        self,
        link: ComputeLink,
        above: DisruptionBudgetView | None,
        below: DisruptionBudgetView | None,
        *,
        healthy_elsewhere: int,
    ) -> None:
        own = below is not None and owned_by(self._scope.name, below.metadata)
        if above is None:
            if below is not None and own:
                await _delete_budget(link, below)
            return
        namespace = link.namespaces.find_namespace(self._scope.name, above.metadata.namespace)
        if namespace is None or namespace.metadata.deletion_timestamp is not None:
            return
        if own and not above.is_status_current:
            return  # the tenant's controller counts within a moment; until then the last count holds
        wanted = forward_budget(above, tenant=self._scope.tenant, healthy_elsewhere=healthy_elsewhere)
        try:
            await self._write_budget(link, wanted, below)
        except (errors.ApiError, ConflictError) as error:
            await self._report_error(above, error)
            raise

    async def _write_budget(self, link: ComputeLink, wanted: Object, below: DisruptionBudgetView | None) -> None:
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if below is None:
            try:
                await link.client.create(resources.DISRUPTION_BUDGETS, wanted, namespace=namespace)
                return
            except errors.AlreadyExists:
                below = decode_budget(await link.client.get(resources.DISRUPTION_BUDGETS, name, namespace=namespace))
        if not owned_by(self._scope.name, below.metadata):
            raise ConflictError(f"poddisruptionbudgets/{name}: the name is taken in the compute cluster")
        if is_up_to_date(below, wanted):
            return
        metadata = wanted["metadata"] | {"uid": below.metadata.uid, "resourceVersion": below.metadata.resource_version}
        document = wanted | {"metadata": metadata}
        await link.client.replace(resources.DISRUPTION_BUDGETS, name, document, namespace=namespace)

    async def _report_error(self, above: DisruptionBudgetView, error: errors.ApiError | ConflictError) -> None:
        """Report an error that only the tenant or the platform's administrators can fix."""
        metadata = above.metadata
        if isinstance(error, ConflictError):
            reason, message = "NameTaken", "its name is taken in the compute cluster by something that is not yours"
        elif is_object_refused(error) or lacks_rights(error):
            below = compute_namespace(self._scope.name, metadata.namespace)
            reason, message = "ForwardingRefused", refusal_message(error, Sanitizer(((below, metadata.namespace),)))
        else:
            return
        message = f"drains of machines do not heed it: {message}"
        await self._scope.events.emit_event(
            metadata, reason=reason, message=message, about=resources.DISRUPTION_BUDGETS
        )

    def _tenant_budget_changed(self, old: DisruptionBudgetView | None, new: DisruptionBudgetView | None) -> None:
        view = new or old
        assert view is not None
        if (
            old is None
            or new is None
            or (old.metadata.uid, old.spec, old.is_status_current, old.required_healthy)
            != (new.metadata.uid, new.spec, new.is_status_current, new.required_healthy)
        ):
            self._enqueue(view.metadata.key)


async def _delete_budget(link: ComputeLink, view: DisruptionBudgetView) -> None:
    metadata = view.metadata
    try:
        await link.client.delete(
            resources.DISRUPTION_BUDGETS, metadata.name, namespace=metadata.namespace, uid=metadata.uid
        )
    except (errors.NotFound, errors.Conflict):
        return


def _watch(link: ComputeLink) -> ComputeBudgets:
    return link.watch_of(ComputeBudgets)

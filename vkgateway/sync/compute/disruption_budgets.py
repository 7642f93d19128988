"""Watch of the tenants' PodDisruptionBudgets in a compute cluster."""

from __future__ import annotations

from collections.abc import Callable

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.names import TENANT_LABEL
from vkgateway.sync.compute.listener import Listeners, listener_of
from vkgateway.sync.views.ownership import Key, owned_by, source_key
from vkgateway.translate.disruption_budgets import DisruptionBudgetView, decode_budget


class ComputeBudgets(Reflector[DisruptionBudgetView]):
    """PodDisruptionBudgets in the compute namespaces of all tenants."""

    def __init__(self, client: Client, listeners: Listeners, *, on_complete: Callable[[], None]) -> None:
        super().__init__(
            client,
            resources.DISRUPTION_BUDGETS,
            decode=decode_budget,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=on_complete,
        )
        self._listeners = listeners

    def of_tenant(self, tenant: str) -> list[Key]:
        """Return the tenant's namespace and name of each of its PodDisruptionBudgets."""
        views = self.store.values()
        return [source_key(view.metadata) for view in views if owned_by(tenant, view.metadata)]

    def _handle_change(self, old: DisruptionBudgetView | None, new: DisruptionBudgetView | None) -> None:
        view = new or old
        assert view is not None
        if old is not None and new is not None and _is_same_budget(old, new):
            return
        listener = listener_of(self._listeners, view.metadata)
        if listener is not None:
            listener.compute_budget_changed(source_key(view.metadata))


def _is_same_budget(old: DisruptionBudgetView, new: DisruptionBudgetView) -> bool:
    return (
        old.spec == new.spec
        and old.metadata.annotations == new.metadata.annotations
        and old.status.current_healthy == new.status.current_healthy
    )

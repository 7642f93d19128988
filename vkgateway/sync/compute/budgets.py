"""PodDisruptionBudgets of ours in a compute cluster; their tenants hear of changes."""

from __future__ import annotations

from collections.abc import Callable

from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.model.names import TENANT_LABEL
from vkgateway.sync.compute.listener import Listeners, listener_of
from vkgateway.sync.compute.ownership import Key, owned_by, source_key
from vkgateway.translate.disruption import BudgetView, decode_budget


class ComputeBudgets(Reflector[BudgetView]):
    """The budgets in the compute namespaces of all tenants."""

    def __init__(self, client: Client, listeners: Listeners, *, on_complete: Callable[[], None]) -> None:
        super().__init__(
            client,
            resources.DISRUPTION_BUDGETS,
            decode=decode_budget,
            on_change=self._changed,
            label_selector=TENANT_LABEL,
            on_complete=on_complete,
        )
        self._listeners = listeners

    def of(self, tenant: str) -> list[Key]:
        """Return the tenant's namespace and name of each of its budgets."""
        views = self.items.values()
        return [source_key(view.metadata) for view in views if owned_by(tenant, view.metadata)]

    def _changed(self, old: BudgetView | None, new: BudgetView | None) -> None:
        view = new or old
        assert view is not None
        if old is not None and new is not None and _tells_the_same(old, new):
            return
        listener = listener_of(self._listeners, view.metadata)
        if listener is not None:
            listener.compute_budget_changed(source_key(view.metadata))


def _tells_the_same(old: BudgetView, new: BudgetView) -> bool:
    return (
        old.spec == new.spec
        and old.metadata.annotations == new.metadata.annotations
        and old.status.current_healthy == new.status.current_healthy
    )

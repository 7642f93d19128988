"""Watch of the tenants' PodDisruptionBudgets in a compute cluster."""

from __future__ import annotations

from functools import partial
from typing import Final

from vkgateway.api.names import TENANT_LABEL
from vkgateway.clusters.cluster_watches import NETWORK_LISTED, ClusterWatches
from vkgateway.kinds.budgets.translation import DisruptionBudgetView, decode_budget
from vkgateway.kinds.sources import Source
from vkgateway.kube import resources
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector
from vkgateway.runtime.views.ownership import Key, owned_by, source_key

COMPUTE_BUDGETS: Final = Source[Key]("compute PodDisruptionBudgets")
"""The compute PodDisruptionBudget of a tenant's budget was created, changed or deleted."""


class ComputeBudgets(Reflector[DisruptionBudgetView]):
    """PodDisruptionBudgets in the compute namespaces of all tenants."""

    def __init__(self, client: Client, watches: ClusterWatches) -> None:
        super().__init__(
            client,
            resources.DISRUPTION_BUDGETS,
            decode=decode_budget,
            on_change=self._handle_change,
            label_selector=TENANT_LABEL,
            on_complete=partial(watches.notify, NETWORK_LISTED),
        )
        self._watches = watches

    def of_tenant(self, tenant: str) -> list[Key]:
        """Return the tenant's namespace and name of each of its PodDisruptionBudgets."""
        views = self.store.values()
        return [source_key(view.metadata) for view in views if owned_by(tenant, view.metadata)]

    def _handle_change(self, old: DisruptionBudgetView | None, new: DisruptionBudgetView | None) -> None:
        view = new or old
        assert view is not None
        if old is not None and new is not None and _is_same_budget(old, new):
            return
        if (owner := self._watches.find_owner(view.metadata)) is not None:
            owner.notify(COMPUTE_BUDGETS, source_key(view.metadata))


def _is_same_budget(old: DisruptionBudgetView, new: DisruptionBudgetView) -> bool:
    return (
        old.spec == new.spec
        and old.metadata.annotations == new.metadata.annotations
        and old.status.current_healthy == new.status.current_healthy
    )

"""Kinds that need nothing of another kind. A new kind of object is a folder and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.clusters.cluster_watches import ClusterWatches
from vkgateway.kinds.budgets.reconciler import DisruptionBudgetReconciler
from vkgateway.kinds.budgets.watch import ComputeBudgets
from vkgateway.kinds.registry import Reconciler
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube.client import Client
from vkgateway.kube.reflector import Reflector


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object that is forwarded to compute clusters or mirrored from them."""

    reconciler: Callable[[TenantScope], Reconciler]
    """Creates the reconciler of one tenant."""
    watch: Callable[[Client, ClusterWatches], Reflector[Any]] | None = None
    """Creates the watch of the kind in one compute cluster, for all tenants; None without one."""


KINDS: Final[Mapping[str, Kind]] = {
    "poddisruptionbudgets": Kind(DisruptionBudgetReconciler, watch=ComputeBudgets),
}
"""Kinds by their plural name."""

WATCHES: Final = {name: kind.watch for name, kind in KINDS.items() if kind.watch is not None}
